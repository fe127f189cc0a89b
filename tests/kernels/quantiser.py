"""int8 products of low-bit weights by group, written once more and plainly, in the order of the CUDA kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import packing
from numpy.typing import NDArray

from shohin.formats.tensor import Tensor

EPS = 1e-5
Floats = NDArray[np.float32]


def tensor(rng: np.random.Generator, fmt: str, n: int, k: int) -> Tensor:
    """Random weights in which every code occurs, with scales of different rows and groups apart."""
    values = rng.standard_normal((n, k)) * np.exp(rng.standard_normal((n, k // 128))).repeat(128, axis=1) * 0.2
    made = packing.tensor("w", fmt, values)
    if fmt in packing.CODE_BYTES:
        bits = made.data.reshape(-1, made.format.block_bytes)[:, packing.CODE_BYTES[fmt]]
        bits[:] = rng.integers(0, 256, bits.shape, np.uint8)
    return made


def rows_of(rng: np.random.Generator, m: int, k: int) -> Floats:
    """Rows whose groups differ in size by orders of magnitude; one group is all zeros, one too small for a scale. One
    row of one group stays as it is.
    """
    x = rng.standard_normal((m, k)) * np.exp(2 * rng.standard_normal((m, k // 128))).repeat(128, axis=1)
    if m > 1 or k > 128:
        x[0, :128] = 0
        x[m - 1, k - 128 :] *= 1e-37
    return x.astype(np.float32)


def tree(values: Floats) -> Floats:
    """Sum over the last axis by halves: neighbours, then pairs of neighbours, and so on."""
    while values.shape[-1] > 1:
        values = values[..., ::2] + values[..., 1::2]
    return values[..., 0]


def factor_of(x: Floats) -> Floats:
    """1 / sqrt(mean(x^2) + eps), summed in the order of quantise.cuh."""
    groups = x.shape[1] // 128
    lanes = x.reshape(len(x), groups, 32, 4).astype(np.float64)
    sums = np.zeros(lanes.shape[:3], np.float32)
    for i in range(4):
        sums = (lanes[..., i] * lanes[..., i] + sums).astype(np.float32)
    squares = tree(sums)
    partial = np.zeros((len(x), 32), np.float32)
    for g in range(groups):
        partial[:, g % 32] += squares[:, g]
    mean = tree(partial) / np.float32(x.shape[1])
    factor: Floats = np.float32(1) / np.sqrt(mean + np.float32(EPS))
    return factor


@dataclass(frozen=True)
class Terms:
    """Products by group: isum [M, N, G], scale of weights [N, G], of rows [M, G], and the norm's factor [M]."""

    isum: Floats
    d: Floats
    s: Floats
    factor: Floats | None

    @classmethod
    def of(cls, made: Tensor, x: Floats, norm: Floats | None = None) -> Terms:
        codes = made.format.unpack(made.raw())
        v = (x if norm is None else x * norm).reshape(len(x), -1, 128)
        a = np.abs(v).max(axis=2)
        quiet = a < np.float32(1.5e-36)
        inverse = np.divide(np.float32(127), a, out=np.zeros_like(a), where=~quiet)
        q = np.clip(np.rint(v * inverse[..., None]), -127, 127)
        s = np.where(quiet, np.float32(0), a / np.float32(127))
        # A BLAS product a group; whole numbers below 2^53 are exact in any order.
        by_group = q.astype(np.float64).transpose(1, 0, 2) @ codes.code.astype(np.float64).transpose(1, 2, 0)
        isum = by_group.transpose(1, 2, 0).astype(np.float32)
        factor = None if norm is None else factor_of(x)
        return cls(isum, codes.scale.astype(np.float32), s.astype(np.float32), factor)

    def sums(self) -> Floats:
        """Groups one after the other, two roundings each; the factor comes last."""
        total = np.zeros(self.isum.shape[:2], np.float32)
        for g in range(self.isum.shape[2]):
            total = total + self.isum[..., g] * (self.d[None, :, g] * self.s[:, None, g])
        return total if self.factor is None else total * self.factor[:, None]
