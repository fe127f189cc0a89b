"""The native attention, joint attention and ``pick`` against host: same rounding points, derived bounds."""

from __future__ import annotations

from dataclasses import dataclass

import bounds
import numpy as np
import opening
import packing
import pytest
from oracle import EPS, rope_table

from shohin.devices import Device, Step
from shohin.errors import BadShape
from shohin.kernels.attend import PAGE, Heads, LayerCache, QKNorm, attend
from shohin.kernels.joint_attention import joint_attention
from shohin.kernels.pick import pick


@dataclass(frozen=True)
class Case:
    """Rows to attend, split into plays; positions start at 0, pages are dealt out backwards."""

    heads: Heads
    kv: str
    qkv: np.ndarray
    norms: tuple[np.ndarray, np.ndarray] | None

    def play(self, device: Device, splits: tuple[int, ...]) -> np.ndarray:
        total = len(self.qkv)
        pages = -(-total // PAGE)
        cache = LayerCache.allocate(device, "c", self.kv, (pages, self.heads.kv, PAGE, self.heads.dim))
        for buffer in (cache.keys, cache.values):
            if buffer.dtype.kind == "f":
                buffer.storage[:] = np.nan  # a key that was not stored must not be read
        rope = device.buffer("rope", (total, self.heads.dim))
        device.write(rope, rope_table(total, self.heads.dim).astype(device.float_type))
        norm = None
        if self.norms is not None:
            norm = QKNorm(*(packing.vector(device, name, w) for name, w in zip("qk", self.norms, strict=True)))
        table = np.arange(pages)[None, ::-1]
        out = []
        for begin, end in zip((0, *splits), (*splits, total), strict=True):
            qkv = device.buffer("qkv", (end - begin, self.heads.width))
            device.write(qkv, self.qkv[begin:end].astype(device.float_type))
            result = device.buffer("out", (end - begin, self.heads.query * self.heads.dim))
            result.storage[:] = np.nan
            tape = device.recorder("test", end - begin)
            attend(tape, qkv, cache, rope, result, heads=self.heads, norm=norm, eps=EPS)
            tape.output("out", result, "all")
            step = Step.of(np.zeros(end - begin, int), positions=np.arange(begin, end), pages=table)
            out.append(tape.finish().play(step, ("out",))["out"])
        return np.concatenate(out)


def case(rng: np.random.Generator, heads: Heads, kv: str, rows: int, *, norms: bool = True) -> Case:
    qkv = rng.standard_normal((rows, heads.width)).astype(np.float32)
    weights = (1 + 0.1 * rng.standard_normal(heads.dim), 1 + 0.1 * rng.standard_normal(heads.dim)) if norms else None
    return Case(heads, kv, qkv, weights)


SHAPES = [
    Heads(4, 2, 64),
    Heads(3, 1, 80),
    Heads(4, 4, 128, "adjacent"),
    Heads(2, 1, 256),
    Heads(2, 1, 6, "adjacent"),
    Heads(20, 1, 32),
]


@pytest.mark.row("M.4", "M.5", "M.7", "M.8", "M.9", "M.10")
@pytest.mark.parametrize("kv", ["f16", "int8", "f32"])
@pytest.mark.parametrize("heads", SHAPES, ids=lambda h: f"{h.query}x{h.kv}x{h.dim}-{h.pairing}")
@pytest.mark.parametrize("tier", ["generic", "avx2", "avx512"])
def test_attention_is_the_host_s(rng: np.random.Generator, tier: str, heads: Heads, kv: str) -> None:
    """float32 against host in float32: the same algorithm, so only summation order and exp differ.

    |d out| <= sum p |dv| + 2 max|ds| max|v| for scores off by ds: a dot product's gamma, q and k off by their norm and
    rotation. A stored value may round the other way where k or v differs in its last bit: half a step of the cache.
    """
    made = case(rng, heads, kv, 70)
    want = made.play(opening.host(), (33, 34, 50))
    got = made.play(opening.cpu(tier), (33, 34, 50))
    size = 3.0 * np.sqrt(heads.dim)  # length of a normed and rotated q or k, with room for its weight
    step = {"f16": 2.0**-10, "int8": 1 / 127, "f32": 2.0**-22}[kv] * size / 2
    score = (bounds.gamma(opening.cpu("generic"), heads.dim + 20) * size**2 + step) / np.sqrt(heads.dim)
    top = float(np.abs(made.qkv[:, -heads.kv * heads.dim :]).max())
    bound = 2 * score * top + 100 * 2.0**-24 * top
    other = Case(heads, kv, np.roll(made.qkv, 1, axis=0), made.norms).play(opening.host(), (33,))
    bounds.check(got, want, bound, {"neighbour's row": other})
    # Nearly every bit is the same: what differs is a few last places, not a few rounded keys.
    assert np.median(np.abs(got - want)) < 1e-6


@pytest.mark.row("M.16", "E.7")
@pytest.mark.parametrize("kv", ["f16", "int8", "f32"])
@pytest.mark.parametrize("rows", [1, 255, 256, 257, 600])
def test_bits_depend_on_nothing_but_the_row(rng: np.random.Generator, kv: str, rows: int) -> None:
    """Tiers, threads, and how a prompt is split into plays; chunks of 256 keys join without a seam."""
    made = case(rng, Heads(4, 2, 32), kv, rows)
    want = made.play(opening.cpu(None, 1), ())
    tiers = opening.cpu().tiers
    for threads, tier in ((2, tiers[0]), (3, tiers[-1]), (5, tiers[len(tiers) // 2])):
        splits = tuple(s for s in (1, 100, 256, 300) if s < rows)
        got = made.play(opening.cpu(tier, threads), splits)
        np.testing.assert_array_equal(got, want, err_msg=f"{threads} threads, tier {tier}")
    exact = made.play(opening.host("float64"), ())
    assert np.abs(want - exact).max() < {"f16": 5e-3, "int8": 5e-2, "f32": 1e-5}[kv]


@pytest.mark.row("M.16", "E.7")
@pytest.mark.parametrize("heads", [Heads(9, 3, 64), Heads(2, 2, 16), Heads(36, 1, 24)], ids=str)
def test_bits_where_rows_share_a_pass_unevenly(rng: np.random.Generator, heads: Heads) -> None:
    """Odd groups straddle rows, and more heads than a pass holds share a key; one row a play shares nothing."""
    made = case(rng, heads, "f16", 300)
    want = made.play(opening.cpu("generic", 1), tuple(range(1, 300)))
    for tier in opening.cpu().tiers:
        for splits in ((), (5, 8, 260), (299,)):
            got = made.play(opening.cpu(tier, 2), splits)
            np.testing.assert_array_equal(got, want, err_msg=f"{tier}, {splits}")


@pytest.mark.row("M.8", "M.16", "E.7")
@pytest.mark.parametrize("kv", ["f16", "int8", "f32"])
def test_sequences_in_one_play_do_not_see_each_other(rng: np.random.Generator, kv: str) -> None:
    """Three sequences of different lengths, interleaved in one tile of rows: the bits of each alone."""
    heads, lengths = Heads(4, 2, 32), (700, 257, 30)
    device = opening.cpu(None, 2)
    qkv = rng.standard_normal((sum(lengths), heads.width)).astype(np.float32)
    pages = -(-max(lengths) // PAGE)
    where = [(s, t) for s, n in enumerate(lengths) for t in range(n)]
    last = [i for i, (s, t) in enumerate(where) if t >= lengths[s] - 7]
    order = [last[7 * s + t] for t in range(7) for s in (2, 0, 1)]  # the tail of each, row by row in turn
    got = paged(device, heads, kv, qkv, where, [i for i in range(len(where)) if i not in last], order, pages)
    for s, n in enumerate(lengths):
        own = np.array([i for i, (sequence, _) in enumerate(where) if sequence == s])
        alone = Case(heads, kv, qkv[own], None).play(device, (n - 7,))
        rows = [j for j, i in enumerate(order) if where[i][0] == s]
        np.testing.assert_array_equal(got[rows], alone[-7:], err_msg=f"sequence {s}")
        assert not np.array_equal(got[rows], alone[:7])


def paged(device, heads, kv, qkv, where, before, order, pages) -> np.ndarray:
    """Play the rows ``before``, then those of ``order`` in one step; row i is (sequence, position) ``where[i]``."""
    sequences = max(s for s, _ in where) + 1
    cache = LayerCache.allocate(device, "c", kv, (sequences * pages, heads.kv, PAGE, heads.dim))
    longest = max(t for _, t in where) + 1
    rope = device.buffer("rope", (longest, heads.dim))
    device.write(rope, rope_table(longest, heads.dim).astype(device.float_type))
    table = np.arange(sequences * pages)[::-1].reshape(sequences, pages)
    out = np.zeros(0)
    for rows in (before, order):
        tape = device.recorder("test", len(rows))
        buffer = device.buffer("qkv", (len(rows), heads.width))
        device.write(buffer, qkv[rows])
        result = device.buffer("out", (len(rows), heads.query * heads.dim))
        attend(tape, buffer, cache, rope, result, heads=heads, eps=EPS)
        tape.output("out", result, "all")
        own = [where[i] for i in rows]
        step = Step.of(
            np.zeros(len(rows), int), sequences=[s for s, _ in own], positions=[t for _, t in own], pages=table
        )
        out = tape.finish().play(step, ("out",))["out"]
    return out


@pytest.mark.row("M.8", "H.20")
@pytest.mark.parametrize("kv", ["f16", "int8"])
def test_a_broken_key_reaches_only_rows_that_see_it(rng: np.random.Generator, kv: str) -> None:
    """Rows share a pass over the keys; NaN in row 20's own key and value stays out of rows 0 to 19."""
    heads = Heads(4, 2, 32)
    made = case(rng, heads, kv, 40, norms=False)
    for tier in opening.cpu().tiers:
        want = made.play(opening.cpu(tier), ())
        broken = made.qkv.copy()
        broken[20, heads.query * heads.dim :] = np.nan
        got = Case(heads, kv, broken, None).play(opening.cpu(tier), ())
        np.testing.assert_array_equal(got[:20], want[:20])
        assert np.isnan(got[20:]).all()


def test_pages_are_a_power_of_two() -> None:
    device, heads = opening.cpu(), Heads(2, 1, 16)
    cache = LayerCache.allocate(device, "c", "f16", (2, 1, 48, 16))
    rope, qkv, out = (device.buffer(n, (4, w)) for n, w in (("rope", 16), ("qkv", heads.width), ("out", 32)))
    tape = device.recorder("test", 4)
    attend(tape, qkv, cache, rope, out, heads=heads)
    with pytest.raises(BadShape, match="48 keys, a power of two"):
        tape.finish()


@pytest.mark.row("S3.23")
@pytest.mark.parametrize("shape", [(1, 1, 8), (3, 17, 64), (2, 300, 128), (1, 40, 7)], ids=str)
def test_joint_attention_bits_and_bound(rng: np.random.Generator, shape: tuple[int, int, int]) -> None:
    heads, tokens, dim = shape
    inputs = [rng.standard_normal((heads * tokens, dim)).astype(np.float32) for _ in range(3)]

    def play(device: Device) -> np.ndarray:
        buffers = [device.buffer(name, a.shape) for name, a in zip("qkv", inputs, strict=True)]
        for buffer, values in zip(buffers, inputs, strict=True):
            device.write(buffer, values.astype(device.float_type))
        out = device.buffer("out", (tokens, heads * dim))
        out.storage[:] = np.nan
        tape = device.recorder("test", 1)
        joint_attention(tape, *buffers, out, heads=heads)
        tape.output("out", out, "all")
        result: np.ndarray = tape.finish().play(Step.rows_only(1), ("out",))["out"]
        return result

    want = play(opening.host("float64"))
    got = play(opening.cpu(None, 1))
    for threads, tier in ((2, "generic"), (3, None)):
        np.testing.assert_array_equal(play(opening.cpu(tier, threads)), got)
    q, k, v = inputs
    longest = np.linalg.norm(q, axis=1).max() * np.linalg.norm(k, axis=1).max()
    score = bounds.gamma(opening.cpu("generic"), dim + 4) * longest / np.sqrt(dim)
    bound = np.abs(v).max() * (2 * score + bounds.gamma(opening.cpu("generic"), tokens + 12))
    mutants = {"token-major as head-major": want[::-1]} if tokens > 1 else {"zero": np.zeros_like(want)}
    bounds.check(got, want, bound, mutants)


@pytest.mark.row("M.12", "H.20")
@pytest.mark.parametrize("tier", ["generic", "avx2", "avx512"])
def test_pick_over_several_spans(rng: np.random.Generator, tier: str) -> None:
    """Ties and broken logits at the borders of the spans that workers look at."""
    device = opening.cpu(tier)
    width, live = 40000, 39001
    spots = (0, 7, 8, 16383, 16384, 16385, 32767, 32768, live - 1)
    logits = rng.standard_normal((len(spots) * 2, width)).astype(np.float32)
    want = np.zeros(len(logits), np.int32)
    for i, spot in enumerate(spots):
        logits[i, [spot, live - 1]] = 9  # a tie with the last one
        logits[i, live] = 99  # past the vocabulary
        want[i] = spot
        logits[len(spots) + i, spot] = (np.nan, np.inf, -np.inf)[i % 3]
        want[len(spots) + i] = -1
    buffer = device.buffer("logits", logits.shape)
    device.write(buffer, logits)
    ids, status = (device.buffer(name, (len(logits),), np.int32) for name in ("ids", "status"))
    tape = device.recorder("test", len(logits))
    pick(tape, buffer, ids, status, vocabulary=live)
    for name, out in (("ids", ids), ("status", status)):
        tape.output(name, out, "wanted")
    got = tape.finish().play(Step.rows_only(len(logits)), ("ids", "status"))
    np.testing.assert_array_equal(got["ids"], want)
    np.testing.assert_array_equal(got["status"], want < 0)
    assert not np.array_equal(np.roll(want, 1), want)
