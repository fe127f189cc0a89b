"""The CUDA kernels for many rows: bit for bit ``host`` and the decode kernel, which mutants of the source are not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import mutants
import numpy as np
import packing
import pytest
from emulated import REAL, emulated_cuda
from quantiser import EPS, Floats, Terms, rows_of, tensor

from shohin import devices
from shohin.devices import Buffer, Device, Recorder, Step, Weight
from shohin.devices.cuda import Cuda
from shohin.devices.cuda.compiler import Compiler, architecture
from shohin.devices.cuda.driver import Source, macros_of
from shohin.devices.cuda.launch import Launch, Target
from shohin.errors import DeviceFailed
from shohin.formats.tensor import Tensor
from shohin.kernels.gemm import gemm
from shohin.kernels.linear.cuda import gemm as plan
from shohin.kernels.linear_add import linear_add
from shohin.kernels.norm_linear import norm_linear
from shohin.kernels.norm_swiglu import FeedForward, norm_swiglu

FORMATS = ("Q1_0", "PQ2_0")
# nt, mt, wm, wk: one and several columns, tiles, warps side by side and along K, in each combination of code paths.
CUTS = ((1, 1, 1, 1), (1, 1, 2, 4), (2, 2, 3, 1), (4, 1, 2, 2), (2, 2, 1, 4), (8, 2, 2, 1), (8, 1, 1, 4), (4, 2, 1, 2))
POISON = np.float32(-7.0e33)
Record = Callable[[Recorder, Sequence[Buffer], Buffer], None]


def packed(device: Device, made: Tensor) -> Weight:
    return device.pack(Tensor(made.name, made.shape, made.format, made.data.copy()))


def played(device: Device, record: Record, x: Floats, out: Floats, step: Step, wanted: int | None = None) -> Floats:
    """What a tape of one call leaves of ``out``."""
    source, target = device.buffer("x", x.shape), device.buffer("out", out.shape)
    device.write(source, x)
    device.write(target, out)
    tape = device.recorder("test", len(x), wanted)
    record(tape, (source,), target)
    tape.output("out", target, "all")
    found: Floats = tape.finish().play(step, ("out",))["out"]
    return found


def product(device: Device, made: Tensor, x: Floats, live: int | None = None) -> Floats:
    """x . W^T; rows that are not live stay poisoned."""
    weight = packed(device, made)

    def record(tape: Recorder, ins: Sequence[Buffer], out: Buffer) -> None:
        gemm(tape, ins[0], weight, out, activations="int8")

    out = np.full((len(x), made.shape[0]), POISON)
    return played(device, record, x, out, Step.rows_only(len(x) if live is None else live))


def cut_as(monkeypatch: pytest.MonkeyPatch, cut: tuple[int, int, int, int]) -> None:
    """Every product in two blocks of one kind; gate and up always need two tiles a warp."""
    nt, mt, wm, wk = cut
    monkeypatch.setattr(plan.Blocking, "resident", lambda cut, stages, target: 1)

    def choose(shape: plan.Product, target: Target) -> plan.Blocking:
        target.multiprocessors = 2
        return plan.Blocking(nt, 2 if shape.paired else mt, wm, wk, shape.planes)

    monkeypatch.setattr(plan, "choose", choose)


@pytest.fixture(scope="module")
def host() -> Device:
    return devices.device("host", dtype="float32")


@pytest.mark.row("M.11", "M.18", "S3.14", "S3.16")
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(("n", "k", "m", "live"), [(69, 1152, 19, 17), (5, 128, 70, 66)])
def test_products_are_the_host_bit_by_bit(
    host: Device,
    cuda: Device,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    fmt: str,
    cut: tuple[int, int, int, int],
    n: int,
    k: int,
    m: int,
    live: int,
) -> None:
    cut_as(monkeypatch, cut)
    made, x = tensor(rng, fmt, n, k), rows_of(rng, m, k)
    got = product(cuda, made, x, live)
    np.testing.assert_array_equal(got[:live], product(host, made, x, live)[:live])
    np.testing.assert_array_equal(got[:live], Terms.of(made, x).sums()[:live])
    assert (got[live:] == POISON).all()


@pytest.mark.row("S3.14")
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(("m", "n", "k"), [(3, 100, 256), (40, 33, 2176), (130, 200, 640)])
def test_chosen_blocks_are_the_host_bit_by_bit(
    host: Device, cuda: Device, rng: np.random.Generator, fmt: str, m: int, n: int, k: int
) -> None:
    made, x = tensor(rng, fmt, n, k), rows_of(rng, m, k)
    np.testing.assert_array_equal(product(cuda, made, x), product(host, made, x))


@pytest.mark.row("M.18")
def test_nothing_overflows(host: Device, cuda: Device) -> None:
    """The largest sums there are: every code 3, every activation 127 or -127."""
    made = packing.tensor("w", "PQ2_0", np.ones((16, 256)))
    made.data.reshape(-1, made.format.block_bytes)[:, packing.CODE_BYTES["PQ2_0"]] = 255
    for sign in (1, -1):
        x = np.full((9, 256), sign * np.float32(3e4))
        got = product(cuda, made, x)
        np.testing.assert_array_equal(got, product(host, made, x))
        assert (np.sign(got) == sign).all()


@pytest.mark.row("M.3", "S0.14", "M.16")
@pytest.mark.parametrize("cut", [(1, 1, 2, 4), (2, 2, 3, 1), (8, 2, 2, 1)])
@pytest.mark.parametrize(("sizes", "k"), [((20, 7, 9), 4480), ((33,), 640), ((3, 40, 16, 17, 5), 384)])
def test_normed_gathered_and_side_by_side(
    cuda: Device,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    cut: tuple[int, int, int, int],
    sizes: tuple[int, ...],
    k: int,
) -> None:
    cut_as(monkeypatch, cut)
    made = [tensor(rng, "PQ2_0", n, k) for n in sizes]
    x, norm = rows_of(rng, 14, k), (1 + 0.3 * rng.standard_normal(k)).astype(np.float32)
    x *= np.float32(1e-2)
    weights, vector = [packed(cuda, t) for t in made], packing.vector(cuda, "norm", norm)

    def record(tape: Recorder, ins: Sequence[Buffer], out: Buffer) -> None:
        norm_linear(tape, ins[0], vector, weights, out, eps=EPS, activations="int8", gather=True)

    wanted = np.array([13, 0, 3, 4, 12, 1, 11, 6, 7])
    step = Step.of(np.zeros(14, int), wanted=wanted)
    got = played(cuda, record, x, np.full((10, sum(sizes)), POISON), step, wanted=10)
    want = np.concatenate([Terms.of(t, x, norm).sums() for t in made], axis=1)
    np.testing.assert_array_equal(got[:9], want[wanted])
    assert (got[9] == POISON).all()


@pytest.mark.row("M.3")
def test_the_norm_is_that_of_the_host(host: Device, cuda: Device, rng: np.random.Generator) -> None:
    """Only the sum of squares is added in another order: a few last bits of one factor."""
    k, made = 768, tensor(rng, "Q1_0", 21, 768)
    x, norm = rows_of(rng, 11, k), (1 + 0.3 * rng.standard_normal(k)).astype(np.float32)
    found = []
    for device in (host, cuda):
        weights, vector = [packed(device, made)], packing.vector(device, "norm", norm)

        def record(tape: Recorder, ins: Sequence[Buffer], out: Buffer, w=weights, v=vector) -> None:  # type: ignore[no-untyped-def]
            norm_linear(tape, ins[0], v, w, out, eps=EPS, activations="int8")

        found.append(played(device, record, x, np.full((11, 21), POISON), Step.rows_only(11)))
    terms = Terms.of(made, x, norm)
    size = (np.abs(terms.isum) * np.abs(terms.d)[None] * terms.s[:, None]).sum(axis=2)
    # k / 2 roundings of the factor at worst, and one a group of everything that is scaled by it.
    bound = (k / 2 + 16) * 2.0**-24 * size
    assert (np.abs(found[1].astype(np.float64) - found[0]) <= bound).all()
    assert (np.abs(1.001 * found[0] - found[0]) > bound).any(), "a factor that is off by 0.1 % is seen"


@pytest.mark.row("M.15")
@pytest.mark.parametrize("cut", CUTS)
def test_residual(
    host: Device,
    cuda: Device,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    cut: tuple[int, int, int, int],
) -> None:
    cut_as(monkeypatch, cut)
    made, x = tensor(rng, "Q1_0", 41, 640), rows_of(rng, 21, 640)
    hidden = rng.standard_normal((21, 41)).astype(np.float32)
    found = []
    for device in (host, cuda):
        weight = packed(device, made)

        def record(tape: Recorder, ins: Sequence[Buffer], out: Buffer, w: Weight = weight) -> None:
            linear_add(tape, ins[0], w, out, activations="int8")

        found.append(played(device, record, x, hidden, Step.rows_only(20)))
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[1][20], hidden[20])


@dataclass(frozen=True)
class Layer:
    """Every epilogue over the same rows: normed products side by side, SwiGLU, and a residual."""

    gate: Tensor
    up: Tensor
    norm: Floats

    @classmethod
    def of(cls, rng: np.random.Generator, fmt: str, n: int, k: int) -> Layer:
        # Small enough that exp stays in float32.
        norm = (0.03 + 0.01 * rng.standard_normal(k)).astype(np.float32)
        return cls(tensor(rng, fmt, n, k), tensor(rng, fmt, n, k), norm)

    def __call__(self, device: Device, x: Floats, hidden: Floats) -> tuple[Floats, Floats, Floats]:
        gate, up = packed(device, self.gate), packed(device, self.up)
        norm = packing.vector(device, "norm", self.norm)

        def side_by_side(tape: Recorder, ins: Sequence[Buffer], out: Buffer) -> None:
            norm_linear(tape, ins[0], norm, [gate, up], out, eps=EPS, activations="int8")

        def swiglu(tape: Recorder, ins: Sequence[Buffer], out: Buffer) -> None:
            norm_swiglu(tape, ins[0], FeedForward(norm, gate, up, gate), out, eps=EPS, activations="int8")

        def residual(tape: Recorder, ins: Sequence[Buffer], out: Buffer) -> None:
            linear_add(tape, ins[0], gate, out, activations="int8")

        m, n = len(x), self.gate.shape[0]
        step = Step.rows_only(m)
        return (
            played(device, side_by_side, x, np.full((m, 2 * n), POISON), step),
            played(device, swiglu, x, np.full((m, n), POISON), step),
            played(device, residual, x, hidden, step),
        )


@pytest.mark.row("M.14", "M.16")
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("cut", [(1, 1, 1, 4), (2, 2, 3, 1), (8, 2, 2, 1)])
def test_rows_are_those_of_the_decode_kernel(
    cuda: Device,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    fmt: str,
    cut: tuple[int, int, int, int],
) -> None:
    cut_as(monkeypatch, cut)
    k = 1408
    layer = Layer.of(rng, fmt, 35, k)
    x = rows_of(rng, 17, k) * np.float32(1e-2)
    hidden = rng.standard_normal((17, 35)).astype(np.float32)
    many = layer(cuda, x, hidden)
    for row in (0, 11, 16):
        alone = layer(cuda, x[row : row + 1], hidden[row : row + 1])
        for some, one in zip(many, alone, strict=True):
            np.testing.assert_array_equal(some[row], one[0])
    g, u = many[0][:, :35].astype(np.float64), many[0][:, 35:].astype(np.float64)
    silu = g / (1 + np.exp(-g))
    bound = 2.0**-21 * (1 + np.abs(g)) * np.abs(silu * u) + 1e-37
    assert (np.abs(many[1] - silu * u) <= bound).all()
    assert (np.abs(many[1] - u / (1 + np.exp(-u)) * g) > bound).any(), "gate and up exchanged"


@pytest.mark.row("M.16")
def test_without_binary_units_one_row_is_the_same(cuda: Device, rng: np.random.Generator) -> None:
    layer = Layer.of(rng, "PQ2_0", 19, 640)
    x, hidden = rows_of(rng, 1, 640), np.ones((1, 19), np.float32)
    others = [Cuda(cuda.driver, "int8")] if REAL else [emulated_cuda(arch, "int8") for arch in (90, 120)]
    for other in others:
        for one, two in zip(layer(cuda, x, hidden), layer(other, x, hidden), strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.row("H.20")
@pytest.mark.parametrize("cut", [(2, 2, 3, 1), (1, 1, 2, 4)])
def test_broken_values_stay_in_their_row(
    cuda: Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, cut: tuple[int, int, int, int]
) -> None:
    cut_as(monkeypatch, cut)
    layer = Layer.of(rng, "Q1_0", 18, 512)
    x, hidden = rows_of(rng, 12, 512), np.zeros((12, 18), np.float32)
    whole = layer(cuda, x, hidden)
    for bad in (np.nan, np.inf, -np.inf):
        broken = x.copy()
        broken[5, 300] = bad
        for got, want in zip(layer(cuda, broken, hidden), whole, strict=True):
            assert not np.isfinite(got[5]).any()
            np.testing.assert_array_equal(np.delete(got, 5, axis=0), np.delete(want, 5, axis=0))


# Mutants


MUTANTS = {
    "offsets of two rows exchanged": ("gemm.cu", "i % 2 ? record.w : record.z", "i % 2 ? record.z : record.w"),
    "scales associated otherwise": (
        "gemm.cu",
        "__fmul_rn(__fsub_rn(__int_as_float(c[i]), i % 2 ? record.w : record.z), scale)",
        "__fmul_rn(__fmul_rn(__fsub_rn(__int_as_float(c[i]), i % 2 ? record.w : record.z), d[mt][i / 2]), "
        "i % 2 ? record.y : record.x)",
    ),
    "groups added backwards": ("gemm.cu", "products[parity][g][warp", "products[parity][STAGE_GROUPS - 1 - g][warp"),
    "low bits twice": ("gemm.cu", "(low >> 1 & 0x55555555u)", "(low & 0x55555555u)"),
    "another group's scale": ("gemm.cu", "* STAGE_GROUPS + pair * 2 + half) & 3", "* STAGE_GROUPS + half) & 3"),
    "rows past the live ones": ("gemm.cu", " || token >= live) continue", ") continue"),
    "rows past the last weight": ("gemm.cu", "nt >= NT || row >= part.rows", "nt >= NT"),
    "a stage read too early": ("gemm.cu", "copy_async_wait<STAGES - 2>()", "copy_async_wait<STAGES - 1>()"),
    "no barrier between stages": ("gemm.cu", "copy_async_wait<STAGES - 2>();\n            __syncthreads();", ""),
    "codes not swizzled": ("quantise.cu", "^ (row % 2 * 16)", "^ 0"),
    "codes in plain order": ("quantise.cu", "uint2 permuted = transposed(plain);", "uint2 permuted = plain;"),
    "no correction": ("quantise.cu", "WHOLE + (there ? (float)kept.sums[group] : 0.0f)", "WHOLE"),
    "the next work's weights": ("gemm.cu", "if (i == 0) find_weights", "if (i == 1) find_weights"),
    "the same rows again": ("gemm.cu", "next_first = next_tile / across * TOKENS", "next_first = 0"),
    "sums run on": ("gemm.cu", "        Sums sums = {};\n        for", "        for"),
    "half a group": ("quantise.cu", "group % 2 * 128", "0"),
}


@pytest.mark.parametrize("name", ["", *MUTANTS])
def test_mutants_are_caught(
    host: Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    sources = mutants.copied(tmp_path, monkeypatch, "linear/cuda")
    if name:
        file, old, new = MUTANTS[name]
        mutants.change(sources / file, name, old, new)
        if name == "sums run on":
            old = "    for (int tile = blockIdx.x, work"
            mutants.change(sources / file, name, old, "    Sums sums = {};\n" + old)
    made, x = tensor(rng, "PQ2_0", 81, 1664), rows_of(rng, 21, 1664)
    want = product(host, made, x, 19)
    caught = False
    for cut in ((2, 2, 2, 1), (2, 1, 1, 4)):
        cut_as(monkeypatch, cut)
        try:
            caught |= not np.array_equal(product(emulated_cuda(), made, x, 19), want)
        except DeviceFailed:
            caught = True
    assert caught == bool(name)


# The plan


def plans(target: Target) -> Iterator[tuple[plan.Product, plan.Blocking, int]]:
    for rows in (1, 3, 9, 16, 33, 64, 128, 512, 4608):
        for n, k in ((16, 128), (2048, 2048), (4096, 12288), (24576, 4096), (151936, 4096)):
            for planes, paired in ((1, False), (2, True)):
                shape = plan.Product(rows, n // 16, k // 128, planes, paired)
                cut = plan.choose(shape, target)
                yield shape, cut, plan._stages(cut, shape, target)


@pytest.mark.parametrize(("arch", "limit", "count"), [(80, 166912, 108), (90, 232448, 132), (120, 101376, 84)])
def test_blocks_fit(arch: int, limit: int, count: int) -> None:
    for shape, cut, stages in plans(Target(512, 1, arch, count, limit, "int8")):
        assert cut.shared(stages) <= limit and stages >= 2
        blocks = cut.resident(stages, Target(512, 1, arch, count, limit, "int8"))
        assert blocks == 1 or blocks * (cut.shared(stages) + 1024) <= limit + 1024
        assert blocks * cut.threads * cut.registers <= 65536
        assert cut.mt == 2 or not shape.paired
        assert 8 * cut.nt < 2 * max(8, shape.rows), "more columns than rows"
        assert -(-shape.tiles // cut.tiles) <= 65535


def sample(arch: int, limit: int) -> list[Launch]:
    """Kernels as an 8B model has them at 512 and 64 rows, one of each kind."""
    target = Target(512, 1, arch, 132, limit, "int8")
    made = {}
    for shape, cut, stages in plans(target):
        macros = {"MT": cut.mt, "NT": cut.nt, "WM": cut.wm, "WK": cut.wk, "STAGES": stages}
        macros |= {"PLANES": shape.planes, "PARTS": 1, "EPILOGUE": 2 * shape.paired, "GATHER": 0}
        macros |= {"NORM": int(shape.paired)}
        macros |= {"STAGE_GROUPS": cut.stage_groups, "MIN_BLOCKS": cut.resident(stages, target)}
        if shape.rows in (64, 512) and shape.tiles == 24576 // 16:
            made[(cut, shape.paired)] = Launch("linear/cuda/gemm.cu", "gemm", macros, (1, 1, 1), cut.threads, ())
    return list(made.values())


@pytest.mark.parametrize(("arch", "limit"), [(80, 166912), (90, 232448), (100, 232448), (120, 101376)])
def test_kernels_keep_to_registers(tmp_path: Path, arch: int, limit: int) -> None:
    pytest.importorskip("cuda.core", reason="NVRTC's packages are not installed")
    compiler = Compiler(architecture(arch), tmp_path)
    for launch in sample(arch, limit)[:: 1 if arch == 90 else 4]:
        macros = macros_of({**launch.constants, "ROWS": 512, "WANTED": 1})
        _, log = compiler.compile_log(Source("kernels/" + launch.source, launch.entry, macros))
        # The compiler may put a value of the outer loop or two elsewhere.
        (spilled,) = re.findall(r"(\d+) bytes spill stores", log)
        assert int(spilled) <= 16, (launch.constants, log)
