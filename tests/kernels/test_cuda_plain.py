"""The plain CUDA kernels: bit for bit ``host`` where sums are whole numbers, within derived bounds elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import bounds
import numpy as np
import packing
import pytest
from numpy.typing import NDArray

from shohin import devices
from shohin.devices import Buffer, Device, Recorder, Step
from shohin.formats.blocks import FORMATS
from shohin.formats.tensor import Tensor
from shohin.kernels.gemm import gemm
from shohin.kernels.linear_add import linear_add
from shohin.kernels.norm_linear import norm_linear
from shohin.kernels.norm_swiglu import FeedForward, norm_swiglu

BLOCKS = ("Q2_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K")
TILES = ("Q1_0", "PQ2_0")
EPS = 1e-5
POISON = np.float32(-7.0e33)


def tensor(rng: np.random.Generator, fmt: str, n: int, k: int) -> Tensor:
    """Random weights in which every code occurs: 2-bit blocks get random bits under random scales."""
    values = rng.standard_normal((n, k)) * np.exp(rng.standard_normal((n, 1)) * 0.5) * 0.2
    made = packing.tensor("w", fmt, values)
    if fmt in packing.CODE_BYTES:
        bits = made.data.reshape(-1, FORMATS[fmt].block_bytes)[:, packing.CODE_BYTES[fmt]]
        bits[:] = rng.integers(0, 256, bits.shape, np.uint8)
    return made


def rows_of(rng: np.random.Generator, m: int, k: int) -> NDArray[np.float32]:
    """Rows whose groups differ in size by orders of magnitude, one of them all zeros."""
    x = (
        rng.standard_normal((m, k)) * np.exp(rng.standard_normal((m, k // 16 or 1)) * 2).repeat(16, axis=1)[:, :k]
        if k % 16 == 0
        else rng.standard_normal((m, k))
    )
    if k >= 256:
        x[0, :128] = 0
    return x.astype(np.float32)


@dataclass(frozen=True)
class Play:
    """One op on one device: ``record`` gets the tape, the inputs and the poisoned output."""

    device: Device
    record: Callable[[Recorder, Sequence[Buffer], Buffer], None]

    def __call__(
        self, inputs: Sequence[NDArray[np.float32]], out: NDArray[np.float32], step: Step, wanted: int | None = None
    ) -> NDArray[np.float32]:
        buffers = [self.device.buffer(f"in{i}", a.shape) for i, a in enumerate(inputs)]
        for buffer, values in zip(buffers, inputs, strict=True):
            self.device.write(buffer, values)
        made = self.device.buffer("out", out.shape)
        self.device.write(made, out)
        tape = self.device.recorder("test", len(inputs[0]), wanted)
        self.record(tape, buffers, made)
        tape.output("out", made, "all")
        found: NDArray[np.float32] = tape.finish().play(step, ("out",))["out"]
        return found


def product(
    device: Device, made: Tensor, x: NDArray[np.float32], mode: str, live: int | None = None
) -> NDArray[np.float32]:
    """x . W^T through ``gemm``, rows that are not live left poisoned."""
    weight = device.pack(Tensor(made.name, made.shape, made.format, made.data.copy()))
    poisoned = np.full((len(x), made.shape[0]), POISON)
    return Play(device, lambda tape, ins, out: gemm(tape, ins[0], weight, out, activations=mode))(
        (x,), poisoned, Step.rows_only(len(x) if live is None else live)
    )


@pytest.fixture(scope="module")
def host() -> Device:
    return devices.device("host", dtype="float32")


@pytest.mark.row("M.18", "S3.14")
@pytest.mark.parametrize("fmt", BLOCKS)
@pytest.mark.parametrize(
    ("n", "k", "m", "live"), [(13, 512, 1, 1), (9, 1280, 3, 3), (21, 512, 8, 7), (6, 2304, 11, 10)]
)
def test_int8_is_the_host_bit_by_bit(
    cuda: Device, host: Device, rng: np.random.Generator, fmt: str, n: int, k: int, m: int, live: int
) -> None:
    made, x = tensor(rng, fmt, n, k), rows_of(rng, m, k)
    want, got = (product(device, made, x, "int8", live) for device in (host, cuda))
    np.testing.assert_array_equal(got, want)
    assert (got[live:] == POISON).all()


def test_bits_tell_the_order_of_runs(host: Device, rng: np.random.Generator) -> None:
    """Mutants of the test above: runs added backwards, or pairwise, are other bits."""
    made, x = tensor(rng, "Q4_1", 21, 512), rows_of(rng, 3, 512)
    want = product(host, made, x, "int8")
    codes = made.format.unpack(made.raw())
    terms = []
    for run in range(16):
        part = slice(32 * run, 32 * run + 32)
        a = np.abs(x[:, part]).max(axis=1)
        inverse = np.divide(np.float32(127), a, out=np.zeros_like(a), where=a > 1.5e-36)
        q = np.rint(x[:, part] * inverse[:, None])
        isum = q @ codes.code[:, run].astype(np.float32).T
        affine = codes.scale[:, run] * isum + codes.minimum[:, run] * q.sum(axis=1, keepdims=True)
        terms.append((a / np.float32(127))[:, None] * affine)
    forwards, backwards = np.zeros_like(want), np.zeros_like(want)
    for there, back in zip(terms, terms[::-1], strict=True):
        forwards, backwards = forwards + there, backwards + back
    np.testing.assert_array_equal(forwards, want)
    assert (backwards != want).any()
    assert (np.sum(terms[::2], axis=0, dtype=np.float32) + np.sum(terms[1::2], axis=0, dtype=np.float32) != want).any()


@pytest.mark.row("M.2", "M.11", "S3.14")
@pytest.mark.parametrize("fmt", [*TILES, *BLOCKS, *packing.FLOATS])
@pytest.mark.parametrize(("n", "k", "m", "live"), [(19, 512, 1, 1), (35, 1280, 8, 7), (5, 2304, 11, 10)])
def test_exact_products(cuda: Device, rng: np.random.Generator, fmt: str, n: int, k: int, m: int, live: int) -> None:
    made, x = tensor(rng, fmt, n, k), rows_of(rng, m, k)
    got = product(cuda, made, x, "exact", live)
    assert (got[live:] == POISON).all()
    check_exact(cuda, made, x[:live], got[:live])


@pytest.mark.row("S3.17")
@pytest.mark.parametrize("fmt", packing.FLOATS)
@pytest.mark.parametrize("k", [1, 7, 36, 130, 333])
def test_plain_numbers_of_any_width(cuda: Device, rng: np.random.Generator, fmt: str, k: int) -> None:
    for m in (1, 9):
        made, x = tensor(rng, fmt, 11, k), rows_of(rng, m, k)
        check_exact(cuda, made, x, product(cuda, made, x, "exact"))
        np.testing.assert_array_equal(product(cuda, made, x, "int8"), product(cuda, made, x, "exact"))


def check_exact(device: Device, made: Tensor, x: NDArray[np.float32], got: NDArray[np.float32]) -> None:
    dense = made.decode().astype(np.float64)
    wide = x.astype(np.float64)
    if made.format.quantised:
        codes = made.format.unpack(made.raw())
        size = np.abs(codes.code.astype(np.float64) * codes.scale[..., None])
        size = size + (0 if codes.minimum is None else np.abs(codes.minimum.astype(np.float64))[..., None])
        size = size.reshape(dense.shape)
    else:
        size = np.abs(dense)
    want, bound = wide @ dense.T, bounds.product(device, x, size)
    mutants = {"rows exchanged": np.roll(want, 1, axis=1)}
    if x.shape[1] > 1:
        last = wide.copy()
        last[:, np.abs(wide).max(axis=0).argmax()] = 0
        mutants["an input forgotten"] = last @ dense.T
        mutants["neighbours exchanged"] = wide @ np.roll(dense, 1, axis=1).T
    bounds.check(got, want, bound, mutants)


@pytest.mark.row("M.16")
@pytest.mark.parametrize("fmt", ["Q1_0", "PQ2_0", "Q4_1", "Q8_0", "Q6_K", "F16", "F32"])
def test_a_row_does_not_depend_on_its_neighbours(cuda: Device, rng: np.random.Generator, fmt: str) -> None:
    made, x = tensor(rng, fmt, 17, 1024), rows_of(rng, 17, 1024)
    modes = ("exact",) if fmt in TILES else ("exact", "int8")
    for mode in modes:
        alone = product(cuda, made, x[4:5], mode)
        for some in (x[4:6], x[1:6], x[:8], x):
            at = int(np.flatnonzero((some == x[4]).all(axis=1))[0])
            np.testing.assert_array_equal(product(cuda, made, some, mode)[at], alone[0])


@pytest.mark.row("M.15")
@pytest.mark.parametrize("fmt", BLOCKS)
def test_int8_residual_is_the_host_bit_by_bit(cuda: Device, host: Device, rng: np.random.Generator, fmt: str) -> None:
    made, x = tensor(rng, fmt, 10, 768), rows_of(rng, 5, 768)
    hidden = rng.standard_normal((5, 10)).astype(np.float32)
    found = []
    for device in (host, cuda):
        weight = device.pack(Tensor(made.name, made.shape, made.format, made.data.copy()))
        play = Play(device, lambda t, ins, out, w=weight: linear_add(t, ins[0], w, out, activations="int8"))
        found.append(play((x,), hidden, Step.rows_only(4)))
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[1][4], hidden[4])
    assert (found[0][:4] != product(host, made, x, "int8")[:4]).all(), "the residual matters"


def float64_of(
    made: Sequence[Tensor], kind: str, x: NDArray[np.float32], norm: NDArray[np.float32], mode: str
) -> NDArray[np.float64]:
    """norm_linear or norm_swiglu of all rows on ``host`` in float64, where int8 codes are the same."""
    device = devices.device("host", dtype="float64")
    weights = [device.pack(Tensor(t.name, t.shape, t.format, t.data.copy())) for t in made]
    vector = packing.vector(device, "norm", norm)
    width = made[0].shape[0] if kind == "swiglu" else sum(t.shape[0] for t in made)

    def record(tape: Recorder, ins: Sequence[Buffer], out: Buffer) -> None:
        if kind == "swiglu":
            ffn = FeedForward(vector, weights[0], weights[1], weights[0])
            norm_swiglu(tape, ins[0], ffn, out, eps=EPS, activations=mode)
        else:
            norm_linear(tape, ins[0], vector, weights, out, eps=EPS, activations=mode)

    zeros = np.zeros((len(x), width), np.float32)
    return Play(device, record)((x,), zeros, Step.rows_only(len(x))).astype(np.float64)


def tolerance(made: Sequence[Tensor], x: NDArray[np.float32], norm: NDArray[np.float32]) -> NDArray[np.float64]:
    """Worst case of a product of normed rows in float32, int8 or not: K + 30 roundings of sums of |x| |W|."""
    k = x.shape[1]
    n = np.abs(x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + EPS) * norm)
    peak = np.abs(n).reshape(len(n), -1, 32).max(axis=2).repeat(32, axis=1) / 127
    parts = []
    for t in made:
        size = np.abs(t.decode().astype(np.float64))
        if t.format.quantised:
            codes = t.format.unpack(t.raw())
            size = np.abs(codes.code.astype(np.float64) * codes.scale[..., None])
            size = (size + (0 if codes.minimum is None else np.abs(codes.minimum)[..., None])).reshape(len(size), -1)
        parts.append((n + peak) @ size.T)
    return (k + 30) * 2.0**-24 * np.concatenate(parts, axis=1)


@pytest.mark.row("M.3", "S0.14")
@pytest.mark.parametrize("mode", ["int8", "exact"])
@pytest.mark.parametrize("kinds", [("Q4_1",) * 3, ("Q8_0", "F16"), ("Q6_K", "Q4_K", "Q4_K"), ("Q8_0",) * 4])
@pytest.mark.parametrize("k", [768, 4608])
def test_normed_and_gathered(cuda: Device, rng: np.random.Generator, mode: str, kinds: tuple[str, ...], k: int) -> None:
    made = [tensor(rng, fmt, n, k) for fmt, n in zip(kinds, (9, 4, 7, 3), strict=False)]
    x, norm = rows_of(rng, 6, k), (1 + 0.3 * rng.standard_normal(k)).astype(np.float32)
    x *= np.float32(1e-2)
    weights = [cuda.pack(Tensor(t.name, t.shape, t.format, t.data.copy())) for t in made]
    vector = packing.vector(cuda, "norm", norm)
    wanted = np.array([5, 0, 3])

    def record(tape: Recorder, ins: Sequence[Buffer], out: Buffer) -> None:
        norm_linear(tape, ins[0], vector, weights, out, eps=EPS, activations=mode, gather=True)

    width = sum(t.shape[0] for t in made)
    step = Step.of(np.zeros(6, int), wanted=wanted)
    got = Play(cuda, record)((x,), np.full((4, width), POISON), step, wanted=4)
    want = float64_of(made, "linear", x, norm, mode)
    bound = tolerance(made, x, norm)
    assert (got[3] == POISON).all()
    mutants = {
        "rows not gathered": want[:3],
        "no norm": float64_of(made, "linear", x, np.ones_like(norm), mode)[wanted],
        "weights exchanged": np.roll(want[wanted], made[-1].shape[0], axis=1),
    }
    bounds.check(got[:3], want[wanted], bound[wanted], mutants)


@pytest.mark.row("M.14", "I.9")
@pytest.mark.parametrize("mode", ["int8", "exact"])
@pytest.mark.parametrize(
    "kinds", [("Q4_1", "Q4_1"), ("Q8_0", "Q5_0"), ("Q1_0", "Q4_1"), ("PQ2_0", "Q1_0"), ("Q1_0", "F16")]
)
def test_swiglu(cuda: Device, rng: np.random.Generator, mode: str, kinds: tuple[str, str]) -> None:
    """Also where gate and up have different formats, or only one of them is in tiles."""
    k, n, m = 768, 21, 9
    made = [tensor(rng, fmt, n, k) for fmt in kinds]
    x, norm = rows_of(rng, m, k), (1 + 0.3 * rng.standard_normal(k)).astype(np.float32)
    weights = [cuda.pack(Tensor(t.name, t.shape, t.format, t.data.copy())) for t in made]
    vector = packing.vector(cuda, "norm", norm)

    def record(tape: Recorder, ins: Sequence[Buffer], out: Buffer) -> None:
        ffn = FeedForward(vector, weights[0], weights[1], weights[0])
        norm_swiglu(tape, ins[0], ffn, out, eps=EPS, activations=mode)

    got = Play(cuda, record)((x,), np.full((m, n), POISON), Step.rows_only(m - 1))
    assert (got[m - 1] == POISON).all()
    both = float64_of(made, "linear", x, norm, mode)
    g, u = both[:, :n], both[:, n:]
    error = tolerance(made, x, norm)
    silu = g / (1 + np.exp(-g))
    ds = 1.1 * error[:, :n] + 10 * 2.0**-24 * np.abs(silu) * (1 + np.abs(g))
    bound = ds * (np.abs(u) + error[:, n:]) + np.abs(silu) * error[:, n:] + 2.0**-23 * np.abs(silu * u)
    live = slice(0, m - 1)
    mutants = {"exchanged": (u / (1 + np.exp(-u)) * g)[live], "sigmoid": (u / (1 + np.exp(-g)))[live]}
    bounds.check(got[live], (silu * u)[live], bound[live], mutants)


@pytest.mark.row("H.20")
@pytest.mark.parametrize("mode", ["int8", "exact"])
@pytest.mark.parametrize("fmt", ["Q4_1", "Q8_0", "Q2_0", "Q6_K", "F16", "Q1_0"])
def test_broken_values_stay_in_their_row(cuda: Device, rng: np.random.Generator, mode: str, fmt: str) -> None:
    if fmt in TILES and mode == "int8":
        pytest.skip("tiles have int8 kernels of their own")
    made, x = tensor(rng, fmt, 7, 512), rows_of(rng, 3, 512)
    whole = product(cuda, made, x, mode)
    for bad in (np.nan, np.inf, -np.inf):
        broken = x.copy()
        broken[1, 77] = bad
        got = product(cuda, made, broken, mode)
        assert not np.isfinite(got[1]).any()
        np.testing.assert_array_equal(got[[0, 2]], whole[[0, 2]])


@pytest.mark.row("M.18")
def test_groups_too_small_for_a_scale_are_zero(cuda: Device, host: Device, rng: np.random.Generator) -> None:
    made, x = tensor(rng, "Q8_0", 5, 128), np.full((2, 128), 1.4e-36, np.float32)
    x[1, 32:] = 1
    np.testing.assert_array_equal(product(cuda, made, x, "int8"), product(host, made, x, "int8"))
