"""The meaning of a quantised matrix product, shared by the references of every op that has one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shohin.devices.host import HostWeight

Floats = NDArray[Any]

# Below this a group counts as zero: 127 / a would overflow float32, and nothing that small reaches a logit.
SILENT = np.float32(1.5e-36)


@dataclass(frozen=True)
class Quantised:
    """Rows in int8: codes float32 [M, K / G, G], whole numbers from -127 to 127; scale [M, K / G] in the device float.

    The codes are kept in float32 because a BLAS product of them is exact: no weight code exceeds 128 in size and no
    group has more than 128 weights, so every partial sum is a whole number below 128 * 127 * 128 < 2^24.
    """

    codes: NDArray[np.float32]
    scale: Floats


@dataclass(frozen=True, eq=False)
class Normed:
    """Rows to project: x [M, K], the norm weight [K] and the RMSNorm factor [M, 1]; both None where no norm precedes.

    ``exact`` and ``quantised`` are the two readings of the same rows, each computed once however many weights follow.
    """

    x: Floats
    norm: Floats | None = None
    factor: Floats | None = None

    @classmethod
    def of(cls, x: Floats, norm: HostWeight | None, eps: float) -> Normed:
        """RMSNorm over each row (M.3): factor = 1 / sqrt(mean(x^2) + eps), eps inside the root."""
        if norm is None:
            return cls(x)
        return cls(x, norm.dense, rms_factor(x, eps))

    @cached_property
    def exact(self) -> Floats:
        """(x * factor) * norm, in that order."""
        if self.factor is None or self.norm is None:
            return self.x
        return (self.x * self.factor) * self.norm

    @cached_property
    def _by_group(self) -> dict[int, Quantised]:
        return {}

    def quantised(self, group: int) -> Quantised:
        """int8 codes per ``group`` inputs; the factor goes into the scale, the norm weight into the codes."""
        if group not in self._by_group:
            v = self.x.astype(np.float32)
            if self.norm is not None:
                v = v * self.norm.astype(np.float32)
            self._by_group[group] = quantise(v, group, self.x.dtype, self.factor)
        return self._by_group[group]


def rms_factor(x: Floats, eps: float) -> Floats:
    """1 / sqrt(mean(x^2) + eps) over the last axis, which stays as an axis of one."""
    mean = np.square(x).sum(axis=-1, keepdims=True) / x.dtype.type(x.shape[-1])
    factor: Floats = 1 / np.sqrt(mean + x.dtype.type(eps))
    return factor


def quantise(v: NDArray[np.float32], group: int, float_type: np.dtype[Any], factor: Floats | None = None) -> Quantised:
    """Codes round-half-even(v * (127 / a)) with a = max|v| of the group, scale = factor * a / 127.

    v is float32 on every device, so that the codes are the same everywhere. A group below 1.5e-36 becomes zeros with
    scale 0. A group with NaN or infinity gets scale NaN, which reaches the logits and the status of ``pick``.
    """
    # Counted, not -1: a step may have no rows.
    grouped = v.reshape(len(v), v.shape[1] // group, group)
    top = np.abs(grouped).max(axis=2)  # NumPy's max returns NaN if there is one
    live = np.isfinite(top) & (top >= SILENT)
    inverse = np.divide(np.float32(127), top, out=np.zeros_like(top), where=live)
    codes = np.rint(np.where(live[..., None], grouped, 0) * inverse[..., None])
    a = top.astype(float_type)
    scale = (a if factor is None else factor * a) / float_type.type(127)
    scale = np.where(np.isfinite(top), np.where(live, scale, 0), np.nan).astype(float_type)
    return Quantised(np.clip(codes, -127, 127), scale)


def project(rows: Normed, weight: HostWeight, int8: bool) -> Floats:
    """[M, N] = rows . weight^T. Float formats are an ordinary product in both modes: they have no integer codes.

    In exact mode a row is within rounding of the same row alone (BLAS chooses its order by M); the integer sums of
    int8 mode are exact and the groups are added one by one in order of K, so there a row's bits are its own.
    """
    if int8 and weight.quantised:
        return int8_dot(rows.quantised(weight.group), weight)
    return exact_dot(rows.exact, weight)


def exact_dot(x: Floats, weight: HostWeight) -> Floats:
    """x [M, K] . decoded weight [N, K]^T in the device float."""
    product: Floats = np.matmul(x, weight.dense.T)
    return product


def int8_dot(x: Quantised, weight: HostWeight) -> Floats:
    """Per run of inputs under one weight scale and one activation scale: an exact integer sum, then the two scales.

    Runs are accumulated in order of K. ``weight = scale * code + minimum`` where the format has minima.
    """
    codes, fmt = weight.float_codes, weight.tensor.format
    n, runs, width = codes.shape
    float_type = x.scale.dtype
    scale = weight.codes.scale.astype(float_type)
    least = None if weight.codes.minimum is None else weight.codes.minimum.astype(float_type)
    x_codes = x.codes.reshape(len(x.codes), runs, width)
    out = np.zeros((len(x.codes), n), float_type)
    for run in range(runs):
        g, x_scale = run * width // fmt.group, x.scale[:, run * width // weight.group, None]
        isum = np.matmul(x_codes[:, run], codes[:, run].T).astype(float_type)
        if least is None:
            out += isum * (scale[:, g] * x_scale)
        else:
            qsum = x_codes[:, run].sum(axis=1, keepdims=True).astype(float_type)
            out += x_scale * (scale[:, g] * isum + least[:, g] * qsum)
    return out


def project_all(rows: Normed, weights: Sequence[HostWeight], int8: bool) -> Floats:
    """The projections side by side: [M, sum of N]."""
    return np.concatenate([project(rows, weight, int8) for weight in weights], axis=1)
