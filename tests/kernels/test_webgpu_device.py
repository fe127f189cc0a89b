"""The webgpu device itself: adapters, memory, counters, steps that run ahead, and what goes wrong."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from time import perf_counter

import numpy as np
import packing
import pytest
from opening import WEBGPU, open_device, open_webgpu

from shohin import devices
from shohin.devices import Buffer, Device, Run, Step
from shohin.devices.tape import Call
from shohin.devices.webgpu import WebGpu, choose
from shohin.devices.webgpu.dispatch import Binding, Dispatch, Limits, Target, grid
from shohin.devices.webgpu.encoding import public_encoder
from shohin.devices.webgpu.shader import assemble
from shohin.devices.webgpu.slots import assign_slots
from shohin.errors import BadRequest, BadShape, DeviceFailed, KernelBuild, NoDevice, OutOfMemory
from shohin.formats.blocks import FORMATS
from shohin.formats.tensor import Tensor
from shohin.kernels.copy import copy
from shohin.kernels.embed import embed
from shohin.kernels.linear_add import linear_add
from shohin.kernels.norm_linear import norm_linear
from shohin.kernels.pick import pick
from shohin.kernels.read import read


def fresh(**options: object) -> WebGpu:
    """A device of its own, to be broken."""
    open_webgpu("plain")
    return WebGpu(choose(), "plain", **options)  # type: ignore[arg-type]


# Adapters and settings


@pytest.mark.row("S3.1", "S3.2")
def test_adapters_are_chosen_by_index_and_by_name(webgpu: Device) -> None:
    adapter = choose()
    assert devices.device("webgpu:0").kernels.startswith(str(adapter))
    assert choose(adapter.name[:6].upper()).index == adapter.index
    with pytest.raises(NoDevice, match=f"no adapter '99'; available: 0: .*{adapter.backend}"):
        devices.device("webgpu:99")
    with pytest.raises(NoDevice, match="no adapter 'abacus'"):
        devices.device("webgpu:abacus")


def test_settings_without_effect_are_refused(webgpu: Device) -> None:
    for setting in ({"threads": 2}, {"dtype": "float32"}):
        with pytest.raises(BadRequest, match="webgpu has no"):
            devices.device("webgpu", **setting)  # type: ignore[arg-type]
    with pytest.raises(NoDevice, match=r"tier 'fast' does not run .*; available: plain"):
        devices.device("webgpu", tier="fast")


def test_the_package_is_imported_at_first_use_and_named_when_it_is_missing() -> None:
    code = """
import sys
sys.modules["wgpu"] = None
import shohin
try:
    shohin.device("webgpu")
except shohin.errors.NoDevice as error:
    assert "install shohin[webgpu]" in str(error), error
else:
    raise SystemExit("no error")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    subprocess.run(
        [sys.executable, "-c", "import shohin, sys; assert 'wgpu' not in sys.modules"], check=True, timeout=60
    )


def test_no_adapter_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shohin.devices.webgpu.adapters.all_adapters", list)
    with pytest.raises(NoDevice, match=r"install a GPU driver .*mesa-vulkan-drivers"):
        choose()


def test_tiers_turn_features_on_and_off() -> None:
    opened = {name: open_device(name) for name in WEBGPU}
    for name, device in opened.items():
        assert isinstance(device, WebGpu)
        assert device.kernels.endswith(name.partition("-")[2])
        target = device.target(1, 1)
        assert (target.subgroups, target.f16) == ("subgroups" in name, "f16" in name)


# Memory


@pytest.mark.row("SC.2")
@pytest.mark.parametrize(
    ("dtype", "shape"), [(np.float16, (5, 3)), (np.int8, (7, 3)), (np.float32, (4, 2)), (np.int32, (9,))]
)
def test_rows_are_written_at_any_byte(
    webgpu: Device, rng: np.random.Generator, dtype: type, shape: tuple[int, ...]
) -> None:
    buffer = webgpu.buffer("b", shape, dtype)
    want = np.zeros(shape, dtype)
    np.testing.assert_array_equal(webgpu.read(buffer), want)
    for first, count in ((1, 2), (0, 1), (3, 1), (2, 2)):
        values = rng.integers(-100, 100, (count, *shape[1:])).astype(dtype)
        want[first : first + count] = values
        webgpu.write(buffer, values, first)
        np.testing.assert_array_equal(webgpu.read(buffer), want)
    np.testing.assert_array_equal(webgpu.read(buffer, 2), want[:2])
    with pytest.raises(BadShape, match="can't take"):
        webgpu.write(buffer, values, shape[0])
    with pytest.raises(BadShape, match="holds no bytes"):
        webgpu.buffer("none", (0, 3))


def test_large_reads_come_in_pieces(webgpu: Device, rng: np.random.Generator) -> None:
    values = rng.integers(0, 2**31, (3, 500_001), np.int32)
    buffer = webgpu.buffer("b", values.shape, np.int32)
    webgpu.write(buffer, values)
    np.testing.assert_array_equal(webgpu.read(buffer), values)


@pytest.mark.row("SC.2", "S3.4")
def test_what_does_not_fit_says_what_to_shrink() -> None:
    device = fresh(binding=1 << 16)
    with pytest.raises(
        OutOfMemory, match=r"80000 bytes .*\[20000\] are not available, .* binds at most 65536; .*smaller"
    ):
        device.buffer("cache", (20000,))
    assert device.allocations == 0


def test_the_driver_without_memory_is_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    device = fresh()
    import wgpu

    def full(**_: object) -> None:
        raise wgpu.GPUOutOfMemoryError("Out of Memory")

    monkeypatch.setattr(device.gpu._device, "create_buffer", full)
    with pytest.raises(OutOfMemory, match=r"no memory for 4000 bytes for an array of shape \[1000\] .*smaller context"):
        device.buffer("b", (1000,))


@pytest.mark.row("SC.1", "H.16")
def test_weights_are_counted_until_they_are_dropped(webgpu: Device, rng: np.random.Generator) -> None:
    before, uploads = webgpu.resident_bytes, webgpu.uploads
    weight = packing.pack(webgpu, "w", "Q1_0", rng.standard_normal((8, 256))).weight
    assert (webgpu.resident_bytes - before, webgpu.uploads - uploads) == (8 * 36, 1)
    del weight
    assert webgpu.resident_bytes == before


@pytest.mark.row("S0.6")
def test_scratch_is_shared_only_by_what_never_lives_together(webgpu: Device) -> None:
    tape = webgpu.recorder("t", 2)
    a, b, c, d = (tape.scratch(name, (2, size)) for name, size in zip("abcd", (8, 16, 32, 4), strict=True))
    start, end = webgpu.buffer("start", (2, 8)), webgpu.buffer("end", (2, 4))
    op = copy_op()
    calls = [Call(op, operands, (1,), "all") for operands in ((start, a), (a, b), (b, c), (c, d), (d, end))]
    slots = assign_slots(calls, kept=set())
    where = {buffer.name: i for i, slot in enumerate(slots) for buffer in slot}
    assert len(slots) == 2
    for first, second in (("a", "b"), ("b", "c"), ("c", "d")):
        assert where[first] != where[second]
    assert [slot[0].nbytes for slot in slots] == sorted((slot[0].nbytes for slot in slots), reverse=True)
    assert len(assign_slots(calls, kept={id(a)})) == 3


def copy_op() -> object:
    from shohin.kernels.copy.op import Copy

    return Copy()


# Tapes


def small_tape(device: Device, rows: int = 3) -> tuple[devices.Tape, Buffer]:
    x, out = device.buffer("x", (rows, 5)), device.buffer("out", (rows, 5))
    device.write(x, np.arange(rows * 5, dtype=np.float32).reshape(rows, 5))
    tape = device.recorder("small", rows)
    copy(tape, x, out)
    tape.output("out", out, "rows")
    return tape.finish(), x


@pytest.mark.row("S0.21", "S0.31")
def test_one_submission_a_play_and_no_allocation_after_warm_up(webgpu: Device) -> None:
    tape, _ = small_tape(webgpu)
    tape.play(Step.rows_only(3), ("out",))
    submissions, allocations = webgpu.submissions, webgpu.allocations
    for _ in range(5):
        tape.play(Step.rows_only(2), ("out",))
    assert (webgpu.submissions - submissions, webgpu.allocations - allocations) == (5, 0)


def test_a_page_table_that_grows_is_one_allocation(webgpu: Device) -> None:
    tape, _ = small_tape(webgpu)
    step = Step.of([0, 0, 0], pages=np.zeros((1, 4000), np.int32))
    allocations = webgpu.allocations
    for _ in range(3):
        got = tape.play(step, ("out",))["out"]
        np.testing.assert_array_equal(got, np.arange(15).reshape(3, 5))
    assert webgpu.allocations - allocations == 1


def test_both_ways_of_encoding_give_the_same(webgpu: WebGpu) -> None:
    tape, _ = small_tape(webgpu)
    want = tape.play(Step.rows_only(3), ("out",))["out"]
    kept = webgpu.gpu._encode, webgpu.gpu._queue
    try:
        webgpu.gpu._encode, webgpu.gpu._queue = public_encoder(webgpu.gpu._device), None
        np.testing.assert_array_equal(tape.play(Step.rows_only(3), ("out",))["out"], want)
    finally:
        webgpu.gpu._encode, webgpu.gpu._queue = kept


@pytest.mark.row("S0.32", "S0.35")
def test_a_profile_is_a_submission_a_section(webgpu: Device) -> None:
    x, out = webgpu.buffer("x", (1, 8)), webgpu.buffer("out", (1, 8))
    tape = webgpu.recorder("t", 1)
    with tape.section("first"):
        copy(tape, x, out)
    with tape.section("second"):
        copy(tape, out, x)
    submissions = webgpu.submissions
    ticket, times = tape.finish().profile(Step.rows_only(1))
    assert [name for name, _ in times] == ["first", "second"] and all(t > 0 for _, t in times)
    assert webgpu.submissions - submissions == 2
    assert len(ticket.calls) == 2 * webgpu.gpu.timestamps
    assert all(0 < call <= 1.001 * section for call, (_, section) in zip(ticket.calls, times, strict=False))


@pytest.mark.row("S0.35", "S0.36")
@pytest.mark.parametrize("clock", [True, False])
def test_a_timed_play_gives_the_same_and_one_submission(webgpu: WebGpu, clock: bool) -> None:
    """By the adapter's clock, and by the host's where it has none."""
    tape, _ = small_tape(webgpu)
    want = tape.play(Step.rows_only(3), ("out",))["out"]
    usual, submissions = webgpu.gpu.timestamps, webgpu.submissions
    try:
        webgpu.gpu.timestamps = usual and clock
        begin = perf_counter()
        ticket = tape.play(Step.rows_only(3), ("out",), timed=True)
        wall = perf_counter() - begin
    finally:
        webgpu.gpu.timestamps = usual
    np.testing.assert_array_equal(ticket["out"], want)
    assert webgpu.submissions - submissions == 1
    assert ticket.encode_seconds > 0 and ticket.device_seconds > 0
    assert ticket.encode_seconds + ticket.device_seconds < wall, "neither counts the other's time"


@pytest.mark.parametrize("shape", [(3, 64), (5, 7), (2, 100_000)])
def test_sums_of_words(webgpu: Device, rng: np.random.Generator, shape: tuple[int, int]) -> None:
    values = rng.integers(-(2**31), 2**31, shape, np.int64).astype(np.int32)
    words, out = webgpu.buffer("words", shape, np.int32), webgpu.buffer("out", (shape[0], 1), np.int32)
    webgpu.write(words, values)
    tape = webgpu.recorder("read", 1)
    read(tape, words, out)
    tape.output("out", out, "all")
    got = tape.finish().play(Step.rows_only(1), ("out",))["out"]
    np.testing.assert_array_equal(got[:, 0], values.sum(axis=1, dtype=np.int32))


# Steps ahead of the host


def walk(device: Device, rng_seed: int = 3) -> devices.Tape:
    """Each token's row of a table, projected to logits: a walk over ids that depends on nothing but the last one."""
    rng = np.random.default_rng(rng_seed)
    table = packing.pack(device, "t", "F32", rng.standard_normal((40, 64))).weight
    head = packing.pack(device, "h", "F32", rng.standard_normal((40, 64))).weight
    tape = device.recorder("decode", 1)
    x, logits = tape.scratch("x", (1, 64)), tape.scratch("logits", (1, 40))
    ids, status = device.buffer("ids", (1,), np.int32), device.buffer("status", (1,), np.int32)
    embed(tape, table, x)
    norm_linear(tape, x, None, [head], logits, eps=1e-6, activations="exact", gather=True)
    pick(tape, logits, ids, status, vocabulary=40)
    tape.output("ids", ids, "wanted")
    tape.output("status", status, "wanted")
    return tape.finish()


def one(token: int) -> Step:
    return Step.of([token], positions=[0])


@pytest.mark.row("S0.23")
def test_steps_ahead_are_the_steps_one_by_one(webgpu: Device) -> None:
    want = list(walk(devices.device("host")).follow(Run(one(5), 30)))
    tape = walk(webgpu)
    assert list(tape.follow(Run(one(5), 30))) == want
    submissions, allocations = webgpu.submissions, webgpu.allocations
    assert list(tape.follow(Run(one(5), 30))) == want
    assert (webgpu.submissions - submissions, webgpu.allocations - allocations) == (30, 0)
    stop = want[6][0]
    first = [token for token, _ in want].index(stop)
    assert list(tape.follow(Run(one(5), 30, [stop]))) == want[: first + 1]
    many = [1000 + i for i in range(100)] + [stop]
    assert list(tape.follow(Run(one(5), 30, sorted(many, reverse=True)))) == want[: first + 1], (
        "more stops than the GPU sees"
    )


def test_a_run_survives_other_plays_of_its_tape_and_a_second_run(webgpu: Device) -> None:
    tape = walk(webgpu)
    want, other = list(tape.follow(Run(one(5), 12))), list(tape.follow(Run(one(7), 12)))
    found, mixed = [], []
    second = tape.follow(Run(one(7), 12))
    for pair in tape.follow(Run(one(5), 12)):
        found.append(pair)
        ticket = tape.play(one(9), ("ids",))
        assert 0 <= ticket["ids"][0] < 40
        mixed.append(next(second))
    assert (found, mixed) == (want, other)


def test_a_run_that_is_left_early_leaves_the_tape_usable(webgpu: Device) -> None:
    tape = walk(webgpu)
    want = list(tape.follow(Run(one(5), 10)))
    run = tape.follow(Run(one(5), 100))
    assert [next(run) for _ in range(4)] == want[:4]
    run.close()  # type: ignore[attr-defined]
    assert list(tape.follow(Run(one(5), 10))) == want


# What goes wrong


@pytest.mark.row("H.18")
def test_a_lost_device_fails_and_can_be_opened_again() -> None:
    device = fresh()
    tape, x = small_tape(device)
    tape.play(Step.rows_only(3))
    device.gpu.lose()
    for call in (lambda: tape.play(Step.rows_only(3)), lambda: device.read(x), lambda: device.buffer("b", (4,))):
        with pytest.raises(DeviceFailed, match="webgpu"):
            call()
    again = fresh()
    tape, _ = small_tape(again)
    assert tape.play(Step.rows_only(1), ("out",))["out"].shape == (1, 5)


@pytest.mark.row("S3.46")
def test_a_kernel_that_does_not_compile_says_where(webgpu: WebGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    target = webgpu.target(1, 1)
    buffer = webgpu.buffer("b", (4,))
    binding = Binding("out", buffer, "array<f32>", write=True)
    broken = Dispatch(("kernels/copy/copy.wgsl",), "copy", {}, (binding,), (1, 1, 1))
    with pytest.raises(KernelBuild, match=r"kernel 'copy' does not compile:\n[\s\S]*WIDTH|live_rows"):
        webgpu.gpu.pipeline(assemble(broken, target))
    with pytest.raises(KernelBuild, match=r"kernels/none.wgsl cannot be read"):
        assemble(replace(broken, sources=("kernels/none.wgsl",)), target)


def test_an_op_without_a_kernel_is_named(webgpu: Device) -> None:
    class Strange:
        name = "strange"
        __module__ = "shohin.kernels.standalone.op"

        def parameters(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
            return (), ()

    with pytest.raises(KernelBuild, match="webgpu: op 'strange' has no kernel"):
        webgpu.compile([Call(Strange(), (), (), "all")], 1, 1)  # type: ignore[arg-type]


# Plans


def test_rows_of_workgroups_are_folded() -> None:
    for workgroups in (1, 65535, 65536, 200_000):
        x, y, z = grid(workgroups)
        assert x <= 65535 and z == 1 and workgroups <= x * y < workgroups + 65535 + (y == 1)


def test_a_dispatch_binds_at_most_eight_buffers_and_none_twice(webgpu: Device, rng: np.random.Generator) -> None:
    """Read and written buffers of a dispatch are different GPU buffers, and none needs more than WebGPU promises."""
    from shohin.devices.beside import beside

    weight = packing.pack(webgpu, "w", "Q1_0", rng.standard_normal((256, 256))).weight
    norm = packing.vector(webgpu, "n", np.ones(256))
    for rows in (1, 9):
        x, out, wide = (webgpu.buffer(n, (rows, w)) for n, w in (("x", 256), ("out", 256), ("wide", 768)))
        tape = webgpu.recorder("t", rows)
        norm_linear(tape, x, norm, [weight] * 3, wide, eps=1e-5, activations="int8")
        linear_add(tape, x, weight, out, activations="int8")
        target = Target(rows, rows, True, True, Limits(1 << 27, 8, 16384, 256), 256)
        for call in tape.calls:
            target.next_call()
            plan = beside(call.op, "webgpu").dispatches(call, target)
            assert len(plan) == (1 if rows == 1 else 2)
            for dispatch in plan:
                assert len(dispatch.bindings) <= 8
                written = [b.argument for b in dispatch.bindings if b.write]
                others = [b.argument for b in dispatch.bindings if not b.write]
                assert not any(w is o or w == o for w in written for o in others)


def test_long_rows_fit_small_workgroups(webgpu: Device, rng: np.random.Generator) -> None:
    """With WebGPU's least workgroup memory, rows too long to be prepared in every workgroup are prepared once."""
    from shohin.devices.beside import beside

    made = packing.tensor("w", "Q1_0", rng.standard_normal((4, 25600)))
    weight = webgpu.pack(Tensor(made.name, made.shape, FORMATS["Q1_0"], made.data))
    x, out = webgpu.buffer("x", (1, 25600)), webgpu.buffer("out", (1, 4))
    tape = webgpu.recorder("t", 1)
    linear_add(tape, x, weight, out, activations="int8")
    target = Target(1, 1, False, False, Limits(1 << 27, 8, 16384, 256), 256)
    plan = beside(tape.calls[0].op, "webgpu").dispatches(tape.calls[0], target)
    assert [d.entry for d in plan] == ["prepare", "multiply"]
