"""Every linear op and ``embed`` of the native core, bit for bit where order is fixed, else within derived bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bounds
import numpy as np
import opening
import packing
import pytest

from shohin.devices import Buffer, Device, Recorder, Step, Weight
from shohin.formats.blocks import FORMATS
from shohin.formats.tensor import Tensor
from shohin.kernels.embed import embed
from shohin.kernels.gemm import gemm
from shohin.kernels.linear_add import linear_add
from shohin.kernels.norm_linear import norm_linear
from shohin.kernels.norm_swiglu import FeedForward, norm_swiglu

EPS = 1e-6
BATCHES = (1, 2, 7, 8, 9, 12, 17, 33, 129)
# What the core reads as it is; other ternary containers become PQ2_0, for which host is given the same bytes.
NATIVE = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q1_0", "PQ2_0", "Q2_0"),
)
CODED = tuple(name for name in NATIVE if FORMATS[name].quantised)


@pytest.fixture(params=["generic", "avx2", "avx512"])
def cpu(request: pytest.FixtureRequest) -> Device:
    return opening.cpu(request.param)


def tensor(rng: np.random.Generator, fmt: str, n: int, k: int) -> Tensor:
    """Random weights; the codes of low-bit formats are random bytes, so that every code occurs."""
    made = packing.tensor("w", fmt, rng.standard_normal((n, k)) * np.exp(rng.standard_normal((n, 1))))
    if fmt in ("Q1_0", *packing.CODE_BYTES):
        field = made.data.reshape(-1, FORMATS[fmt].block_bytes)[:, packing.CODE_BYTES.get(fmt, slice(2, 18))]
        field[:] = rng.integers(0, 256, field.shape, np.uint8)
    return made


def activations(rng: np.random.Generator, m: int, k: int) -> np.ndarray:
    x = rng.standard_normal((m, k)) * np.exp(rng.standard_normal((m, 1)))
    x[:, :: max(1, k // 5)] *= 10
    return x.astype(np.float32)


Record = Callable[[Recorder, Buffer, Buffer, list[Weight]], None]


def play(
    device: Device,
    record: Record,
    weights: list[Tensor],
    x: np.ndarray,
    n: int,
    *,
    rows: int | None = None,
    start: np.ndarray | None = None,
) -> np.ndarray:
    """Play on poisoned memory: out and all rows past the live ones are NaN, and so is the scratch of a first play."""
    capacity = rows or len(x)
    packed = [device.pack(w) for w in weights]
    buffer, out = device.buffer("x", (capacity, x.shape[1])), device.buffer("out", (capacity, n))
    tape = device.recorder("test", capacity)
    record(tape, buffer, out, packed)
    tape.output("out", out, "all")
    tape = tape.finish()
    buffer.storage[:] = np.nan
    tape.play(Step.rows_only(capacity))
    out.storage[:] = np.nan
    device.write(buffer, x.astype(device.float_type))
    if start is not None:
        device.write(out, start.astype(device.float_type))
    got: np.ndarray = tape.play(Step.rows_only(len(x)), ("out",))["out"]
    assert np.isnan(got[len(x) :]).all(), "rows past the live ones were written"
    return got[: len(x)]


def record_gemm(mode: str) -> Record:
    return lambda tape, x, out, w: gemm(tape, x, w[0], out, activations=mode)


def record_add(mode: str) -> Record:
    return lambda tape, x, out, w: linear_add(tape, x, w[0], out, activations=mode)


def record_norm(mode: str) -> Record:
    return lambda tape, x, out, w: norm_linear(tape, x, w[0], w[1:], out, eps=EPS, activations=mode)


def record_swiglu(mode: str) -> Record:
    return lambda tape, x, out, w: norm_swiglu(
        tape, x, FeedForward(w[0], w[1], w[2], w[2]), out, eps=EPS, activations=mode
    )


def norm_tensor(rng: np.random.Generator, k: int) -> Tensor:
    return packing.tensor("norm", "F32", 1 + 0.2 * rng.standard_normal(k))


@pytest.mark.row("S3.12", "S3.14", "R.1")
@pytest.mark.parametrize("m", BATCHES)
@pytest.mark.parametrize("fmt", CODED)
def test_int8_products_are_the_host_s_bit_for_bit(cpu: Device, rng: np.random.Generator, fmt: str, m: int) -> None:
    """Integer sums are exact and groups are added in order of K, so host in float32 gives the same bits."""
    block = FORMATS[fmt].block
    k, n = block * (1 if m % 2 else 3), 69
    w, x = tensor(rng, fmt, n, k), activations(rng, m, k)
    want = play(opening.host(), record_gemm("int8"), [w], x, n)
    got = play(cpu, record_gemm("int8"), [w], x, n, rows=m + 3)
    np.testing.assert_array_equal(got, want)
    # One code wrong by one in one weight would show.
    broken = want.copy()
    broken[0, 0] = np.nextafter(broken[0, 0], np.inf)
    assert not np.array_equal(got, broken)


@pytest.mark.row("M.11", "M.15", "S3.14")
@pytest.mark.parametrize("m", [1, 2, 9, 129])
@pytest.mark.parametrize("fmt", NATIVE)
def test_exact_products_within_the_bound(cpu: Device, rng: np.random.Generator, fmt: str, m: int) -> None:
    k, n = (77 if not FORMATS[fmt].quantised else FORMATS[fmt].block * 2), 13
    w, x = tensor(rng, fmt, n, k), activations(rng, m, k)
    start = rng.standard_normal((m, n)).astype(np.float32)
    dense = w.decode().astype(np.float64)
    product = np.einsum("mk,nk->mn", x.astype(np.float64), dense)
    size = bounds.magnitude(cpu.pack(w), w.raw())
    bound = bounds.product(cpu, x, size, extra=1) + bounds.unit(cpu) * np.abs(start)
    shifted = np.einsum("mk,nk->mn", np.roll(x, 1, axis=1).astype(np.float64), dense)
    cut = np.einsum("mk,nk->mn", x[:, :-1].astype(np.float64), dense[:, :-1])
    got = play(cpu, record_gemm("exact"), [w], x, n)
    bounds.check(got, product, bound, {"rolled": shifted, "last input dropped": cut})
    got = play(cpu, record_add("exact"), [w], x, n, start=start)
    bounds.check(got, start + product, bound, {"no residual": product, "added twice": start + 2 * product})


@pytest.mark.row("M.3", "M.14")
@pytest.mark.parametrize("mode", ["int8", "exact"])
@pytest.mark.parametrize("fmt", ["Q1_0", "PQ2_0", "Q4_1", "Q6_K", "BF16"])
def test_phases_against_host_in_float64(cpu: Device, rng: np.random.Generator, fmt: str, mode: str) -> None:
    """norm_linear and norm_swiglu: a dozen roundings and one exp more than the product."""
    k, n, m = 512, 19, 5
    norm, x = norm_tensor(rng, k), activations(rng, m, k)
    a, b = tensor(rng, fmt, n, k), tensor(rng, fmt, n, k)
    wide = opening.host("float64")
    want = play(wide, record_norm(mode), [norm, a, b], x, 2 * n)
    got = play(cpu, record_norm(mode), [norm, a, b], x, 2 * n)
    normed = np.abs(x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + EPS) * norm.decode())
    size = np.concatenate([bounds.magnitude(cpu.pack(w), w.raw()) for w in (a, b)])
    # In int8 mode the codes are the same on every device and |code * scale| is at most half a step above |x|.
    top = normed.max(axis=1, keepdims=True) / 254 if mode == "int8" else 0
    bound = bounds.product(cpu, normed + top, size, extra=bounds.norm_roundings(k))
    bounds.check(got, want, bound, {"parts swapped": np.roll(want, n, axis=1), "no norm": want * 1.01})
    want = play(wide, record_swiglu(mode), [norm, a, b], x, n)
    got = play(cpu, record_swiglu(mode), [norm, a, b], x, n)
    g = play(wide, record_norm(mode), [norm, a, b], x, 2 * n)[:, :n]
    u = play(wide, record_norm(mode), [norm, a, b], x, 2 * n)[:, n:]
    with np.errstate(over="ignore"):
        sigmoid, swapped = 1 / (1 + np.exp(-g)), u / (1 + np.exp(-u)) * g
    # |d silu| <= 1.1 |dg|; exp, one sum, division and product: at most 8 roundings.
    slope = 1.1 * np.abs(u) * bound[:, :n] + np.abs(g * sigmoid) * bound[:, n:]
    bounds.check(got, want, slope * 1.01 + 8 * bounds.unit(cpu) * np.abs(want), {"gate and up swapped": swapped})


@pytest.mark.row("M.16", "S3.48")
@pytest.mark.parametrize("mode", ["int8", "exact"])
@pytest.mark.parametrize("fmt", ["Q1_0", "PQ2_0", "Q2_0", "Q4_1", "Q8_0", "Q3_K", "F16"])
def test_bits_depend_on_nothing_but_the_row(rng: np.random.Generator, fmt: str, mode: str) -> None:
    """Tiers, thread counts and batch neighbours change nothing."""
    k, n, m = 512, 37, 131
    norm, weights = norm_tensor(rng, k), [tensor(rng, fmt, n, k), tensor(rng, fmt, n, k)]
    x = activations(rng, m, k)
    first = opening.cpu(None, 1)
    for record, count in ((record_norm(mode), 2 * n), (record_swiglu(mode), n)):
        want = play(first, record, [norm, *weights], x, count)
        for threads, tier in ((2, None), (3, None), (5, None), (2, "generic"), (2, "avx2")):
            other = opening.cpu(tier, threads)
            got = play(other, record, [norm, *weights], x, count)
            np.testing.assert_array_equal(got, want, err_msg=f"{threads} threads, {tier}")
        for rows in (slice(0, 1), slice(3, 5), slice(128, 131)):
            np.testing.assert_array_equal(play(first, record, [norm, *weights], x[rows], count), want[rows])


@pytest.mark.row("M.2", "S0.6")
@pytest.mark.parametrize("fmt", NATIVE)
def test_embedded_rows_are_decoded_bit_for_bit(cpu: Device, rng: np.random.Generator, fmt: str) -> None:
    k = FORMATS[fmt].block * 2 if FORMATS[fmt].quantised else 33
    table = tensor(rng, fmt, 50, k)
    tape = cpu.recorder("test", 8)
    out = cpu.buffer("out", (8, k))
    embed(tape, cpu.pack(table), out)
    tape.output("out", out, "rows")
    ids = rng.integers(0, 50, 7)
    got = tape.finish().play(Step.of(ids), ("out",))["out"]
    np.testing.assert_array_equal(got.view(np.uint32), table.decode()[ids].view(np.uint32))


@pytest.mark.row("S3.12")
@pytest.mark.parametrize("fmt", [name for name in packing.QUANTISED if name not in NATIVE])
def test_repacked_formats_decode_to_the_same_weights(cpu: Device, rng: np.random.Generator, fmt: str) -> None:
    table = tensor(rng, fmt, 9, 512)
    if cpu.accepts(table.format) == "refused":
        pytest.skip(f"cpu refuses {fmt}")
    tape = cpu.recorder("test", 9)
    out = cpu.buffer("out", (9, 512))
    embed(tape, cpu.pack(table), out)
    tape.output("out", out, "rows")
    got = tape.finish().play(Step.of(np.arange(9)), ("out",))["out"]
    np.testing.assert_array_equal(got, table.decode())


def random_bytes(rng: np.random.Generator, fmt: str, n: int, k: int) -> Tensor:
    return Tensor("w", (n, k), FORMATS[fmt], rng.integers(0, 256, n * FORMATS[fmt].nbytes(k), np.uint8))


@pytest.mark.row("S3.10")
@pytest.mark.parametrize("mode", ["int8", "exact"])
@pytest.mark.parametrize("fmt", NATIVE)
def test_any_bytes_are_weights(cpu: Device, rng: np.random.Generator, fmt: str, mode: str) -> None:
    """Scales that are NaN or infinite, codes that no encoder writes: same finite outputs as host, and no crash."""
    k, n = FORMATS[fmt].block * (2 if FORMATS[fmt].quantised else 64), 33
    w, x = random_bytes(rng, fmt, n, k), activations(rng, 3, k)
    got = play(cpu, record_gemm(mode), [w], x, n)
    if mode == "int8" and FORMATS[fmt].quantised:
        want = play(opening.host(), record_gemm(mode), [w], x, n)
        np.testing.assert_array_equal(got, want)


@pytest.mark.row("H.20")
@pytest.mark.parametrize("mode", ["int8", "exact"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_broken_row_breaks_itself_alone(cpu: Device, rng: np.random.Generator, mode: str, bad: float) -> None:
    k, n = 256, 17
    norm, w, x = norm_tensor(rng, k), tensor(rng, "PQ2_0", n, k), activations(rng, 6, k)
    clean = play(cpu, record_norm(mode), [norm, w], x, n)
    x[4, 130] = bad
    got = play(cpu, record_norm(mode), [norm, w], x, n)
    assert not np.isfinite(got[4]).any()
    np.testing.assert_array_equal(np.delete(got, 4, axis=0), np.delete(clean, 4, axis=0))


def test_gathered_rows_come_in_the_order_asked(cpu: Device, rng: np.random.Generator) -> None:
    k, n = 256, 11
    norm, w, x = norm_tensor(rng, k), tensor(rng, "Q4_0", n, k), activations(rng, 8, k)
    whole = play(cpu, record_norm("int8"), [norm, w], x, n)
    tape = cpu.recorder("test", 8, 5)
    buffer, out = cpu.buffer("x", (8, k)), cpu.buffer("out", (5, n))
    cpu.write(buffer, x)
    norm_linear(tape, buffer, cpu.pack(norm), [cpu.pack(w)], out, eps=EPS, activations="int8", gather=True)
    tape.output("out", out, "wanted")
    tape = tape.finish()
    for wanted in ([7], [3, 3, 0], [6, 1, 2, 5, 0], []):
        got: Any = tape.play(Step.of(np.zeros(8, int), wanted=np.array(wanted, int)), ("out",))["out"]
        np.testing.assert_array_equal(got, whole[wanted])
