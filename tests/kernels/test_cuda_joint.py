"""Joint attention on CUDA: nothing left out, and a fast mode within what rounding to float16 can do."""

from __future__ import annotations

from pathlib import Path

import bounds
import mutants
import numpy as np
import pytest
from emulated import REAL, emulated_cuda
from numpy.typing import NDArray

from shohin import devices
from shohin.devices import Device, Step
from shohin.devices.cuda.launch import Target
from shohin.devices.tape import Call
from shohin.errors import BadRequest
from shohin.kernels import JointShape
from shohin.kernels import joint_attention as standalone
from shohin.kernels.joint_attention import JointAttention, cuda, joint_attention

POISON = np.float32(-7.0e33)
HALF = 2.0**-11
Floats = NDArray[np.float32]
Parts = tuple[Floats, Floats, Floats]


def played(device: Device, shape: JointShape, parts: Parts) -> Floats:
    """A tape of one, whose output is poison at first."""
    rows = (shape.heads * shape.tokens, shape.dim)
    buffers = [device.buffer(name, rows) for name in "qkv"]
    for buffer, values in zip(buffers, parts, strict=True):
        device.write(buffer, values)
    out = device.buffer("out", (shape.tokens, shape.heads * shape.dim))
    device.write(out, np.full(out.shape, POISON))
    tape = device.recorder("test", 1)
    joint_attention(tape, *buffers, out, heads=shape.heads, mode=shape.mode)
    tape.output("out", out, "all")
    found: Floats = tape.finish().play(Step.rows_only(1), ("out",))["out"]
    return found


def drawn(rng: np.random.Generator, shape: JointShape, rise: float = 0.0) -> Parts:
    """Normal q, k, v. rise: every query has this many standard deviations more of a direction that keys take on with
    their index, so that the largest score so far grows from tile to tile.
    """
    q, k, v = (rng.standard_normal((shape.heads, shape.tokens, shape.dim)) for _ in range(3))
    q[..., 0] += rise
    k[..., 0] += rise * np.linspace(0, 1, shape.tokens)
    rows = (shape.heads * shape.tokens, shape.dim)
    return tuple(x.reshape(rows).astype(np.float32) for x in (q, k, v))


def expected(shape: JointShape, parts: Parts, keys: int | None = None) -> NDArray[np.float64]:
    """Float64, head by head, over the first ``keys`` keys."""
    q, k, v = (p.astype(np.float64).reshape(shape.heads, shape.tokens, shape.dim) for p in parts)
    s = np.einsum("hsd,htd->hst", q, k[:, :keys]) / np.sqrt(shape.dim)
    p = np.exp(s - s.max(axis=2, keepdims=True))
    out = np.einsum("hst,htd->hsd", p / p.sum(axis=2, keepdims=True), v[:, :keys])
    return out.transpose(1, 0, 2).reshape(shape.tokens, -1)


def fast_bound(device: Device, shape: JointShape, parts: Parts) -> NDArray[np.float64]:
    """q and k are off by a relative 2^-11 (or 2^-25 where float16 is subnormal), so score t by
    delta_t <= (2^-10 + 2^-22 + gamma(D + 4)) |q| . |k_t| / sqrt(D) and those 2^-25, and its weight by a relative
    e_t = expm1(delta_t) and the few roundings of exp. That moves the mean by at most
    sum p_t e_t |v_t - o| / (1 - max e). Weights and values are rounded once each: 2^-10 sum p_t |v_t|. Weights are
    relative to a point that lies up to 8 below the row's largest score, never above it: their sum is at least 1, and
    subnormal ones are off by 2^-25.
    """
    q, k, v = (p.astype(np.float64).reshape(shape.heads, shape.tokens, shape.dim) for p in parts)
    root = np.sqrt(shape.dim)
    s = np.einsum("hsd,htd->hst", q, k) / root
    p = np.exp(s - s.max(axis=2, keepdims=True))
    p /= p.sum(axis=2, keepdims=True)
    reach = np.einsum("hsd,htd->hst", np.abs(q), np.abs(k)) / root
    small = (np.abs(q).sum(axis=2)[:, :, None] + np.abs(k).sum(axis=2)[:, None, :]) * 2.0**-25 / root
    delta = reach * (2 * HALF + HALF**2 + bounds.gamma(device, shape.dim + 4)) + small
    delta += 4 * bounds.unit(device) * (np.abs(s) + np.abs(s).max(axis=2, keepdims=True) + 8)
    e = np.expm1(delta + bounds.gamma(device, 16))
    out = np.einsum("hst,htd->hsd", p, v)
    moved = np.einsum("hst,hstd->hsd", p * e, np.abs(v[:, None] - out[:, :, None])) / (1 - e.max())
    moved += (2 * HALF + bounds.gamma(device, shape.tokens + 16)) * np.einsum("hst,htd->hsd", p, np.abs(v))
    moved += 2.0**-25 * np.abs(v).sum(axis=1, keepdims=True) + 2.0**-25
    return moved.transpose(1, 0, 2).reshape(shape.tokens, -1)


def launched(shape: JointShape, shared_limit: int) -> list[str]:
    """Entries that a plan chooses."""
    rows = (shape.heads * shape.tokens, shape.dim)
    host = devices.device("host")
    buffers = tuple(host.buffer(name, rows) for name in ("q", "k", "v", "out"))
    call = Call(JointAttention(shape.heads, shape.tokens, shape.dim, shape.mode), buffers, (3,), "")
    return [x.entry for x in cuda.launches(call, Target(1, 1, 90, 132, shared_limit, "binary"))]


EXACT = [(1, 1, 8), (3, 17, 64), (2, 150, 128), (1, 40, 7), (2, 9, 1), (1, 70, 129), (1, 33, 256), (2, 65, 30)]
FAST = [(2, 150, 128), (1, 1, 16), (3, 64, 64), (2, 65, 80), (1, 257, 32), (1, 128, 112)]


@pytest.mark.row("S3.23", "S3.24", "S3.25")
@pytest.mark.parametrize("shape", EXACT, ids=str)
def test_exact_leaves_nothing_out(cuda: Device, rng: np.random.Generator, shape: tuple[int, int, int]) -> None:
    """Every value of a poisoned output, whatever the tokens of a tile and the width of a head."""
    made = JointShape(*shape)
    parts = drawn(rng, made, 2.0)
    q, k, _ = parts
    longest = np.linalg.norm(q, axis=1).max() * np.linalg.norm(k, axis=1).max()
    score = bounds.gamma(cuda, made.dim + 8) * longest / np.sqrt(made.dim)
    bound = np.abs(parts[2]).max() * (2 * score + bounds.gamma(cuda, made.tokens + 12))
    mutants = {"poison": np.full((made.tokens, made.heads * made.dim), POISON)}
    if made.tokens > 1:
        mutants["last key dropped"] = expected(made, parts, made.tokens - 1)
    bounds.check(played(cuda, made, parts), expected(made, parts), bound, mutants)


@pytest.mark.row("S3.23", "S3.25")
@pytest.mark.parametrize("rise", [0.0, 12.0])
@pytest.mark.parametrize("shape", FAST, ids=str)
def test_fast_is_within_the_rounding_to_float16(
    cuda: Device, rng: np.random.Generator, shape: tuple[int, int, int], rise: float
) -> None:
    """With a rise, rows change their reference point in almost every tile; without, in the first alone."""
    made = JointShape(*shape, mode="fast")
    parts = drawn(rng, made, rise)
    want, got = expected(made, parts), played(cuda, made, parts)
    q, k, v = parts
    mutants = {"poison": np.full(want.shape, POISON)}
    if made.tokens > 1:
        mutants["k and v exchanged"] = expected(made, (q, v, k))
        mutants["not scaled"] = expected(made, (q * np.float32(np.sqrt(made.dim)), k, v))
        mutants["tokens in reverse"] = want[::-1]
    bounds.check(got, want, fast_bound(cuda, made, parts), mutants)
    cosine = (got * want).sum() / np.linalg.norm(got) / np.linalg.norm(want)
    assert cosine >= 0.9999, cosine
    if made.tokens > 1:
        assert not np.array_equal(got, played(cuda, JointShape(*shape), parts)), "fast is another kernel"


@pytest.mark.row("S3.23")
def test_fast_of_huge_and_of_broken_values(cuda: Device, rng: np.random.Generator) -> None:
    """Scores of thousands; then NaN, infinity and what float16 can't hold: rows that meet them are not finite."""
    made = JointShape(2, 70, 32, mode="fast")
    q, k, v = drawn(rng, made)
    got = played(cuda, made, (q * 60, k * 60, v))
    best = np.einsum("hsd,htd->hst", q.reshape(2, 70, 32), k.reshape(2, 70, 32)).argmax(axis=2)
    want = np.stack([v.reshape(2, 70, 32)[h, best[h]] for h in range(2)], axis=1).reshape(70, 64)
    assert np.median(np.abs(got - want)) < 2e-3
    for part, value in ((0, np.nan), (1, np.nan), (2, np.inf), (1, 1e6)):
        broken = [x.copy() for x in (q, k, v)]
        broken[part][70 + 69, 5] = value
        got = played(cuda, made, tuple(broken)).reshape(70, 2, 32)
        assert np.isfinite(got[:, 0]).all(), "another head"
        assert (~np.isfinite(got[69 if part == 0 else slice(None), 1])).any(axis=-1).all() or value == 1e6
        if part == 0:
            assert np.isfinite(got[:69]).all(), "another query"
    assert not np.isfinite(got[:, 1]).all()


@pytest.mark.row("S3.26", "S3.28", "M.16")
def test_plays_repeat_their_bits(cuda: Device, rng: np.random.Generator) -> None:
    for mode in ("exact", "fast"):
        made = JointShape(2, 140, 64, mode=mode)
        parts = drawn(rng, made)
        first = played(cuda, made, parts)
        for _ in range(3):
            np.testing.assert_array_equal(played(cuda, made, parts), first)


def test_fast_is_a_permission() -> None:
    """Widths that matrix units don't take, and shared memory that is too small, go to the float32 kernel."""
    fast, exact = ["joint_halves", "joint_fast"], ["joint_exact"]
    assert launched(JointShape(1, 5, 128, mode="fast"), 227 * 1024) == fast
    assert launched(JointShape(1, 5, 128, mode="fast"), 99 * 1024) == fast
    assert launched(JointShape(1, 5, 128, mode="fast"), 48 * 1024) == exact
    for dim in (7, 24, 144, 256):
        assert launched(JointShape(1, 5, dim, mode="fast"), 227 * 1024) == exact
    assert launched(JointShape(1, 5, 128), 227 * 1024) == exact


@pytest.mark.row("S3.23")
def test_host_and_cpu_compute_the_same_in_both_modes(device: Device, rng: np.random.Generator) -> None:
    if device.name == "cuda":
        pytest.skip("this device makes use of the permission")
    parts = drawn(rng, JointShape(2, 20, 16))
    exact, fast = (standalone(device, JointShape(2, 20, 16, mode=mode), parts) for mode in ("exact", "fast"))
    np.testing.assert_array_equal(exact, fast)


def test_unknown_modes_are_refused(device: Device) -> None:
    with pytest.raises(BadRequest, match="mode is 'quick', expected one of exact, fast"):
        JointShape(1, 1, 1, mode="quick")
    buffers = [device.buffer(name, (4, 8)) for name in ("q", "k", "v", "out")]
    with pytest.raises(BadRequest, match="mode is 'slow'"):
        joint_attention(device.recorder("test", 1), *buffers, heads=1, mode="slow")


BEHIND = "i % 2 >= TOKENS)\n                    s["
MUTANTS = {
    "sums are not rescaled": ("fast.cu", "__fmul_rn(sums[r / 2][d][i], old[r])", "sums[r / 2][d][i]"),
    "totals are not rescaled": ("fast.cu", "rows.total[r] = __fmul_rn(rows.total[r], old[r])", "(void)old"),
    "no slack is kept": ("fast.cu", "top > rows.peak[r] + SLACK", "rows.peak[r] < -1e30f"),
    "keys behind the last": ("fast.cu", BEHIND, BEHIND.replace(">=", ">")),
    "halves of keys exchanged": ("fast.cu", "lane / 16 * 8 + lane % 8]", "lane / 8 % 2 * 8 + lane % 8]"),
    "weights of another row": ("fast.cu", "j % 4 / 2][j % 2 * 2]", "j % 4 / 2][2 - j % 2 * 2]"),
    "quad not summed": ("fast.cu", "__fadd_rn(total, __shfl_xor_sync(WARP, total, 2))", "total"),
    "values for keys": ("halves.cu", "blockIdx.y == 0 ? keys : values", "blockIdx.y == 1 ? keys : values"),
    "exact keys behind the last": ("exact.cu", "first + x + 16 * j < TOKENS ?", "first + x + 16 * j <= TOKENS ?"),
    "exact sums are not rescaled": ("exact.cu", "__fmul_rn(sums[i][c], old)", "sums[i][c]"),
}  # fmt: skip


@pytest.mark.skipif(REAL, reason="mutants run under the emulator")
@pytest.mark.parametrize("name", ["", *MUTANTS])
def test_mutants_are_caught(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """A changed line, in a copy of the sources, leaves the bound."""
    folder = mutants.copied(tmp_path, monkeypatch, "joint_attention")
    if name:
        file, old, new = MUTANTS[name]
        mutants.change(folder / file, name, old, new)
    mode = "exact" if name.startswith("exact") else "fast"
    device, within = emulated_cuda(), True
    for tokens, rise in ((150, 12.0), (5, 0.0)):
        made = JointShape(2, tokens, 32, mode=mode)
        parts = drawn(rng, made, rise)
        within &= bounds.within(played(device, made, parts), expected(made, parts), fast_bound(device, made, parts))
    assert within != bool(name)
