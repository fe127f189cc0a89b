"""QK-norm, RoPE, the paged store, causal grouped-query attention."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import bounds
import numpy as np
import packing
import pytest
from numpy.typing import NDArray
from opening import another
from oracle import EPS, normed, parts, rope_table, rotated, softmax_rows

from shohin.devices import Buffer, Device, Step
from shohin.errors import BadShape, OutOfMemory
from shohin.kernels.attend import PAGE, Heads, LayerCache, QKNorm, attend


@dataclass
class Rig:
    """A device cache and the tape inputs around it."""

    device: Device
    heads: Heads
    kv: str
    positions: int
    norms: tuple[np.ndarray, np.ndarray] | None = None

    def __post_init__(self) -> None:
        pages = -(-self.positions // PAGE) * 2
        self.cache = LayerCache.allocate(self.device, "c", self.kv, (pages, self.heads.kv, PAGE, self.heads.dim))
        self.rope = self.device.buffer("rope", (self.positions, self.heads.dim))
        self.table = rope_table(self.positions, self.heads.dim).astype(self.device.float_type)
        self.device.write(self.rope, self.table)
        self.norm = None
        if self.norms is not None:
            q, k = (packing.vector(self.device, name, w) for name, w in zip("qk", self.norms, strict=True))
            self.norm = QKNorm(q, k)

    def play(self, qkv: np.ndarray, positions: np.ndarray, pages: np.ndarray, sequences=None) -> np.ndarray:
        def record(tape, buffers):
            out = tape.scratch("out", (tape.rows, self.heads.query * self.heads.dim))
            attend(tape, buffers[0], self.cache, self.rope, out, heads=self.heads, norm=self.norm, eps=EPS)
            return out

        step = Step.of(np.zeros(len(qkv), int), positions=positions, pages=pages, sequences=sequences)
        return packing.play(self.device, record, (qkv,), step=step)

    def stored(self, part: str, pages: np.ndarray, length: int) -> np.ndarray:
        """Keys or values of a sequence as the cache holds them, float64 [length, nkv, hd]."""
        buffer, scales = getattr(self.cache, part), getattr(self.cache, f"{part[:-1]}_scales")
        raw = self.device.read(buffer).astype(np.float64)
        if scales is not None:
            raw = raw * self.device.read(scales).astype(np.float64)[..., None]
        flat = [raw[pages[t // PAGE], :, t % PAGE] for t in range(length)]
        return np.stack(flat)


def radius(x: np.ndarray, pairing: str = "half") -> np.ndarray:
    """Every value replaced by the length of its RoPE pair: what the rounding errors of a rotation are relative to."""
    dim = x.shape[-1]
    if pairing == "half":
        return np.tile(np.hypot(x[..., : dim // 2], x[..., dim // 2 :]), 2)
    return np.repeat(np.hypot(x[..., 0::2], x[..., 1::2]), 2, axis=-1)


def attention_bound(
    device: Device, q: np.ndarray, k: np.ndarray, v: np.ndarray, lengths: np.ndarray, off: float, pairing: str = "half"
) -> np.ndarray:
    """Worst case of softmax(q . k) . v when q and k together are off by ``off``, relative to their pairs' lengths.

    Score t is off by delta_t = (off + gamma(hd + 2)) * |q| . |k_t| / sqrt(hd), and by u (|s_t| + |max|) for each of
    three subtractions; exp and rescaling add 16 roundings. So p_t is off by a relative e_t = expm1 of that, moving the
    mean by at most sum p_t e_t |v_t - o| / (1 - max e); the two sums over t add gamma(T + 16) * sum p_t |v_t|.
    """
    group, hd = q.shape[1] // k.shape[1], q.shape[2]
    out = np.zeros(q.shape)
    for m in range(len(q)):
        for h in range(q.shape[1]):
            keys, values = (x[: lengths[m], h // group] for x in (k, v))
            scores = keys @ q[m, h] / np.sqrt(hd)
            p = np.exp(scores - scores.max())
            p /= p.sum()
            reach = radius(keys, pairing) @ radius(q[m, h], pairing) / np.sqrt(hd)
            delta = reach * (off + bounds.gamma(device, hd + 2))
            delta += 3 * bounds.unit(device) * (np.abs(scores) + np.abs(scores.max()))
            e = np.expm1(delta + bounds.gamma(device, 16))
            moved = (p * e) @ np.abs(values - p @ values) / (1 - e.max())
            out[m, h] = moved + bounds.gamma(device, len(keys) + 16) * (p @ np.abs(values))
    return out.reshape(len(q), -1)


def rotation_error(device: Device) -> float:
    """cos and sin rounded to the device's float, two products and a sum, relative to the length of the pair."""
    return bounds.gamma(device, 6)


@pytest.mark.row("M.4", "M.5", "M.7", "M.8", "M.9", "M.10", "S0.14")
@pytest.mark.parametrize("pairing", ["half", "adjacent"])
@pytest.mark.parametrize("shape", [(4, 2, 64), (3, 3, 64), (6, 2, 128), (4, 1, 6), (2, 2, 256)])
def test_attention_against_plain_float64(device: Device, rng: np.random.Generator, shape, pairing: str) -> None:
    heads = Heads(*shape, pairing)
    norms = tuple(1 + 0.3 * rng.standard_normal((2, heads.dim)))
    norms = tuple(w.astype(np.float32).astype(np.float64) for w in norms)
    rows = 9
    rig = Rig(device, heads, "f32", 70, norms)
    qkv = rng.standard_normal((rows, heads.width)).astype(np.float32)
    at = np.arange(rows)
    got = rig.play(qkv, at, np.array([[1, 0]]))
    q, k, v = parts(heads, qkv)

    def turn(x: np.ndarray, weight: np.ndarray, **how) -> np.ndarray:
        return rotated(normed(x, weight), at, how.get("pairing", pairing), backwards=how.get("backwards", False))

    other = "adjacent" if pairing == "half" else "half"
    rq, rk = turn(q, norms[0]), turn(k, norms[1])
    lengths = at + 1
    want = softmax_rows(rq, rk, v, lengths)
    error = bounds.gamma(device, bounds.norm_roundings(heads.dim)) + rotation_error(device)
    bound = attention_bound(device, rq, rk, v, lengths, 2 * error, pairing)
    mutants = {
        "sees one key more": softmax_rows(rq, rk, v, np.minimum(lengths + 1, rows)),
        "sees one key less": softmax_rows(rq, rk, v, np.maximum(lengths - 1, 1)),
        "other pairs": softmax_rows(turn(q, norms[0], pairing=other), turn(k, norms[1], pairing=other), v, lengths),
        "v normed": softmax_rows(rq, rk, normed(v, norms[1]), lengths),
        "norms exchanged": softmax_rows(turn(q, norms[1]), turn(k, norms[0]), v, lengths),
        "rope before norm": softmax_rows(
            normed(rotated(q, at, pairing), norms[0]), normed(rotated(k, at, pairing), norms[1]), v, lengths
        ),
        "q turned backwards": softmax_rows(turn(q, norms[0], backwards=True), rk, v, lengths),
        "not scaled": softmax_rows(rq, rk, v, lengths, unscaled=True),
    }
    if 1 < heads.kv < heads.query:
        mutants["kv heads interleaved"] = softmax_rows(rq, rk, v, lengths, interleaved=True)
    if heads.dim == 6:
        mutants.pop("q turned backwards")  # six dimensions at nine positions: the bound is checked, this mutant is not
    bounds.check(got, want, bound, mutants)


@pytest.mark.row("M.7", "M.8", "M.9", "M.10")
def test_grouped_causal_attention_against_torch(device: Device, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch", reason="torch is an optional oracle")
    heads, rows = Heads(6, 2, 32), 21
    rig = Rig(device, heads, "f32", rows)
    rig.device.write(rig.rope, np.concatenate((np.ones((rows, 16)), np.zeros((rows, 16))), axis=1))  # no rotation
    qkv = rng.standard_normal((rows, heads.width)).astype(np.float32)
    got = rig.play(qkv, np.arange(rows), np.array([[0]]))
    q, k, v = parts(heads, qkv)
    tq, tk, tv = (torch.from_numpy(x).permute(1, 0, 2)[None] for x in (q, k, v))
    want = torch.nn.functional.scaled_dot_product_attention(tq, tk, tv, is_causal=True, enable_gqa=True)
    want = want[0].permute(1, 0, 2).reshape(rows, -1).numpy()
    bounds.check(got, want, attention_bound(device, q, k, v, np.arange(rows) + 1, 0.0), {})


@pytest.mark.row("M.5", "M.6")
def test_rope_vector_of_the_format_document(device: Device) -> None:
    """A worked vector: (1, 2, 3, 4), head_dim 4, theta 1e4, position 1, read back from the key cache."""
    want = {
        "half": [-1.98411065, 1.95990067, 2.46237780, 4.01979967],
        "adjacent": [-1.14263966, 1.92207560, 2.95985067, 4.02979950],
    }
    for pairing, values in want.items():
        rig = Rig(device, Heads(1, 1, 4, pairing), "f32", 2)
        rig.play(np.tile(np.float32([1, 2, 3, 4]), (1, 3)), np.array([1]), np.array([[0]]))
        np.testing.assert_allclose(rig.stored("keys", np.array([0]), 2)[1, 0], values, rtol=0, atol=5e-7)


@pytest.mark.row("E.7", "M.16")
@pytest.mark.parametrize("length", [255, 256, 257, 513])
def test_chunks_of_keys_join_without_a_seam(device: Device, rng: np.random.Generator, length: int) -> None:
    """Chunks of 256 keys at their borders, with one key far above the rest in the last chunk and one in the first."""
    heads = Heads(2, 1, 64)
    rig = Rig(device, heads, "f32", length)
    qkv = rng.standard_normal((length, heads.width)).astype(np.float32)
    qkv[0, 128:192] *= 4
    qkv[length - 1, 128:192] = qkv[length - 1, :64] / 2  # turned alike, so the last row's first head is drawn to it
    at = np.arange(length)
    pages = np.arange(-(-length // PAGE))[None]
    got = rig.play(qkv, at, pages)[-1:]
    q, k, v = parts(heads, qkv)
    rq, rk = rotated(q, at)[-1:], rotated(k, at)
    n = np.array([length])
    want = softmax_rows(rq, rk, v, n)
    bound = attention_bound(device, rq, rk, v, n, 2 * rotation_error(device))
    mutants = {"last key dropped": softmax_rows(rq, rk, v, n - 1)}
    if length > 256:
        late = softmax_rows(rq, rk[256:], v[256:], n - 256)
        early = softmax_rows(rq, rk[:256], v[:256], np.array([256]))
        mutants |= {"only the last chunk": late, "chunks averaged without their sums": (late + early) / 2}
    bounds.check(got, want, bound, mutants)
    # One row at a time over the same cache is the same row, bit for bit: no result depends on its neighbours.
    alone = rig.play(qkv[-1:], at[-1:], pages)
    np.testing.assert_array_equal(alone, got)


@pytest.mark.row("S0.3", "H.10", "E.13")
@pytest.mark.parametrize("kv", ["f16", "int8", "f32"])
def test_pages_in_any_order_and_sequences_side_by_side(device: Device, rng: np.random.Generator, kv: str) -> None:
    heads, length = Heads(4, 2, 32), 3 * PAGE + 5
    qkv = rng.standard_normal((length, heads.width)).astype(np.float32)
    at = np.arange(length)
    plain, mixed = (Rig(device, heads, kv, length) for _ in range(2))
    want = plain.play(qkv, at, np.array([[0, 1, 2, 3]]))
    np.testing.assert_array_equal(mixed.play(qkv, at, np.array([[6, 1, 7, 2]])), want)
    # Two sequences in one step, rows mixed, the second with another history.
    both = Rig(device, heads, kv, length)
    other = rng.standard_normal((length, heads.width)).astype(np.float32)
    order = rng.permutation(2 * length)
    joined, where, owner = np.concatenate((qkv, other)), np.concatenate((at, at)), np.repeat([0, 1], length)
    got = both.play(joined[order], where[order], np.array([[3, 2, 1, 0], [4, 6, 5, 7]]), owner[order])
    np.testing.assert_array_equal(got[np.argsort(order)][:length], want)
    assert not np.array_equal(got[np.argsort(order)][length:], want)


@pytest.mark.row("E.5", "E.9", "E.13", "C29")
def test_any_split_into_steps_gives_the_same_rows(device: Device, rng: np.random.Generator) -> None:
    heads, length = Heads(4, 2, 32), 150
    qkv = rng.standard_normal((length, heads.width)).astype(np.float32)
    at, pages = np.arange(length), np.array([[2, 0, 1]])
    whole = Rig(device, heads, "f16", length).play(qkv, at, pages)
    rig = Rig(device, heads, "f16", length)
    rig.play(rng.standard_normal((10, heads.width)).astype(np.float32), at[:10] + 60, pages)  # stale keys, forgotten
    cuts = [0, 1, 8, 65, 66, 129, 150]
    got = np.concatenate([rig.play(qkv[a:b], at[a:b], pages) for a, b in pairwise(cuts)])
    np.testing.assert_array_equal(got, whole)


@pytest.mark.row("M.1", "M.17", "S0.3")
def test_f16_store_rounds_once_to_nearest_even(device: Device) -> None:
    """Roundings to f16 through the value cache, which no rotation touches."""
    pairs = [(0.1, 0x2E66), (1 / 3, 0x3555), (65519, 0x7BFF), (65520, 0x7C00), (6e-8, 0x0001), (2.9e-8, 0)]
    pairs += [(2049, np.float16(2048).view(np.uint16)), (2051, np.float16(2052).view(np.uint16))]
    rig = Rig(device, Heads(1, 1, 8), "f16", 1)
    qkv = np.zeros((1, 24), np.float32)
    qkv[0, 16:] = [value for value, _ in pairs]
    rig.play(qkv, np.array([0]), np.array([[0]]))
    got = device.read(rig.cache.values)[0, 0, 0].view(np.uint16)
    assert [hex(x) for x in got] == [hex(x) for _, x in pairs]
    truncated = [np.float16(2050).view(np.uint16), np.float16(2050).view(np.uint16)]
    assert [x for _, x in pairs[-2:]] != truncated, "ties to even are neither both up nor both down here"


@pytest.mark.row("M.1", "M.9", "H.20")
@pytest.mark.parametrize("kv", ["f16", "int8"])
def test_rows_read_their_own_key_as_rounded(device: Device, rng: np.random.Generator, kv: str) -> None:
    """Attention equals the oracle over what the cache holds, and differs from one over unrounded K and V."""
    heads, rows = Heads(4, 2, 64), 40
    rig = Rig(device, heads, kv, rows)
    qkv = rng.standard_normal((rows, heads.width)).astype(np.float32)
    at, pages = np.arange(rows), np.array([[0]])
    got = rig.play(qkv, at, pages)
    q, k, v = parts(heads, qkv)
    rq = rotated(q, at)
    held_k, held_v = (rig.stored(part, pages[0], rows) for part in ("keys", "values"))
    want = softmax_rows(rq, held_k, held_v, at + 1)
    bound = attention_bound(device, rq, held_k, held_v, at + 1, rotation_error(device))
    own = np.repeat(v[0], 2, axis=0).reshape(1, -1)  # row 0 sees itself alone
    mutants = {
        "cache not rounded": softmax_rows(rq, rotated(k, at), v, at + 1),
        "own value not rounded": np.vstack((own, want[1:])),
        "k and v exchanged": softmax_rows(rq, held_v, held_k, at + 1),
    }
    bounds.check(got, want, bound, mutants)


@pytest.mark.row("F.51", "M.1")
def test_int8_cache_error_is_half_a_step_of_an_f16_scale(device: Device, rng: np.random.Generator) -> None:
    """|x - s c| <= s / 2, where s = f16(max / 127) may be 2^-11 too small: then 127 s falls short of max by up to
    127 * 2^-11 s = 0.062 s, still less than half a step, so clamping adds nothing."""
    heads, rows = Heads(1, 1, 64), 20
    rig = Rig(device, heads, "int8", rows)
    qkv = (rng.standard_normal((rows, heads.width)) * np.exp(rng.standard_normal((rows, 1)) * 2)).astype(np.float32)
    qkv[3, 128:] = 0
    rig.play(qkv, np.arange(rows), np.array([[0]]))
    v = parts(heads, qkv)[2]
    held = rig.stored("values", np.array([0]), rows)
    scale = device.read(rig.cache.value_scales)[0, 0, :rows].astype(np.float64)
    top = np.abs(v).max(axis=(1, 2))
    np.testing.assert_array_equal(scale, (top / 127).astype(np.float16).astype(np.float64))
    bound = (scale * (0.5 + 1e-5))[:, None, None] + np.zeros_like(v)
    codes = device.read(rig.cache.values)[0, 0, :rows].astype(np.float64)[:, None]
    mutants = {
        "truncated codes": np.trunc(v / np.where(scale > 0, scale, 1)[:, None, None]) * scale[:, None, None],
        "divided by 128": codes * (top / 128)[:, None, None],
        "scale of the next token": codes * np.roll(scale, 1)[:, None, None],
    }
    bounds.check(held, v, bound, mutants)
    assert np.all(held[3] == 0)


@pytest.mark.row("M.1", "M.18")
def test_int8_cache_rounds_half_to_even(device: Device) -> None:
    rig = Rig(device, Heads(1, 1, 8), "int8", 1)
    qkv = np.zeros((1, 24), np.float32)
    qkv[0, 16:] = [127, 0.5, 1.5, 2.5, -0.5, -1.5, -126.5, -127]
    rig.play(qkv, np.array([0]), np.array([[0]]))
    assert device.read(rig.cache.values)[0, 0, 0].tolist() == [127, 0, 2, 2, 0, -2, -126, -127]


@pytest.mark.row("M.8")
@pytest.mark.parametrize("kv", ["f16", "f32"])
def test_softmax_survives_enormous_scores(device: Device, kv: str) -> None:
    """Scores of +-20,000, whose exponentials no float holds, over two chunks: the answer is the best key's value."""
    heads, length = Heads(1, 1, 64), 300
    for best in (0, 255, 256, 299):
        rig = Rig(device, heads, kv, length)
        qkv = np.zeros((length, 3, 64), np.float32)
        qkv[:, 0, 31] = 400  # the slowest pair turns by 0.04 over 300 positions, so scores keep their sign
        qkv[:, 1, 31] = -400
        qkv[best, 1, 31] = 400
        qkv[:, 2, 0] = np.arange(1, length + 1) / 8
        got = rig.play(qkv.reshape(length, -1), np.arange(length), np.arange(5)[None])[-1]
        np.testing.assert_allclose(got, [(best + 1) / 8] + 63 * [0], rtol=1e-3, atol=1e-6)


@pytest.mark.row("H.20")
@pytest.mark.parametrize("kv", ["f16", "int8", "f32"])
def test_nan_reaches_the_rows_that_read_it_and_no_other(device: Device, rng: np.random.Generator, kv: str) -> None:
    heads = Heads(2, 1, 16)
    rig = Rig(device, heads, kv, 6)
    qkv = rng.standard_normal((6, heads.width)).astype(np.float32)
    qkv[3, -3] = np.nan
    got = rig.play(qkv, np.arange(6), np.array([[0]]))
    assert np.isfinite(got[:3]).all()
    assert np.isnan(got[3:]).any(axis=1).all()


@pytest.mark.row("H.1")
def test_positions_and_pages_outside_are_refused_before_anything_is_written(device: Device) -> None:
    heads = Heads(2, 1, 16)
    rig = Rig(device, heads, "f16", 70)  # four pages, RoPE for 70 positions
    qkv = np.ones((1, heads.width), np.float32)
    for at, pages, words in (
        ([70], [[0, 1]], "position 70 is outside the context of 70"),
        ([64], [[0]], "64 positions"),
        ([0], [[4]], "page 4 is outside the cache of 4"),
    ):
        with pytest.raises(BadShape, match=words):
            rig.play(qkv, np.array(at), np.array(pages))
    assert not device.read(rig.cache.keys).any() and not device.read(rig.cache.values).any()


@pytest.mark.row("H.3", "H.4", "M.10")
@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((4, 0, 64), "not a multiple of 0 KV heads"),
        ((0, 1, 64), "0 query heads"),
        ((5, 2, 64), "5 query heads are not a multiple of 2"),
        ((4, 2, 63), "head_dim is 63"),
        ((4, 2, 0), "head_dim is 0"),
        ((4, 2, 258), "head_dim is 258, an even number from 2 to 256"),
        ((4, 2, 64, "quarter"), "pairing 'quarter' is unknown"),
    ],
)
def test_heads_that_no_kernel_computes_are_refused(shape, words: str) -> None:
    with pytest.raises(BadShape, match=words):
        Heads(*shape)


@pytest.mark.row("H.7", "H.9", "S0.5", "S0.8", "H.22", "T.11")
def test_a_cache_of_other_dimensions_is_refused_and_keeps_its_content(device: Device, rng: np.random.Generator) -> None:
    heads = Heads(2, 1, 16)
    rig = Rig(device, heads, "f16", 8)
    qkv = rng.standard_normal((4, heads.width)).astype(np.float32)
    rig.play(qkv, np.arange(4), np.array([[0]]))
    before = device.read(rig.cache.keys)
    good = rig.cache
    wrong = (
        LayerCache.allocate(device, "c", "f16", (2, 1, PAGE, 32)),
        LayerCache.allocate(device, "c", "f16", (2, 2, PAGE, 16)),
        replace(LayerCache.allocate(device, "c", "int8", (2, 1, PAGE, 16)), key_scales=None),
        LayerCache.allocate(another(device), "c", "f16", (2, 1, PAGE, 16)),
    )
    for cache in wrong:
        rig.cache = cache
        with pytest.raises(BadShape, match="attend"):
            rig.play(qkv, np.arange(4), np.array([[0]]))
    np.testing.assert_array_equal(device.read(good.keys), before)


def page_of(device: Device, buffer: Buffer, page: int) -> NDArray[Any]:
    """One page of a cache, without a copy of the others."""
    if device.name != "cuda":
        return buffer.storage[page]
    values = np.empty(buffer.shape[1:], buffer.dtype)
    device.driver.download(values, buffer.storage.pointer + page * values.nbytes)
    return values


@pytest.mark.row("H.11", "S0.4")
def test_a_cache_of_more_than_2_32_elements(device: Device, rng: np.random.Generator) -> None:
    """The last page of 2^32 + 2^20 elements is found: a 32-bit offset would land in page 0. Memory is only touched
    where it is written."""
    heads = Heads(64, 64, 256)
    pages = 2**32 // (64 * PAGE * 256) + 1
    qkv = rng.standard_normal((2, heads.width)).astype(np.float32)
    rig = Rig(device, heads, "int8", 2)
    want = rig.play(qkv, np.arange(2), np.array([[0]]))
    try:
        rig.cache = LayerCache.allocate(device, "c", "int8", (pages, 64, PAGE, 256))
    except OutOfMemory as error:
        pytest.skip(str(error))
    np.testing.assert_array_equal(rig.play(qkv, np.arange(2), np.array([[pages - 1]])), want)
    assert not page_of(device, rig.cache.keys, 0).any() and page_of(device, rig.cache.keys, pages - 1).any()
