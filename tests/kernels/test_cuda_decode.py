"""The CUDA kernel for a few rows: bit for bit ``host``, on both kinds of matrix units, which mutants of it are not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mutants
import numpy as np
import packing
import pytest
from emulated import REAL, emulated_cuda, real_gpu
from quantiser import EPS, Floats, Terms, rows_of, tensor

from shohin import devices
from shohin.devices import Buffer, Device, Recorder, Step, Weight
from shohin.devices.cuda import Cuda
from shohin.devices.cuda.compiler import Compiler, architecture
from shohin.devices.cuda.driver import Source, macros_of
from shohin.devices.cuda.launch import Target
from shohin.errors import DeviceFailed
from shohin.formats.tensor import Tensor
from shohin.kernels.linear.cuda import Linear, decode
from shohin.kernels.linear_add import linear_add
from shohin.kernels.norm_linear import norm_linear
from shohin.kernels.norm_swiglu import FeedForward, norm_swiglu

FORMATS = ("Q1_0", "PQ2_0")
# Kinds of matrix units, and rows up to which binary ones are taken.
UNITS = ("binary", "int8")
POISON = np.float32(-7.0e33)


@dataclass(frozen=True)
class Case:
    """One projection. ``kind``: store (any number of weights), add or swiglu; wanted: rows to gather, None for all."""

    kind: str
    weights: tuple[Tensor, ...]
    norm: Floats | None = None
    wanted: tuple[int, ...] | None = None

    def play(self, device: Device, x: Floats, live: int, old: Floats | None = None) -> Floats:
        """What a tape of one call leaves of an output that is poisoned, or ``old``."""
        weights = [device.pack(Tensor(w.name, w.shape, w.format, w.data.copy())) for w in self.weights]
        norm = None if self.norm is None else packing.vector(device, "norm", self.norm)
        n = sum(w.shape[0] for w in self.weights) if self.kind == "store" else self.weights[0].shape[0]
        capacity = len(x) if self.wanted is None else len(self.wanted)
        if self.wanted is None:
            step = Step.rows_only(live)
        else:
            step = Step.of(np.zeros(len(x), int), wanted=np.array(self.wanted[:live], int))
        source, out = device.buffer("x", x.shape), device.buffer("out", (capacity, n))
        device.write(source, x)
        device.write(out, np.full(out.shape, POISON) if old is None else old)
        tape = device.recorder("test", len(x), capacity if self.wanted is not None else None)
        self._record(tape, source, norm, weights, out)
        tape.output("out", out, "all")
        found: Floats = tape.finish().play(step, ("out",))["out"]
        return found

    def _record(self, tape: Recorder, x: Buffer, norm: Weight | None, weights: Sequence[Weight], out: Buffer) -> None:
        if self.kind == "add":
            linear_add(tape, x, weights[0], out, activations="int8")
        elif self.kind == "swiglu":
            assert norm is not None
            ffn = FeedForward(norm, weights[0], weights[1], weights[0])
            norm_swiglu(tape, x, ffn, out, eps=EPS, activations="int8")
        else:
            gather = self.wanted is not None
            norm_linear(tape, x, norm, weights, out, eps=EPS, activations="int8", gather=gather)


@pytest.fixture
def host() -> Device:
    return devices.device("host", dtype="float32")


@pytest.fixture(params=UNITS)
def cuda(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device that takes up to eight rows with this kernel, all on one kind of matrix units."""
    monkeypatch.setattr(decode, "DECODE_ROWS", decode.MOST_ROWS)
    return on_units(request.param, monkeypatch)


def on_units(units: str, monkeypatch: pytest.MonkeyPatch) -> Device:
    monkeypatch.setattr(decode, "BINARY_ROWS", decode.MOST_ROWS if units == "binary" else 0)
    return Cuda(real_gpu(), "binary") if REAL else emulated_cuda(90, "binary")


def product(made: Tensor, x: Floats, norm: Floats | None = None) -> Floats:
    """Codes, exact sums by group, two roundings for the scales, and groups one after the other."""
    return Terms.of(made, x, norm).sums()


SHAPES = [
    # n, k, capacity, live rows
    (1, 128, 1, 1),
    (16, 512, 1, 1),
    (37, 640, 1, 1),
    (300, 1024, 1, 1),
    (41, 2048, 2, 2),
    (130, 640, 3, 2),
    (33, 2176, 4, 4),
    (50, 4096, 5, 5),
    (19, 384, 8, 7),
    (90, 1152, 8, 8),
]


@pytest.mark.row("M.11", "M.18", "S3.14", "S3.16")
@pytest.mark.parametrize(("n", "k", "m", "live"), SHAPES)
@pytest.mark.parametrize("fmt", FORMATS)
def test_products_are_the_host_bit_by_bit(
    host: Device, cuda: Device, rng: np.random.Generator, fmt: str, n: int, k: int, m: int, live: int
) -> None:
    case, x = Case("store", (tensor(rng, fmt, n, k),)), rows_of(rng, m, k)
    got = case.play(cuda, x, live)
    np.testing.assert_array_equal(got[:live], case.play(host, x, live)[:live])
    np.testing.assert_array_equal(got[:live], product(case.weights[0], x)[:live])
    assert (got[live:] == POISON).all()


@pytest.mark.row("S3.14")
@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("fmt", FORMATS)
def test_wide_inputs_take_several_passes(
    host: Device, cuda: Device, rng: np.random.Generator, fmt: str, m: int
) -> None:
    for k in (12288, 17536):
        case, x = Case("store", (tensor(rng, fmt, 18, k),), None), rows_of(rng, m, k)
        np.testing.assert_array_equal(case.play(cuda, x, m), case.play(host, x, m))
        norm = (1 + 0.3 * rng.standard_normal(k)).astype(np.float32)
        case = Case("store", case.weights, norm)
        np.testing.assert_array_equal(case.play(cuda, x, m), product(case.weights[0], x, norm))


@pytest.mark.row("M.18")
def test_nothing_overflows(host: Device, cuda: Device) -> None:
    """The largest sums there are: every code 3 or 0, every activation 127 or -127."""
    for byte in (255, 0):
        made = packing.tensor("w", "PQ2_0", np.ones((16, 256)))
        made.data.reshape(-1, made.format.block_bytes)[:, packing.CODE_BYTES["PQ2_0"]] = byte
        for sign in (1, -1):
            case, x = Case("store", (made,)), np.full((3, 256), sign * np.float32(3e4))
            got = case.play(cuda, x, 3)
            np.testing.assert_array_equal(got, case.play(host, x, 3))
            assert (np.sign(got) == (sign if byte else -sign)).all()


@pytest.mark.row("M.3", "S0.14")
@pytest.mark.parametrize(("sizes", "k"), [((40, 7, 9), 2048), ((33,), 640), ((3, 40, 16, 17, 5), 384)])
@pytest.mark.parametrize("wanted", [(0,), (5, 0, 3)])
def test_normed_gathered_and_side_by_side(
    cuda: Device, rng: np.random.Generator, sizes: tuple[int, ...], k: int, wanted: tuple[int, ...]
) -> None:
    m = 1 if len(wanted) == 1 else 6
    norm = (1 + 0.3 * rng.standard_normal(k)).astype(np.float32)
    x = rows_of(rng, m, k) * np.float32(1e-2)
    case = Case("store", tuple(tensor(rng, "PQ2_0", n, k) for n in sizes), norm, wanted)
    live = max(1, len(wanted) - 1)
    got = case.play(cuda, x, live)
    want = np.concatenate([product(w, x, norm) for w in case.weights], axis=1)
    np.testing.assert_array_equal(got[:live], want[list(wanted[:live])])
    assert (got[live:] == POISON).all()


@pytest.mark.row("M.3")
def test_the_norm_is_that_of_the_host(host: Device, cuda: Device, rng: np.random.Generator) -> None:
    """Only the sum of squares is added in another order: a few last bits of one factor."""
    k = 768
    norm = (1 + 0.3 * rng.standard_normal(k)).astype(np.float32)
    case, x = Case("store", (tensor(rng, "Q1_0", 21, k),), norm), rows_of(rng, 3, k)
    want, got = (case.play(device, x, 3).astype(np.float64) for device in (host, cuda))
    scales = case.weights[0].format.unpack(case.weights[0].raw()).scale.astype(np.float64)
    n = x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + EPS) * norm
    # No code is larger than the group's peak. k / 2 roundings of the factor at worst, one a group of what it scales.
    size = np.abs(n).reshape(3, -1, 128).max(axis=2) * 128 @ np.abs(scales).T
    bound = (k / 2 + 16) * 2.0**-24 * size
    assert (np.abs(got - want) <= bound).all()
    assert (np.abs(1.001 * want - want) > bound).any(), "a factor that is off by 0.1 % is seen"


@pytest.mark.row("M.15")
@pytest.mark.parametrize(("n", "k", "m", "live"), [(41, 2048, 1, 1), (300, 640, 2, 2), (130, 1024, 8, 6)])
def test_residual(host: Device, cuda: Device, rng: np.random.Generator, n: int, k: int, m: int, live: int) -> None:
    case, x = Case("add", (tensor(rng, "Q1_0", n, k),)), rows_of(rng, m, k)
    hidden = rng.standard_normal((m, n)).astype(np.float32)
    got = case.play(cuda, x, live, hidden)
    np.testing.assert_array_equal(got, case.play(host, x, live, hidden))
    np.testing.assert_array_equal(got[:live], hidden[:live] + product(case.weights[0], x)[:live])


@pytest.mark.row("M.14")
@pytest.mark.parametrize(
    ("n", "k", "m", "live"), [(21, 2048, 1, 1), (200, 640, 1, 1), (70, 1024, 2, 2), (90, 384, 8, 7)]
)
@pytest.mark.parametrize("fmt", FORMATS)
def test_swiglu(cuda: Device, rng: np.random.Generator, fmt: str, n: int, k: int, m: int, live: int) -> None:
    # Small enough that exp stays in float32.
    norm = (0.03 + 0.01 * rng.standard_normal(k)).astype(np.float32)
    case, x = Case("swiglu", (tensor(rng, fmt, n, k), tensor(rng, fmt, n, k)), norm), rows_of(rng, m, k)
    got = case.play(cuda, x, live)
    assert (got[live:] == POISON).all()
    g, u = (product(w, x[:live], norm).astype(np.float64) for w in case.weights)
    silu = g / (1 + np.exp(-g))
    # exp within 2 ulp, and three more roundings.
    bound = 2.0**-21 * np.abs(silu * u) + 1e-37
    assert (np.abs(got[:live] - silu * u) <= bound).all()
    assert (np.abs(got[:live] - u / (1 + np.exp(-u)) * g) > bound).any(), "gate and up exchanged"


def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """As few tiles between barriers as there can be: matrices of any size then take several rounds."""
    monkeypatch.setattr(decode, "ROUND_UNITS", 0)
    monkeypatch.setattr(decode, "LEAST_UNITS", 0)


@pytest.mark.row("S3.14", "M.14", "M.15")
@pytest.mark.parametrize("m", [1, 2, 8])
@pytest.mark.parametrize("kind", ["store", "add", "swiglu"])
def test_any_number_of_rounds_makes_the_same_bits(
    cuda: Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, kind: str, m: int
) -> None:
    k, n = (2048, 430) if m == 1 else (640, 290)
    norm = (0.03 + 0.01 * rng.standard_normal(k)).astype(np.float32) if kind != "add" else None
    made = tuple(tensor(rng, "Q1_0", n, k) for _ in range(1 if kind == "add" else 2))
    case, x, old = (
        Case(kind, made, norm),
        rows_of(rng, m, k),
        np.ones((m, n * (2 if kind == "store" else 1)), np.float32),
    )
    want = case.play(cuda, x, m, old)
    short_rounds(monkeypatch)
    np.testing.assert_array_equal(case.play(cuda, x, m, old), want)
    if kind == "store":
        np.testing.assert_array_equal(want, np.concatenate([product(w, x, norm) for w in made], axis=1))


@pytest.mark.row("M.16")
@pytest.mark.parametrize("kind", ["store", "swiglu"])
@pytest.mark.parametrize("fmt", FORMATS)
def test_a_row_is_the_same_among_others_and_on_either_kind_of_units(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, fmt: str, kind: str
) -> None:
    monkeypatch.setattr(decode, "DECODE_ROWS", decode.MOST_ROWS)
    k = 1408
    norm = (0.3 + 0.1 * rng.standard_normal(k)).astype(np.float32)
    case, x = Case(kind, (tensor(rng, fmt, 35, k), tensor(rng, fmt, 35, k)), norm), rows_of(rng, 8, k)
    x *= np.float32(1e-2)
    found = []
    for units in UNITS:
        device = on_units(units, monkeypatch)
        for some in (x[3:4], x[2:4], x[:4], x):
            at = int(np.flatnonzero((some == x[3]).all(axis=1))[0])
            found.append(case.play(device, some, len(some))[at])
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_devices_without_binary_units_have_the_same_bits(cuda: Device, rng: np.random.Generator) -> None:
    """Also with less than half of an H200's shared memory."""
    case, x = Case("add", (tensor(rng, "PQ2_0", 70, 4096),)), rows_of(rng, 3, 4096)
    hidden = rng.standard_normal((3, 70)).astype(np.float32)
    want = case.play(cuda, x, 3, hidden)
    for arch in (80, 120):
        np.testing.assert_array_equal(case.play(emulated_cuda(arch, "int8"), x, 3, hidden), want)


@pytest.mark.row("H.20")
def test_broken_values_stay_in_their_row(cuda: Device, rng: np.random.Generator) -> None:
    norm = np.ones(512, np.float32)
    for kind, used in (("store", norm), ("add", None), ("swiglu", norm)):
        case = Case(kind, (tensor(rng, "Q1_0", 18, 512),) * (2 if kind == "swiglu" else 1), used)
        x, old = rows_of(rng, 3, 512), np.zeros((3, 18), np.float32)
        whole = case.play(cuda, x, 3, old)
        for bad in (np.nan, np.inf, -np.inf):
            broken = x.copy()
            broken[1, 300] = bad
            got = case.play(cuda, broken, 3, old)
            assert not np.isfinite(got[1]).any()
            np.testing.assert_array_equal(got[[0, 2]], whole[[0, 2]])


def test_no_wanted_rows(cuda: Device, rng: np.random.Generator) -> None:
    x = rows_of(rng, 2, 640)
    case = Case("store", (tensor(rng, "Q1_0", 100, 640),), np.ones(640, np.float32), (0, 1))
    assert (case.play(cuda, x, 0) == POISON).all()


MUTANTS = {
    "the sign plane counts as any other": ("decode_dot.cuh", "lane % 4 == 3 ? -2 : 2", "2"),
    "a plane's weight": ("decode_dot.cuh", "lane & 1 ? 16 : 1", "lane & 1 ? 8 : 1"),
    "the partner's weight": ("decode_dot.cuh", "lane & 2 ? 1 : 4", "lane & 2 ? 4 : 1"),
    "low bits count twice": ("decode_dot.cuh", "c[i] = 2 * c[i] + d[i]", "c[i] = c[i] + 2 * d[i]"),
    "a lane's second word": ("decode_dot.cuh", "products[lane + 32] = product_of", "products[lane ^ 36] = product_of"),
    "an unpacked bit": ("decode_dot.cuh", "2 * s + i / 2", "2 * s + i % 2"),
    "another group's scale": ("decode_dot.cuh", "lane / 4 * 4 + g)", "lane / 4 * 4)"),
    "scales associated otherwise": (
        "decode_dot.cuh",
        "__fmul_rn(sum, __fmul_rn(half_to_float((unsigned short)(word >> 16)), scale))",
        "__fmul_rn(__fmul_rn(sum, half_to_float((unsigned short)(word >> 16))), scale)",
    ),
    "no correction": ("decode_input.cuh", "BIAS * 0x10001u - own_group(sums) * 0x10001u", "BIAS * 0x10001u"),
    "planes transposed halfway": ("decode_input.cuh", "b << 4 & 0xf0f0f0f0u", "b << 4 & 0xf0f0f000u"),
    "planes exchanged with the wrong lane": ("decode_input.cuh", "keep_half = third ?", "keep_half = second ?"),
    "codes in their natural order": (
        "decode_input.cuh",
        "{low.y, low.w, high.y, high.w}",
        "{low.y, high.y, low.w, high.w}",
    ),
    "both halves in one place": ("decode_input.cuh", "[lane])[half] = make_uint2", "[lane])[0] = make_uint2"),
    "groups added backwards": ("decode.cu", "products[c * 16]", "products[(CHUNKS - 1 - c) * 16]"),
    "units read too early": ("decode.cu", "copy_async_wait<SLOTS - 1>()", "copy_async_wait<SLOTS>()"),
    "a share's tiles from the wrong place": ("decode.cu", "SHARES / STEP * CHUNKS", "CHUNKS"),
    "rows past the last weight": ("decode.cu", "return row < n ? column + row : -1", "return column + row"),
    "rows past the live ones": ("decode.cu", "live = GATHER ? step_wanted(step) : step_rows(step)", "live = CAPACITY"),
    "one buffer for all rounds": ("decode.cu", "ROUNDS > 1 ? 2 : 1", "1"),
}


@pytest.mark.skipif(REAL, reason="mutants are compiled for the emulator only")
@pytest.mark.parametrize("name", ["", *MUTANTS])
def test_mutants_are_caught(
    host: Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    sources = mutants.copied(tmp_path, monkeypatch, "linear/cuda")
    if name:
        file, old, new = MUTANTS[name]
        mutants.change(sources / file, name, old, new)
    monkeypatch.setattr(decode, "DECODE_ROWS", decode.MOST_ROWS)
    short_rounds(monkeypatch)
    case, x = Case("store", (tensor(rng, "PQ2_0", 490, 1152),)), rows_of(rng, 3, 1152)
    want, caught = case.play(host, x, 2), False
    for units in UNITS:
        try:
            caught |= not np.array_equal(case.play(on_units(units, monkeypatch), x, 2), want)
        except DeviceFailed:
            caught = True
    assert caught == bool(name)


# The plan


LIMITS = {80: 166912, 90: 232448, 100: 232448, 120: 101376}
MODELS = {"8B": (4096, 4096, 12288), "4B": (2560, 4096, 9728), "1.7B": (2048, 2048, 6144)}


def projections(hidden: int, inner: int, feed: int, planes: int, rows: int, binary: bool) -> list[decode.Work]:
    """The five products of a layer and the head."""
    shapes = [
        (inner + 2048, hidden, False),
        (hidden, inner, False),
        (2 * feed, hidden, True),
        (hidden, feed, False),
        (151669, hidden, False),
    ]
    return [decode.Work(-(-n // 16), paired, -(-k // 512), planes, rows, binary) for n, k, paired in shapes]


@pytest.mark.parametrize("arch", LIMITS)
@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_deals_fit_and_take_every_tile(arch: int, rows: int) -> None:
    target = Target(rows, rows, arch, 132, LIMITS[arch], "int8")
    for sizes in MODELS.values():
        for planes in (1, 2):
            for work in projections(*sizes, planes, rows, rows <= 2):
                deal = decode._deal(work, target)
                if deal is None:
                    assert arch == 120 or rows == 8
                    continue
                assert deal.shared <= target.shared_limit and 1 <= deal.slots <= deal.whole
                assert deal.block_tiles % work.step == deal.round_tiles % work.step == 0
                assert deal.round_tiles % deal.shares == 0 and deal.threads <= 1024
                assert -(-work.tiles // deal.block_tiles) <= 132
                if rows == 1 and arch == 90 and planes == 1:
                    beside = decode._spread("add", target)
                    assert deal.shared + 1024 + beside + 1024 <= LIMITS[90] + 1024, "the next kernel's block fits"


def linear_of(work: decode.Work, fmt: str) -> dict[str, int | float | str]:
    """Macros as ``decode_launches`` makes them; gate and up have a norm."""
    deal = decode._deal(work, Target(work.rows, work.rows, 90, 132, LIMITS[90], "binary"))
    assert deal is not None

    @dataclass(frozen=True)
    class Shaped:
        shape: tuple[int, ...]
        format: str = fmt

    n = work.tiles * 16 // work.step
    weights = (Shaped((n, work.chunks * 512)),) * work.step
    kind, norm = ("swiglu", Shaped((1,))) if work.paired else ("add", None)
    linear = Linear(None, norm, weights, Shaped((work.rows, n)), kind, "int8", EPS)  # type: ignore[arg-type]
    return {**decode._constants(linear, deal), "ROWS": work.rows, "WANTED": work.rows}


@pytest.mark.parametrize("arch", LIMITS)
def test_kernels_keep_to_registers(tmp_path: Path, arch: int) -> None:
    pytest.importorskip("cuda.core", reason="NVRTC's packages are not installed")
    compiler = Compiler(architecture(arch), tmp_path)
    for rows in (1, 2, 4) if arch == 90 else (1,):
        for planes in (1, 2):
            for work in projections(*MODELS["8B"], planes, rows, arch <= 90 and rows <= 2)[1:4]:
                macros = macros_of(linear_of(work, FORMATS[planes - 1]))
                _, log = compiler.compile_log(Source("kernels/linear/cuda/decode.cu", "decode", macros))
                spilled = int(re.findall(r"(\d+) bytes spill stores", log)[0])
                assert spilled <= (0 if work.binary else 8), (macros, log)
