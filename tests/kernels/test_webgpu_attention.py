"""Attention on WebGPU: the tests of every device, and what this device alone can get wrong."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import bounds
import numpy as np
import opening
import packing
import pytest
import test_attend
import test_joint
from opening import open_webgpu
from oracle import EPS, rope_table

from shohin.devices import Buffer, Device, Step
from shohin.devices.webgpu import WebGpu
from shohin.devices.webgpu.dispatch import Part
from shohin.devices.webgpu.shader import assemble
from shohin.errors import KernelBuild
from shohin.kernels.attend import Heads, LayerCache, QKNorm, attend
from shohin.kernels.attend.webgpu import dispatches
from shohin.kernels.joint_attention import joint_attention

POISON = np.float32(-7.0e33)


@pytest.fixture
def webgpu() -> WebGpu:
    """One tier: these kernels use neither subgroups nor float16, so there is nothing that tiers change."""
    shared = open_webgpu("plain")
    assert isinstance(shared, WebGpu)
    return shared


@pytest.fixture
def device(webgpu: WebGpu) -> Device:
    """Counters and pools of its own, over an adapter that keeps its kernels."""
    made = WebGpu(webgpu.adapter, webgpu.tier)
    made.gpu = webgpu.gpu
    return made


# The oracles, derived bounds and mutants of the other devices, with this one in their place.
test_attention_against_plain_float64 = test_attend.test_attention_against_plain_float64
test_grouped_causal_attention_against_torch = test_attend.test_grouped_causal_attention_against_torch
test_rope_vector_of_the_format_document = test_attend.test_rope_vector_of_the_format_document
test_chunks_of_keys_join_without_a_seam = test_attend.test_chunks_of_keys_join_without_a_seam
test_pages_in_any_order_and_sequences_side_by_side = test_attend.test_pages_in_any_order_and_sequences_side_by_side
test_any_split_into_steps_gives_the_same_rows = test_attend.test_any_split_into_steps_gives_the_same_rows
test_f16_store_rounds_once_to_nearest_even = test_attend.test_f16_store_rounds_once_to_nearest_even
test_rows_read_their_own_key_as_rounded = test_attend.test_rows_read_their_own_key_as_rounded
test_int8_cache_error_is_half_a_step_of_an_f16_scale = test_attend.test_int8_cache_error_is_half_a_step_of_an_f16_scale
test_int8_cache_rounds_half_to_even = test_attend.test_int8_cache_rounds_half_to_even
test_softmax_survives_enormous_scores = test_attend.test_softmax_survives_enormous_scores
test_nan_reaches_the_rows_that_read_it_and_no_other = test_attend.test_nan_reaches_the_rows_that_read_it_and_no_other
test_joint_against_plain_float64 = test_joint.test_against_plain_float64
test_joint_against_torch = test_joint.test_against_torch
test_more_than_2048_tokens = test_joint.test_more_than_2048_tokens
test_residencies_agree_bit_for_bit = test_joint.test_residencies_agree_bit_for_bit
test_resident_calls_out_of_order = test_joint.test_resident_calls_out_of_order
test_positions_and_pages_outside_are_refused_before_anything_is_written = (
    test_attend.test_positions_and_pages_outside_are_refused_before_anything_is_written
)
test_a_cache_of_other_dimensions_is_refused_and_keeps_its_content = (
    test_attend.test_a_cache_of_other_dimensions_is_refused_and_keeps_its_content
)
test_counters_prove_the_residency = test_joint.test_counters_prove_the_residency
test_shapes_are_checked_in_order = test_joint.test_shapes_are_checked_in_order
test_failed_growth_keeps_the_old_set = test_joint.test_failed_growth_keeps_the_old_set


@pytest.mark.row("S3.46")
def test_no_tier_changes_a_kernel(webgpu: Device) -> None:
    """Every tier compiles the same text but for the line that turns float16 on."""
    tape = webgpu.recorder("test", 1)
    cache = LayerCache.allocate(webgpu, "c", "f16", (1, 1, 64, 16))
    heads = Heads(2, 1, 16)
    buffers = [webgpu.buffer(name, shape) for name, shape in (("qkv", (1, 64)), ("rope", (4, 16)), ("out", (1, 32)))]
    attend(tape, buffers[0], cache, buffers[1], buffers[2], heads=heads, eps=EPS)
    texts = []
    for subgroups, f16 in ((False, False), (True, False), (False, True), (True, True)):
        target = replace(webgpu.target(1, 1), subgroups=subgroups, f16=f16)
        made = dispatches(tape.calls[0], target)
        texts.append([assemble(d, target).text.replace("enable f16;\n", "") for d in made])
        assert len(made) == 2
    assert texts.count(texts[0]) == 4


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("kv", ["f16", "int8", "f32"])
def test_two_dispatches_and_no_buffer_bound_twice(webgpu: Device, kv: str, rows: int) -> None:
    heads = Heads(4, 2, 128)
    cache = LayerCache.allocate(webgpu, "c", kv, (2, 2, 64, 128))
    norm = QKNorm(*(packing.vector(webgpu, n, np.ones(128)) for n in "qk"))
    tape = webgpu.recorder("test", rows)
    shapes = (("qkv", (rows, heads.width)), ("rope", (128, 128)), ("out", (rows, 512)))
    qkv, rope, out = (webgpu.buffer(name, shape) for name, shape in shapes)
    attend(tape, qkv, cache, rope, out, heads=heads, norm=norm, eps=EPS)
    target = webgpu.target(rows, rows)
    made = dispatches(tape.calls[0], target)
    assert len(made) == 2
    for one in made:
        assert len(one.bindings) <= (10 if kv == "int8" else 8)
        arguments = [b.argument if not isinstance(b.argument, Part) else b.argument.weight for b in one.bindings]
        assert len(set(map(id, arguments))) == len(arguments)
    if kv == "int8":
        with pytest.raises(KernelBuild, match="10 storage buffers in one dispatch, this adapter has 8"):
            dispatches(tape.calls[0], replace(webgpu.target(1, 1), limits=replace(target.limits, bindings=8)))


@dataclass
class Rig:
    """A cache whose every value is poison until it is stored, and tapes of several capacities over it."""

    device: Device
    heads: Heads
    kv: str
    pages: int
    page: int = 64
    context: int = 600
    norms: tuple[np.ndarray, np.ndarray] | None = None
    cache: LayerCache = field(init=False)
    rope: Buffer = field(init=False)

    def __post_init__(self) -> None:
        self.cache = LayerCache.allocate(
            self.device, "c", self.kv, (self.pages, self.heads.kv, self.page, self.heads.dim)
        )
        for buffer in (self.cache.keys, self.cache.values, self.cache.key_scales, self.cache.value_scales):
            if buffer is not None:
                stale = np.nan if buffer.dtype.kind == "f" else 101
                self.device.write(buffer, np.full(buffer.shape, stale, buffer.dtype))
        self.rope = self.device.buffer("rope", (self.context, self.heads.dim))
        self.device.write(self.rope, rope_table(self.context, self.heads.dim).astype(np.float32))

    def play(self, qkv: np.ndarray, step: Step, capacity: int | None = None) -> np.ndarray:
        """The live rows of one play of a tape of ``capacity`` rows; what lies behind them stays poison."""
        rows = capacity or len(qkv)
        whole = np.full((rows, self.heads.width), np.nan, np.float32)
        whole[: len(qkv)] = qkv
        inputs, out = self.device.buffer("qkv", whole.shape), self.device.buffer("out", (rows, self._width))
        self.device.write(inputs, whole)
        self.device.write(out, np.full((rows, self._width), POISON))
        norm = None
        if self.norms is not None:
            norm = QKNorm(*(packing.vector(self.device, n, w) for n, w in zip("qk", self.norms, strict=True)))
        tape = self.device.recorder("test", rows)
        attend(tape, inputs, self.cache, self.rope, out, heads=self.heads, norm=norm, eps=EPS)
        tape.output("out", out, "all")
        got: np.ndarray = tape.finish().play(step, ("out",))["out"]
        assert (got[len(qkv) :] == POISON).all(), "rows that are not live are left alone"
        return got[: len(qkv)]

    @property
    def _width(self) -> int:
        return self.heads.query * self.heads.dim


def one_sequence(begin: int, end: int, table: np.ndarray) -> Step:
    return Step.of(np.zeros(end - begin, int), positions=np.arange(begin, end), pages=table)


def rows_of(rng: np.random.Generator, heads: Heads, rows: int) -> np.ndarray:
    return rng.standard_normal((rows, heads.width)).astype(np.float32)


SHAPES = [
    (Heads(3, 1, 80), 64),
    (Heads(9, 1, 256), 16),
    (Heads(2, 1, 6, "adjacent"), 48),
    (Heads(5, 5, 2), 7),
    (Heads(16, 2, 34), 64),
]


@pytest.mark.row("M.1", "M.4", "M.5", "M.7", "M.8", "M.9", "M.10", "S0.3", "S0.14")
@pytest.mark.parametrize("kv", ["f16", "int8", "f32"])
@pytest.mark.parametrize(
    ("heads", "page"), SHAPES, ids=lambda x: str(x) if isinstance(x, int) else f"{x.query}x{x.dim}"
)
def test_attention_is_the_host_s(webgpu: Device, rng: np.random.Generator, heads: Heads, page: int, kv: str) -> None:
    """Odd widths, groups and pages; the steps hold many rows, one row, and one row in a tape for more.

    |d out| <= sum p |dv| + 2 max|ds| max|v| for scores off by ds: a dot product's gamma, q and k off by their norm and
    rotation. A stored value may round the other way where k or v differs in its last bit: half a step of the cache.
    """
    total = 66
    norms = (1 + 0.1 * rng.standard_normal(heads.dim), 1 + 0.1 * rng.standard_normal(heads.dim))
    qkv = rows_of(rng, heads, total)
    table = rng.permutation(2 * -(-total // page))[: -(-total // page)][None]
    results = []
    for device in (opening.host(), webgpu):
        rig = Rig(device, heads, kv, table.max() + 1, page, norms=norms)
        cuts = ((0, 31, 40), (31, 32, 1), (32, 33, 4), (33, 65, 32), (65, 66, 1))
        results.append(np.concatenate([rig.play(qkv[a:b], one_sequence(a, b, table), rows) for a, b, rows in cuts]))
    size = 3.0 * np.sqrt(heads.dim)  # length of a normed and rotated q or k, with room for its weight
    step = {"f16": 2.0**-10, "int8": 1 / 127, "f32": 2.0**-22}[kv] * size / 2
    score = (bounds.gamma(webgpu, heads.dim + 20) * size**2 + step) / np.sqrt(heads.dim)
    top = float(np.abs(qkv[:, -heads.kv * heads.dim :]).max())
    bound = 2 * score * top + 100 * 2.0**-24 * top
    if kv == "f32":
        bounds.check(results[1], results[0], bound, {"neighbour's row": np.roll(results[0], 1, axis=0)})
    assert bounds.within(results[1], results[0], bound)
    # Nearly every bit is the same: what differs is a few last places, not a few rounded keys.
    assert np.median(np.abs(results[1] - results[0])) < 1e-6


@pytest.mark.row("M.16", "E.5", "E.7", "E.9", "E.13")
@pytest.mark.parametrize("kv", ["f16", "int8", "f32"])
def test_bits_depend_on_nothing_but_the_row(webgpu: Device, rng: np.random.Generator, kv: str) -> None:
    """One row a tape, where chunks are shared out, and many rows a tape, where they are not: the same bits at the
    borders of pages and chunks, over other histories of stale pages."""
    heads, total = Heads(6, 2, 32), 515
    qkv = rows_of(rng, heads, total)
    pages = -(-total // 64)
    norms = (1 + 0.1 * rng.standard_normal(32), 1 + 0.1 * rng.standard_normal(32))
    whole = Rig(webgpu, heads, kv, pages, norms=norms)
    want = whole.play(qkv, one_sequence(0, total, np.arange(pages)[None]))
    assert np.isfinite(want).all()
    table = rng.permutation(pages + 3)[:pages][None]
    rig = Rig(webgpu, heads, kv, pages + 3, norms=norms)
    done = 0
    for at in (0, 1, 63, 64, 127, 254, 255, 256, 257, 511, 512, 513):
        if at > done:
            np.testing.assert_array_equal(rig.play(qkv[done:at], one_sequence(done, at, table), at), want[done:at])
        got = rig.play(qkv[at : at + 1], one_sequence(at, at + 1, table))
        np.testing.assert_array_equal(got, want[at : at + 1], err_msg=f"position {at}")
        done = at + 1
    assert not np.array_equal(want[512], want[513])


@pytest.mark.row("H.10", "E.13", "M.8")
@pytest.mark.parametrize("kv", ["f16", "int8"])
def test_rows_of_several_sequences_in_one_step(webgpu: Device, rng: np.random.Generator, kv: str) -> None:
    """Sequences of lengths on both sides of a chunk, rows dealt at random: each row is what it is alone."""
    heads, lengths = Heads(4, 2, 16), (300, 257, 30)
    where = np.array([(s, t) for s, n in enumerate(lengths) for t in range(n)])
    qkv = rows_of(rng, heads, len(where))
    table = rng.permutation(18)[:15].reshape(3, 5)
    late = rng.permutation([i for i, (s, t) in enumerate(where) if t >= lengths[s] - 5])
    early = np.setdiff1d(np.arange(len(where)), late)
    rig = Rig(webgpu, heads, kv, 18)
    got = {}
    for rows in (early, late):
        step = Step.of(np.zeros(len(rows), int), positions=where[rows, 1], sequences=where[rows, 0], pages=table)
        got |= dict(zip(rows.tolist(), rig.play(qkv[rows], step, len(rows) + 2), strict=True))
    for s, n in enumerate(lengths):
        own = np.flatnonzero(where[:, 0] == s)
        alone = Rig(webgpu, heads, kv, 5).play(qkv[own], one_sequence(0, n, np.arange(5)[None]))
        np.testing.assert_array_equal(np.stack([got[i] for i in own.tolist()]), alone)


@pytest.mark.row("H.20", "E.13", "M.8")
@pytest.mark.parametrize("kv", ["f16", "int8", "f32"])
def test_what_is_not_seen_never_enters(webgpu: Device, rng: np.random.Generator, kv: str) -> None:
    """A broken row reaches itself and later rows only, also in the play of one row; stale pages hold NaN throughout."""
    heads, table = Heads(4, 2, 32), np.array([[2, 0]])
    qkv = rows_of(rng, heads, 66)
    want = Rig(webgpu, heads, kv, 3).play(qkv, one_sequence(0, 66, table))
    broken = qkv.copy()
    broken[20, heads.query * heads.dim :] = np.nan
    rig = Rig(webgpu, heads, kv, 3)
    got = rig.play(broken[:65], one_sequence(0, 65, table), 80)
    np.testing.assert_array_equal(got[:20], want[:20])
    assert np.isnan(got[20:]).all()
    assert np.isnan(rig.play(broken[65:], one_sequence(65, 66, table))).all()
    alone = Rig(webgpu, heads, kv, 3)
    alone.play(qkv[:20], one_sequence(0, 20, table))
    assert np.isnan(alone.play(broken[20:21], one_sequence(20, 21, table))).all()
    np.testing.assert_array_equal(alone.play(qkv[20:21], one_sequence(20, 21, table)), want[20:21])


@pytest.mark.row("M.1", "M.17")
def test_every_half_is_stored_and_read_as_numpy_has_it(webgpu: Device, rng: np.random.Generator) -> None:
    """All finite float16 bit patterns, and floats just beside the middle of two of them, through the value cache.

    Row 0 attends to itself alone, so what it reads back is its value.
    """
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = np.sort(halves[np.isfinite(halves)].astype(np.float32))
    middle = (finite[1:] + finite[:-1]) / 2
    beside = np.nextafter(middle, rng.choice(np.float32([-np.inf, np.inf]), len(middle)))
    values = np.concatenate((finite, middle, beside, np.float32([65519.99, 65520, -65520, 1e30, np.inf])))
    values = np.pad(values, (0, -len(values) % 4096)).reshape(-1, 16, 256)
    heads = Heads(16, 16, 256)
    for part in values:
        qkv = np.zeros((1, 3, 16, 256), np.float32)
        qkv[0, 2] = part
        rig = Rig(webgpu, heads, "f16", 1)
        got = rig.play(qkv.reshape(1, -1), one_sequence(0, 1, np.array([[0]]))).reshape(16, 256)
        with np.errstate(over="ignore"):
            want = part.astype(np.float16)
        stored = webgpu.read(rig.cache.values)[0, :, 0]
        np.testing.assert_array_equal(stored.view(np.uint16), want.view(np.uint16))
        seen = np.isfinite(want)
        np.testing.assert_array_equal(got[seen], want[seen].astype(np.float32))


@pytest.mark.parametrize("kv", ["f16", "int8", "f32"])
def test_wide_heads_fit_the_smallest_workgroups(
    webgpu: WebGpu, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, kv: str
) -> None:
    """Where there are only the 16 KiB that every adapter has, heads of 256 are loaded pair by pair."""
    heads, table = Heads(4, 2, 256), np.array([[1, 0]])
    qkv = rows_of(rng, heads, 70)

    def play() -> np.ndarray:
        rig = Rig(webgpu, heads, kv, 2)
        many = rig.play(qkv[:69], one_sequence(0, 69, table))
        return np.concatenate((many, rig.play(qkv[69:], one_sequence(69, 70, table))))

    large = play()
    monkeypatch.setattr(webgpu.gpu, "limits", replace(webgpu.gpu.limits, shared=16 << 10))
    small = play()
    assert 0 < np.abs(small - large).max() < 1e-5
    assert np.abs(small[1:] - large[:-1]).max() > 1e-5


@pytest.mark.row("M.16")
def test_a_hundred_plays_have_the_same_bits(webgpu: Device, rng: np.random.Generator) -> None:
    heads = Heads(4, 2, 64)
    qkv = rows_of(rng, heads, 300)
    rig = Rig(webgpu, heads, "f16", 5)
    table = np.arange(5)[None]
    rig.play(qkv[:299], one_sequence(0, 299, table))
    inputs, out = webgpu.buffer("qkv", (1, heads.width)), webgpu.buffer("out", (1, 256))
    webgpu.write(inputs, qkv[299:])
    tape = webgpu.recorder("test", 1)
    attend(tape, inputs, rig.cache, rig.rope, out, heads=heads, eps=EPS)
    tape.output("out", out, "all")
    played, step = tape.finish(), one_sequence(299, 300, table)
    want = played.play(step, ("out",))["out"]
    before = webgpu.allocations, webgpu.submissions
    for _ in range(100):
        np.testing.assert_array_equal(played.play(step, ("out",))["out"], want)
    assert (webgpu.allocations, webgpu.submissions) == (before[0], before[1] + 100)


@pytest.mark.row("S3.23", "S3.25")
@pytest.mark.parametrize(
    "shape", [(1, 1, 8), (3, 17, 64), (2, 300, 128), (1, 40, 7), (2, 9, 1), (1, 257, 129)], ids=str
)
def test_joint_attention_leaves_nothing_out(
    webgpu: Device, rng: np.random.Generator, shape: tuple[int, int, int]
) -> None:
    """Every value of a poisoned output is written, whatever the tokens of a tile; the bound is that of the cpu test."""
    heads, tokens, dim = shape
    inputs = [rng.standard_normal((heads * tokens, dim)).astype(np.float32) for _ in range(3)]

    def play(device: Device) -> np.ndarray:
        buffers = [device.buffer(name, a.shape) for name, a in zip("qkv", inputs, strict=True)]
        for buffer, values in zip(buffers, inputs, strict=True):
            device.write(buffer, values.astype(device.float_type))
        out = device.buffer("out", (tokens, heads * dim))
        device.write(out, np.full(out.shape, POISON, device.float_type))
        tape = device.recorder("test", 1)
        joint_attention(tape, *buffers, out, heads=heads)
        tape.output("out", out, "all")
        result: np.ndarray = tape.finish().play(Step.rows_only(1), ("out",))["out"]
        return result

    want, got = play(opening.host("float64")), play(webgpu)
    q, k, v = inputs
    longest = np.linalg.norm(q, axis=1).max() * np.linalg.norm(k, axis=1).max()
    score = bounds.gamma(webgpu, dim + 4) * longest / np.sqrt(dim)
    bound = np.abs(v).max() * (2 * score + bounds.gamma(webgpu, tokens + 12))
    mutants = {"tokens in reverse": want[::-1]} if tokens > 1 else {"zero": np.zeros_like(want)}
    bounds.check(got, want, bound, mutants)
