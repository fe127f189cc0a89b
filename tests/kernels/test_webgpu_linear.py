"""The linear ops through WebGPU: whole numbers exactly, float sums within derived bounds, a row's bits its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import bounds
import numpy as np
import packing
import pytest
from numpy.typing import NDArray
from test_cuda_plain import EPS, POISON, Play, check_exact, float64_of, product, rows_of, tensor, tolerance

from shohin.devices import Buffer, Device, Recorder, Step
from shohin.devices.webgpu import WebGpu, choose, shader
from shohin.errors import UnsupportedFormat
from shohin.formats.blocks import FORMATS
from shohin.formats.tensor import Tensor
from shohin.kernels.embed import embed
from shohin.kernels.gemm import gemm
from shohin.kernels.linear_add import linear_add
from shohin.kernels.norm_linear import norm_linear
from shohin.kernels.norm_swiglu import FeedForward, norm_swiglu

BLOCKS = ("Q1_0", "PQ2_0", "Q2_0", "Q4_0", "Q4_1", "Q8_0")
# Rows of weights, inputs, capacity and live rows: one row, few, a tile that is not full, more than a tile.
SHAPES = [(13, 512, 1, 1), (9, 1280, 3, 2), (70, 768, 8, 7), (6, 2304, 70, 66)]


def copy_of(made: Tensor) -> Tensor:
    """What ``pack`` may take the bytes of."""
    return Tensor(made.name, made.shape, made.format, made.data.copy())


@dataclass(frozen=True)
class Terms:
    """What each block adds to each output in int8 mode, float64 [blocks, M, N]."""

    each: NDArray[np.float64]

    @classmethod
    def of(cls, made: Tensor, x: NDArray[np.float32]) -> Terms:
        codes, block = made.format.unpack(made.raw()), made.format.block
        grouped = x.reshape(len(x), -1, block)
        a = np.abs(grouped).max(axis=2)
        inverse = np.divide(np.float32(127), a, out=np.zeros_like(a), where=a >= 1.5e-36)
        q = np.rint(grouped * inverse[..., None]).astype(np.float64)
        whole = np.einsum("mbk,nbk->bmn", q, codes.code.astype(np.float64))
        scale = codes.scale.astype(np.float64).T[:, None, :]
        terms = whole * scale
        if codes.minimum is not None:
            terms = terms + codes.minimum.astype(np.float64).T[:, None, :] * q.sum(axis=2).T[:, :, None]
        return cls(terms * (a.astype(np.float64) / 127).T[:, :, None])

    @property
    def sums(self) -> NDArray[np.float64]:
        return self.each.sum(axis=0)

    @property
    def bound(self) -> NDArray[np.float64]:
        """Sums of B terms of six roundings each, two of a driver's division by 127 of 2.5 units (Vulkan, WGSL)."""
        roundings = len(self.each) + 10
        return roundings * 2.0**-24 * np.abs(self.each).sum(axis=0) + 1e-300


@pytest.mark.row("M.18", "S3.14")
@pytest.mark.parametrize("fmt", BLOCKS)
@pytest.mark.parametrize(("n", "k", "m", "live"), SHAPES)
def test_int8_products(webgpu: Device, rng: np.random.Generator, fmt: str, n: int, k: int, m: int, live: int) -> None:
    made, x = tensor(rng, fmt, n, k), rows_of(rng, m, k)
    got = product(webgpu, made, x, "int8", live)
    assert (got[live:] == POISON).all()
    terms = Terms.of(made, x[:live])
    # A block too many, a code of one input off by one, and the weights' offset forgotten.
    off = Terms.of(made, np.where(np.arange(k) == k // 2, np.float32(1.01), np.float32(1)) * x[:live])
    mutants = {"last block twice": terms.sums + terms.each[-1], "rows exchanged": np.roll(terms.sums, 1, axis=1)}
    if (off.sums != terms.sums).any():
        mutants["an input a little larger"] = off.sums
    bounds.check(got[:live], terms.sums, terms.bound, mutants)


@pytest.mark.row("M.18")
@pytest.mark.parametrize("fmt", BLOCKS)
@pytest.mark.parametrize("m", [1, 5])
def test_integer_sums_are_exact(webgpu: Device, rng: np.random.Generator, fmt: str, m: int) -> None:
    """Scales that are powers of two: nothing is rounded, whether a driver fuses or not, so every code counts."""
    made = tensor(rng, fmt, 21, 512)
    head = 4 if fmt == "Q4_1" else 2
    blocks = made.data.reshape(-1, made.format.block_bytes)
    scales = np.exp2(rng.integers(-3, 2, (len(blocks), head // 2))).astype(np.float16)
    blocks[:, :head] = scales.view(np.uint8).reshape(len(blocks), head)
    blocks[:, head:] = rng.integers(0, 256, (len(blocks), made.format.block_bytes - head), np.uint8)
    x = rng.integers(-127, 128, (m, 512)).astype(np.float32)
    x[:, :: made.format.block] = 127
    want = x.astype(np.float64) @ made.decode().astype(np.float64).T
    np.testing.assert_array_equal(product(webgpu, made, x, "int8"), want)
    np.testing.assert_array_equal(product(webgpu, made, x * np.float32(2.0**-20), "int8"), want * 2.0**-20)
    forgotten = want - x[:, -1:].astype(np.float64) @ made.decode()[:, -1:].astype(np.float64).T
    assert (forgotten != want).any(), "the last input matters"


@pytest.mark.row("M.18")
def test_codes_of_every_size_are_those_of_the_host(webgpu: Device, rng: np.random.Generator) -> None:
    """127 / a is rounded as IEEE division is, for every exponent: weights of 1, 0, ... 0 show single codes."""
    k, m = 1024, 64
    identity = packing.tensor("w", "Q8_0", np.eye(32, k, dtype=np.float32) * 127)
    a = np.exp2(rng.uniform(-110, 110, (m, k // 32))).astype(np.float32)
    x = (rng.uniform(-1, 1, (m, k // 32, 32)) * a[..., None]).astype(np.float32)
    x[:, :, 31] = a
    # Inputs at the edge between two codes, where a wrong last bit of 127 / a shows.
    edges = rng.integers(-120, 120, (m, k // 32, 16)) + 0.5
    x[:, :, :16] = (edges / (np.float32(127) / a)[..., None].astype(np.float64)).astype(np.float32)
    x = x.reshape(m, k)
    got = product(webgpu, identity, x, "int8")
    terms = Terms.of(identity, x)
    scale = np.abs(x[:, :32]).max(axis=1, keepdims=True).astype(np.float64) / 127
    np.testing.assert_array_equal(np.rint(got / scale), np.rint(terms.sums / scale))
    careless = np.rint(x[:, :32] * ((np.float32(127) / a[:, :1]) * np.float32(1 + 2.0**-22)))
    assert (careless != np.rint(terms.sums / scale)).any(), "two units in the last place would show"


@pytest.mark.row("M.2", "M.11", "S3.14")
@pytest.mark.parametrize("fmt", [*BLOCKS, *packing.FLOATS])
@pytest.mark.parametrize(("n", "k", "m", "live"), SHAPES[:3])
def test_exact_products(webgpu: Device, rng: np.random.Generator, fmt: str, n: int, k: int, m: int, live: int) -> None:
    made, x = tensor(rng, fmt, n, k), rows_of(rng, m, k)
    got = product(webgpu, made, x, "exact", live)
    assert (got[live:] == POISON).all()
    check_exact(webgpu, made, x[:live], got[:live])


@pytest.mark.row("S3.17")
@pytest.mark.parametrize("fmt", packing.FLOATS)
@pytest.mark.parametrize("k", [1, 7, 36, 333])
def test_plain_numbers_of_any_width(webgpu: Device, rng: np.random.Generator, fmt: str, k: int) -> None:
    for m in (1, 9):
        made, x = tensor(rng, fmt, 11, k), rows_of(rng, m, k)
        found = product(webgpu, made, x, "exact")
        check_exact(webgpu, made, x, found)
        np.testing.assert_array_equal(product(webgpu, made, x, "int8"), found)


@pytest.mark.row("M.16")
@pytest.mark.parametrize("mode", ["int8", "exact"])
@pytest.mark.parametrize("fmt", ["Q1_0", "PQ2_0", "Q4_1", "Q8_0", "F16"])
def test_a_row_does_not_depend_on_its_neighbours(webgpu: Device, rng: np.random.Generator, fmt: str, mode: str) -> None:
    made, x = tensor(rng, fmt, 70, 768), rows_of(rng, 40, 768)
    alone = product(webgpu, made, x[4:5], mode)
    for some in (x[4:6], x[1:8], x[:14], x[:28], x):
        at = int(np.flatnonzero((some == x[4]).all(axis=1))[0])
        np.testing.assert_array_equal(product(webgpu, made, some, mode)[at], alone[0])


@pytest.mark.row("M.16")
@pytest.mark.parametrize("mode", ["int8", "exact"])
def test_tiers_agree_bit_by_bit(rng: np.random.Generator, mode: str) -> None:
    from opening import WEBGPU, open_device

    opened = [open_device(name) for name in WEBGPU]
    made, x = tensor(rng, "Q1_0", 12, 2560), rows_of(rng, 3, 2560)
    norm = (1 + 0.3 * rng.standard_normal(2560)).astype(np.float32)
    found = []
    for device in opened:
        weight, vector = device.pack(copy_of(made)), packing.vector(device, "norm", norm)

        def record(tape: Recorder, ins: Sequence[Buffer], out: Buffer, w=weight, v=vector) -> None:  # type: ignore[no-untyped-def]
            norm_linear(tape, ins[0], v, [w], out, eps=EPS, activations=mode)

        found.append(Play(device, record)((x,), np.full((3, 12), POISON), Step.rows_only(3)))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.row("M.16")
@pytest.mark.parametrize("mode", ["int8", "exact"])
@pytest.mark.parametrize("fmt", ["Q1_0", "PQ2_0", "Q4_0", "Q4_1", "Q8_0", "F16"])
def test_tiles_of_every_height_give_the_same_bits(
    webgpu: WebGpu, rng: np.random.Generator, fmt: str, mode: str
) -> None:
    """One, two and four rows a thread: the fewer, the more workgroups are wanted; beside each row alone."""
    made, x = tensor(rng, fmt, 70, 512), rows_of(rng, 70, 512)
    usual, found = webgpu.workgroups, []
    try:
        for webgpu.workgroups in (1, 10, 5000):
            found.append(product(webgpu, made, x, mode))
    finally:
        webgpu.workgroups = usual
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
    for row in (0, 31, 63, 69):
        np.testing.assert_array_equal(product(webgpu, made, x[row : row + 1], mode)[0], found[0][row])


@pytest.mark.row("M.16")
@pytest.mark.parametrize("mode", ["int8", "exact"])
@pytest.mark.parametrize(("fmt", "n", "k"), [("Q1_0", 1030, 512), ("Q4_1", 70, 2560), ("F16", 1030, 96)])
def test_any_number_of_workgroups_gives_the_same_bits(
    webgpu: WebGpu, rng: np.random.Generator, fmt: str, n: int, k: int, mode: str
) -> None:
    """One workgroup that takes all rows in rounds, and more workgroups than rows."""
    made, x = tensor(rng, fmt, n, k), rows_of(rng, 1, k)
    usual, found = webgpu.workgroups, []
    try:
        for webgpu.workgroups in (1, 3, 16, 256, 5000):
            found.append(product(webgpu, made, x, mode))
    finally:
        webgpu.workgroups = usual
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.row("M.15")
@pytest.mark.parametrize("m", [1, 5])
def test_residual(webgpu: Device, rng: np.random.Generator, m: int) -> None:
    made, x = tensor(rng, "PQ2_0", 10, 768), rows_of(rng, m, 768)
    hidden = rng.standard_normal((m, 10)).astype(np.float32)
    weight = webgpu.pack(copy_of(made))
    play = Play(webgpu, lambda tape, ins, out: linear_add(tape, ins[0], weight, out, activations="int8"))
    live = max(1, m - 1)
    got = play((x,), hidden, Step.rows_only(live))
    np.testing.assert_array_equal(got[live:], hidden[live:])
    # One addition at the end, of the product's own bits.
    np.testing.assert_array_equal(got[:live], hidden[:live] + product(webgpu, made, x, "int8")[:live])


@pytest.mark.row("M.3", "S0.14")
@pytest.mark.parametrize("mode", ["int8", "exact"])
@pytest.mark.parametrize("kinds", [("Q1_0",) * 3, ("PQ2_0", "Q4_1", "Q4_1"), ("Q8_0", "F16"), ("Q8_0",) * 4])
@pytest.mark.parametrize("wanted", [[3], [5, 0, 3]])
def test_normed_and_gathered(
    webgpu: Device, rng: np.random.Generator, mode: str, kinds: tuple[str, ...], wanted: list[int]
) -> None:
    k = 768
    made = [tensor(rng, fmt, n, k) for fmt, n in zip(kinds, (9, 4, 70, 3), strict=False)]
    x, norm = rows_of(rng, 6, k), (1 + 0.3 * rng.standard_normal(k)).astype(np.float32)
    x *= np.float32(1e-2)
    weights = [webgpu.pack(copy_of(t)) for t in made]
    vector = packing.vector(webgpu, "norm", norm)
    capacity = 1 if len(wanted) == 1 else 4

    def record(tape: Recorder, ins: Sequence[Buffer], out: Buffer) -> None:
        norm_linear(tape, ins[0], vector, weights, out, eps=EPS, activations=mode, gather=True)

    width = sum(t.shape[0] for t in made)
    step = Step.of(np.zeros(6, int), wanted=np.array(wanted))
    got = Play(webgpu, record)((x,), np.full((capacity, width), POISON), step, wanted=capacity)
    assert (got[len(wanted) :] == POISON).all()
    want = float64_of(made, "linear", x, norm, mode)
    mutants = {
        "rows not gathered": want[: len(wanted)],
        "no norm": float64_of(made, "linear", x, np.ones_like(norm), mode)[wanted],
        "weights exchanged": np.roll(want[wanted], made[-1].shape[0], axis=1),
    }
    bounds.check(got[: len(wanted)], want[wanted], tolerance(made, x, norm)[wanted], mutants)


@pytest.mark.row("M.14", "I.9")
@pytest.mark.parametrize("mode", ["int8", "exact"])
@pytest.mark.parametrize("kinds", [("Q4_1", "Q4_1"), ("PQ2_0", "PQ2_0"), ("Q1_0", "Q4_1"), ("Q1_0", "F16")])
@pytest.mark.parametrize("m", [1, 9])
def test_swiglu(webgpu: Device, rng: np.random.Generator, mode: str, kinds: tuple[str, str], m: int) -> None:
    """Also where gate and up have different formats."""
    k, n = 768, 77
    made = [tensor(rng, fmt, n, k) for fmt in kinds]
    x, norm = rows_of(rng, m, k), (1 + 0.3 * rng.standard_normal(k)).astype(np.float32)
    weights = [webgpu.pack(copy_of(t)) for t in made]
    vector = packing.vector(webgpu, "norm", norm)

    def record(tape: Recorder, ins: Sequence[Buffer], out: Buffer) -> None:
        ffn = FeedForward(vector, weights[0], weights[1], weights[0])
        norm_swiglu(tape, ins[0], ffn, out, eps=EPS, activations=mode)

    live = max(1, m - 1)
    got = Play(webgpu, record)((x,), np.full((m, n), POISON), Step.rows_only(live))
    assert (got[live:] == POISON).all()
    both = float64_of(made, "linear", x, norm, mode)[:live]
    g, u = both[:, :n], both[:, n:]
    error = tolerance(made, x, norm)[:live]
    silu = g / (1 + np.exp(-g))
    # WGSL lets exp(-g) be off by 3 + 2 |g| units in the last place, and a division by 2.5.
    ds = 1.1 * error[:, :n] + (10 + 2 * np.abs(g)) * 2.0**-23 * np.abs(silu)
    bound = ds * (np.abs(u) + error[:, n:]) + np.abs(silu) * error[:, n:] + 2.0**-23 * np.abs(silu * u) + 1e-30
    mutants = {"exchanged": u / (1 + np.exp(-u)) * g, "sigmoid": u / (1 + np.exp(-g))}
    bounds.check(got[:live], silu * u, bound, mutants)


@pytest.mark.row("H.20")
@pytest.mark.parametrize("mode", ["int8", "exact"])
@pytest.mark.parametrize("fmt", ["Q1_0", "Q4_1", "F16"])
def test_broken_values_stay_in_their_row(webgpu: Device, rng: np.random.Generator, mode: str, fmt: str) -> None:
    made, x = tensor(rng, fmt, 7, 512), rows_of(rng, 3, 512)
    whole = product(webgpu, made, x, mode)
    for bad in (np.nan, np.inf, -np.inf):
        broken = x.copy()
        broken[1, 77] = bad
        got = product(webgpu, made, broken, mode)
        assert not np.isfinite(got[1]).any()
        np.testing.assert_array_equal(got[[0, 2]], whole[[0, 2]])
        assert not np.isfinite(product(webgpu, made, broken[1:2], mode)).any()


@pytest.mark.row("M.18")
def test_groups_too_small_for_a_scale_are_zero(webgpu: Device, rng: np.random.Generator) -> None:
    made, x = tensor(rng, "Q8_0", 5, 128), np.full((2, 128), 1.4e-36, np.float32)
    x[1, 32:] = 1
    got = product(webgpu, made, x, "int8")
    assert (got[0] == 0).all()
    terms = Terms.of(made, x)
    bounds.check(got, terms.sums, terms.bound + 1e-30, {"nothing": np.zeros_like(terms.sums)})


@pytest.mark.row("M.2")
@pytest.mark.parametrize("fmt", [*BLOCKS, *packing.FLOATS])
def test_embedded_rows_are_decoded_bit_by_bit(webgpu: Device, rng: np.random.Generator, fmt: str) -> None:
    made = tensor(rng, fmt, 50, 384)
    table = webgpu.pack(copy_of(made))
    out = webgpu.buffer("out", (5, 384))
    webgpu.write(out, np.full((5, 384), POISON))
    tape = webgpu.recorder("embed", 5)
    embed(tape, table, out)
    tape.output("out", out, "all")
    got = tape.finish().play(Step.of([49, 0, 7, 7]), ("out",))["out"]
    np.testing.assert_array_equal(got[:4], made.decode()[[49, 0, 7, 7]])
    assert (got[4] == POISON).all()


@pytest.fixture(scope="module")
def narrow() -> Device:
    """A device whose bindings hold 16 KiB, so that weights come in parts."""
    from opening import open_device

    open_device("webgpu-plain")
    return WebGpu(choose(), "plain", binding=1 << 14)


@pytest.mark.parametrize("m", [1, 4])
@pytest.mark.parametrize(("fmt", "k"), [("PQ2_0", 512), ("Q4_1", 512), ("F16", 130)])
def test_weights_in_parts(narrow: Device, rng: np.random.Generator, fmt: str, k: int, m: int) -> None:
    """The binding limit splits weights by rows; products and embeddings come out as from one piece."""
    made, x = tensor(rng, fmt, 700, k), rows_of(rng, m, k)[:, :k]
    from opening import open_device

    whole = open_device("webgpu-plain")
    weight = narrow.pack(copy_of(made))
    assert len(weight.storage) > 3 and sum(part.rows for part in weight.storage) == 700
    for mode in ("int8", "exact"):
        expected = product(whole, made, x, mode)
        play = Play(narrow, lambda tape, ins, out, a=mode: gemm(tape, ins[0], weight, out, activations=a))
        np.testing.assert_array_equal(play((x,), np.full((m, 700), POISON), Step.rows_only(m)), expected)
    norm = packing.vector(narrow, "norm", np.ones(k))

    def gated(tape: Recorder, ins: Sequence[Buffer], out: Buffer) -> None:
        ffn = FeedForward(norm, weight, weight, weight)
        norm_swiglu(tape, ins[0], ffn, out, eps=EPS, activations="int8")

    got = Play(narrow, gated)((x,), np.full((m, 700), POISON), Step.rows_only(m))
    both = float64_of([made], "linear", x, np.ones(k, np.float32), "int8")
    np.testing.assert_allclose(got, both / (1 + np.exp(-both)) * both, rtol=1e-4, atol=1e-3)
    out = narrow.buffer("out", (2, k))
    tape = narrow.recorder("embed", 2)
    embed(tape, weight, out)
    tape.output("out", out, "all")
    rows = tape.finish().play(Step.of([699, 3]), ("out",))["out"]
    np.testing.assert_array_equal(rows, made.decode()[[699, 3]])


def test_other_formats_are_refused_or_repacked(webgpu: Device, rng: np.random.Generator) -> None:
    for fmt in FORMATS.values():
        made = packing.tensor("w", fmt.name, rng.standard_normal((2, 256)))
        if webgpu.accepts(fmt) == "refused":
            with pytest.raises(UnsupportedFormat, match="webgpu"):
                webgpu.pack(made)
        else:
            assert webgpu.pack(made).source_format is fmt
    assert {f for f in FORMATS if webgpu.accepts(FORMATS[f]) == "native"} == {*BLOCKS, *packing.FLOATS} - {"Q2_0"}


MUTANTS = [
    ("blocks.wgsl", "(word >> (BITS * s)) & MASK", "(word >> (BITS * (s ^ 1u))) & MASK"),
    ("int8_row.wgsl", "c / 2u * 8u + c % 2u + 2u * j", "4u * c + j"),
    ("blocks.wgsl", "heads + i / 2u))[i % 2u]", "heads + i / 2u))[0]"),
    ("int8_terms.wgsl", "i32(OFFSET) * codes", "0"),
    ("int8_row.wgsl", "round(four * inverse)", "trunc(four * inverse)"),
    ("int8_row.wgsl", "rest > divisor ||", "false ||"),
    ("int8_row.wgsl", "sum += dot4I8Packed(word, 0x01010101u)", "sum += dot4I8Packed(word, 0x00010101u)"),
    ("decode_int8.wgsl", "s < STEPS", "s < STEPS - 1u"),
    ("decode.wgsl", "b < BLOCKS; b++) {\n            let pair", "b + 1u < BLOCKS; b++) {\n            let pair"),
    ("decode.wgsl", "group.x * ROUNDS + round", "group.x + round"),
    ("decode.wgsl", "rows.first + row % 4u", "rows.first + 3u - row % 4u"),
    ("pieces.wgsl", "(N_0 + 3u) / 4u", "N_0 / 4u"),
    ("multiply_int8.wgsl", "vec4(c0.w, c1.w, c2.w, c3.w)", "vec4(c0.w, c1.w, c2.w, c2.w)"),
    ("multiply_int8.wgsl", "(m + 2u * THREADS_M) * LINE_OF_X", "(m + THREADS_M) * LINE_OF_X"),
    ("multiply_int8.wgsl", "whole_3, m + 3u * THREADS_M", "whole_3, m + 2u * THREADS_M"),
    ("multiply.wgsl", "let m = first + t / THREADS_N;", "let m = first + (t / THREADS_N ^ 1u);"),
    ("prepare_int8.wgsl", "quantise_row(t, source_row(row))", "quantise_row(t, 0u)"),
]


@pytest.mark.parametrize(("part", "old", "new"), MUTANTS)
def test_wrong_kernels_are_caught(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, part: str, old: str, new: str
) -> None:
    """One line of WGSL changed: the int8 comparison of one row or of several leaves its bound."""
    from opening import open_webgpu

    right, touched = shader._source, set[str]()

    def mutated(path: str) -> str:
        text = right(path)
        if path.endswith(f"/{part}"):
            assert old in text
            touched.add(path)
            return text.replace(old, new)
        return text

    monkeypatch.setattr(shader, "_source", mutated)
    device, caught = open_webgpu("plain"), False
    assert isinstance(device, WebGpu)
    for m in (1, 5, 70):
        made, x = tensor(rng, "Q1_0", 421, 1280), rows_of(rng, m, 1280)
        # Inputs on the edge between two codes, for the last bit of 127 / a.
        a = np.abs(x.reshape(m, -1, 128)).max(axis=2)
        edges = np.rint(rng.uniform(-100, 100, (m, 10, 60))) + 0.5
        x.reshape(m, -1, 128)[:, :, 4:64] = (
            edges / np.where(a == 0, 1, np.float32(127) / np.maximum(a, 1e-30))[..., None]
        )
        terms = Terms.of(made, x)
        monkeypatch.setattr(device, "workgroups", 2)
        caught |= not bounds.within(product(device, made, x, "int8"), terms.sums, terms.bound)
    assert touched and caught
