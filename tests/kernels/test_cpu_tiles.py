"""Weights in tiles: largest sums, every bit in its place, every size of batch, whole and broken tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import opening
import packing
import pytest

from shohin import _core
from shohin.devices import Device, Step
from shohin.formats.blocks import FORMATS
from shohin.formats.tensor import Tensor
from shohin.kernels.gemm import gemm

TILE = 32
TILED = ("Q1_0", "PQ2_0", "Q2_0")
BITS = {"Q1_0": 1, "PQ2_0": 2, "Q2_0": 2}


@pytest.fixture(params=["generic", "avx2", "avx512"])
def cpu(request: pytest.FixtureRequest) -> Device:
    return opening.cpu(request.param)


def weight(fmt: str, codes: np.ndarray, scales: np.ndarray) -> Tensor:
    """codes uint8 [N, K] as they are stored, scales float16 [N, K / block]: low bits first in a byte."""
    block, bits = FORMATS[fmt].block, BITS[fmt]
    n, k = codes.shape
    each = codes.reshape(n, k // block, block * bits // 8, 8 // bits).astype(np.uint8)
    packed = np.bitwise_or.reduce(each << (np.arange(8 // bits, dtype=np.uint8) * bits), axis=-1).astype(np.uint8)
    blocks = np.concatenate([scales.astype("<f2")[..., None].view(np.uint8), packed], axis=2)
    return Tensor("w", (n, k), FORMATS[fmt], np.ascontiguousarray(blocks).reshape(-1))


def product(device: Device, w: Tensor, x: np.ndarray) -> np.ndarray:
    n, k = w.shape
    buffer, out = device.buffer("x", (len(x), k)), device.buffer("out", (len(x), n))
    device.write(buffer, x.astype(device.float_type))
    tape = device.recorder("test", len(x))
    gemm(tape, buffer, device.pack(w), out, activations="int8")
    tape.output("out", out, "rows")
    got: Any = tape.finish().play(Step.rows_only(len(x)), ("out",))["out"]
    return np.asarray(got)


def values(fmt: str, codes: np.ndarray) -> np.ndarray:
    return (2 * codes.astype(int) - 1) if fmt == "Q1_0" else codes.astype(int) - 1


@pytest.mark.row("S3.12", "M.16")
@pytest.mark.parametrize("m", [1, 2, 4, 5, 8, 9, 17])
@pytest.mark.parametrize("fmt", TILED)
def test_the_largest_sums(cpu: Device, fmt: str, m: int) -> None:
    """All codes equal and all activations 127 or -127: no 8- or 16-bit sum on the way may wrap or saturate.

    One scale is 1 and each activation scale is 1, so outputs are whole numbers that int32 arithmetic gives exactly.
    """
    k, n = 512, 2 * TILE + 5
    for code in range(1 << BITS[fmt]):
        codes = np.full((n, k), code, np.uint8)
        for signs in (
            np.ones(k),
            -np.ones(k),
            np.where(np.arange(k) % 2, 1, -1),
            np.where(np.arange(k) % 8 < 4, 1, -1),
        ):
            x = np.tile(127.0 * signs, (m, 1)).astype(np.float32)
            got = product(cpu, weight(fmt, codes, np.ones((n, k // FORMATS[fmt].block))), x)
            want = values(fmt, codes)[0] @ x[0].astype(int)
            np.testing.assert_array_equal(got, np.full((m, n), want))


@pytest.mark.row("S3.12", "M.16")
@pytest.mark.parametrize("m", [1, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("fmt", TILED)
def test_every_weight_meets_its_own_input(cpu: Device, rng: np.random.Generator, fmt: str, m: int) -> None:
    """Random codes in every row of two tiles and a rest, against integers: a bit out of order, a row out of place or
    a correction left out changes a sum by at least one."""
    block = FORMATS[fmt].block
    k, n = 3 * 128, 2 * TILE + 9
    codes = rng.integers(0, 1 << BITS[fmt], (n, k), dtype=np.uint8)
    scales = 2.0 ** rng.integers(-3, 4, (n, k // block))
    x = rng.integers(-126, 127, (m, k))
    x[:, ::64] = 127  # the largest of every group: its scale is exactly one
    got = product(cpu, weight(fmt, codes, scales), x.astype(np.float32))

    def sums(inputs: np.ndarray, stored: np.ndarray) -> np.ndarray:
        return np.einsum("mgk,ngk->mng", inputs, values(fmt, stored).reshape(n, -1, block))

    q = x.reshape(m, -1, block)
    parts = sums(q, codes)
    want = (parts * scales).sum(axis=2)
    np.testing.assert_array_equal(got, want)
    # What broken kernels would give is something else in every row of weights.
    turned = codes.reshape(n, -1, 8 // BITS[fmt])[:, :, ::-1].reshape(n, k)
    mutants = {
        "bits of a byte reversed": sums(q, turned),
        "correction dropped": parts + q.sum(axis=2)[:, None],
        "bytes of a word swapped": sums(np.roll(q, 8, axis=2), codes),
    }
    for name, broken in mutants.items():
        assert ((broken * scales).sum(axis=2) != got).mean() > 0.9, name


@pytest.mark.parametrize("rows", [1, TILE - 1, TILE, TILE + 1, 3 * TILE])
@pytest.mark.parametrize("fmt", TILED)
def test_packing_moves_bytes_and_loses_none(cpu: Device, rng: np.random.Generator, fmt: str, rows: int) -> None:
    k = 256
    raw = rng.integers(0, 256, rows * FORMATS[fmt].nbytes(k), np.uint8)
    raw.reshape(-1, FORMATS[fmt].block_bytes)[::2, :2] += 1  # scales differ, so that Q2_0 stays what it is
    packed = cpu.pack(Tensor("w", (rows, k), FORMATS[fmt], raw))
    assert packed.nbytes == packed.storage.nbytes == raw.nbytes
    np.testing.assert_array_equal(np.sort(packed.storage.reshape(-1)), np.sort(raw))
    tiled = rows // TILE * TILE * FORMATS[fmt].nbytes(k)
    np.testing.assert_array_equal(packed.storage.reshape(-1)[tiled:], raw[tiled:])


def test_the_core_refuses_to_pack_what_does_not_fit(cpu: Device) -> None:
    pool, rows = _core.Pool(1), np.zeros((40, 18), np.uint8)
    for tier in ("mmx", ""):
        with pytest.raises(ValueError, match="tier"):
            _core.pack(tier, "Q1_0", rows, np.zeros(720, np.uint8), pool)
    with pytest.raises(ValueError, match="Q9_9"):
        _core.pack(cpu.kernels.split(",")[0], "Q9_9", rows, np.zeros(720, np.uint8), pool)
    for fmt, given, size in (("Q1_0", rows, 719), ("Q1_0", rows[:, :17].copy(), 680), ("Q4_1", rows, 720)):
        with pytest.raises(ValueError, match="pack"):
            _core.pack(cpu.kernels.split(",")[0], fmt, given, np.zeros(size, np.uint8), pool)


@pytest.mark.parametrize("fmt", TILED)
def test_a_batch_larger_than_a_chunk(cpu: Device, rng: np.random.Generator, fmt: str) -> None:
    w = packing.tensor("w", fmt, rng.standard_normal((TILE + 3, 256)))
    x = rng.standard_normal((131, 256)).astype(np.float32)
    whole = product(cpu, w, x)
    for m in (1, 4, 5, 131):
        np.testing.assert_array_equal(product(cpu, w, x[-m:]), whole[-m:])
