"""The CUDA kernel for many rows of float32 weights: the bits of the plain kernel, which has bounds of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import mutants
import numpy as np
import packing
import pytest
from emulated import emulated_cuda
from numpy.typing import NDArray

from shohin.devices import Buffer, Device, Recorder, Step, Weight
from shohin.errors import DeviceFailed
from shohin.kernels.gemm import gemm
from shohin.kernels.gemm.cuda import launches
from shohin.kernels.linear.cuda import f32
from shohin.kernels.linear_add import linear_add
from shohin.kernels.norm_linear import norm_linear
from shohin.kernels.norm_swiglu import FeedForward, norm_swiglu

POISON = np.float32(-7.0e33)
EPS = 1e-5
Floats = NDArray[np.float32]


class Case:
    """Random matrices and rows, and every op over them."""

    def __init__(self, rng: np.random.Generator, m: int, n: int, k: int, live: int) -> None:
        self.x = rng.standard_normal((m, k)).astype(np.float32)
        self.hidden = rng.standard_normal((m, n)).astype(np.float32)
        self.norm = (1 + 0.3 * rng.standard_normal(k)).astype(np.float32)
        self.matrices = [(0.3 * rng.standard_normal((n, k))).astype(np.float32) for _ in range(2)]
        self.live = live

    def op(self, device: Device, name: str) -> Floats:
        """What a tape of one call leaves of a poisoned output, or of ``hidden``."""
        one, two = (packing.pack(device, f"w{i}", "F32", w).weight for i, w in enumerate(self.matrices))
        norm = packing.vector(device, "norm", self.norm)
        m, n = self.hidden.shape
        out = np.full((m, 2 * n if name in ("linear", "gather") else n), POISON)
        if name == "add":
            out = self.hidden
        x, target = device.buffer("x", self.x.shape), device.buffer("out", out.shape)
        device.write(x, self.x)
        device.write(target, out)
        tape = device.recorder("test", m)
        RECORD[name](tape, x, norm, (one, two), target)
        tape.output("out", target, "all")
        step = Step.rows_only(self.live)
        if name == "gather":
            step = Step.of(np.zeros(m, int), wanted=np.arange(m)[::-1][: self.live])
        found: Floats = tape.finish().play(step, ("out",))["out"]
        return found


Record = Callable[[Recorder, Buffer, Weight, Sequence[Weight], Buffer], None]
RECORD: dict[str, Record] = {
    "gemm": lambda t, x, norm, w, out: gemm(t, x, w[0], out, activations="exact"),
    "add": lambda t, x, norm, w, out: linear_add(t, x, w[0], out, activations="exact"),
    "linear": lambda t, x, norm, w, out: norm_linear(t, x, norm, w, out, eps=EPS, activations="exact"),
    "gather": lambda t, x, norm, w, out: norm_linear(t, x, norm, w, out, eps=EPS, activations="exact", gather=True),
    "swiglu": lambda t, x, norm, w, out: norm_swiglu(
        t, x, FeedForward(norm, w[0], w[1], w[0]), out, eps=EPS, activations="exact"
    ),
}


@pytest.mark.row("S3.17", "M.16")
@pytest.mark.parametrize("op", RECORD)
@pytest.mark.parametrize(("m", "n", "k", "live"), [(9, 20, 512, 9), (45, 37, 140, 41), (33, 65, 131, 33), (3, 1, 1, 2)])
def test_the_bits_of_the_plain_kernel(
    cuda: Device,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    op: str,
    m: int,
    n: int,
    k: int,
    live: int,
) -> None:
    case = Case(rng, m, n, k, live)
    monkeypatch.setattr(f32, "LEAST_ROWS", 1 << 20)
    want = case.op(cuda, op)
    assert (want[live:] == (case.hidden[live:] if op == "add" else POISON)).all()
    monkeypatch.setattr(f32, "LEAST_ROWS", 1)
    np.testing.assert_array_equal(case.op(cuda, op), want)


@pytest.mark.row("H.20")
def test_broken_values_stay_in_their_row(cuda: Device, rng: np.random.Generator) -> None:
    case = Case(rng, 12, 40, 260, 12)
    whole = case.op(cuda, "linear")
    case.x[5, 259] = np.nan
    got = case.op(cuda, "linear")
    assert np.isnan(got[5]).all()
    np.testing.assert_array_equal(np.delete(got, 5, axis=0), np.delete(whole, 5, axis=0))


def test_it_is_chosen_for_many_rows_of_float32_weights(cuda: Device, rng: np.random.Generator) -> None:
    """With the rows that were measured, and for nothing else."""
    one, half = (packing.pack(cuda, fmt, fmt, rng.standard_normal((8, 32))).weight for fmt in ("F32", "F16"))

    def chosen(rows: int, weight: Weight) -> set[str]:
        x, out = cuda.buffer("x", (rows, 32)), cuda.buffer("out", (rows, 8))
        tape = cuda.recorder("test", rows)
        gemm(tape, x, weight, out, activations="exact")
        return {launch.entry for launch in launches(tape.calls[0], cuda.target(rows, rows))}

    assert chosen(9, one) == {"multiply_f32"}
    assert "multiply_f32" not in chosen(8, one) | chosen(9, half)


MUTANTS = {
    "columns past the end": ("if (column >= left) break;", ""),
    "another tree": ("step = 16; step > 0; step /= 2", "step = 1; step < 32; step *= 2"),
    "rows past the live ones": ("|| m >= live", ""),
    "rows past the last weight": ("n >= outputs ||", ""),
    "a slab read too early": ("copy_async_wait<STAGES - 2>()", "copy_async_wait<STAGES - 1>()"),
    "a slab overwritten": ("copy_async_wait<STAGES - 2>();\n        __syncthreads();", ""),
}


@pytest.mark.parametrize("name", ["", *MUTANTS])
def test_mutants_are_caught(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    case = Case(rng, 40, 45, 700, 35)
    monkeypatch.setattr(f32, "LEAST_ROWS", 1 << 20)
    want = case.op(emulated_cuda(), "gemm")
    monkeypatch.undo()
    folder = mutants.copied(tmp_path, monkeypatch, "linear/cuda")
    if name:
        old, new = MUTANTS[name]
        mutants.change(folder / "f32.cu", name, old, new)
    try:
        caught = not np.array_equal(case.op(emulated_cuda(), "gemm"), want)
    except DeviceFailed:
        caught = True
    assert caught == bool(name)
