"""The native core as a machine: refusals, cancelling, signals, threads, forks, memory."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import numpy as np
import packing
import pytest

from shohin import _core, devices
from shohin.devices import Device, Step, Tape
from shohin.errors import BadShape, Cancelled, DeviceFailed, KernelBuild
from shohin.formats.blocks import FORMATS
from shohin.kernels.gemm import gemm

NONE = np.zeros(0, np.int32)
TABLE = np.zeros((1, 0), np.int32)


def product(device: Device, rng: np.random.Generator, m: int, n: int, k: int, calls: int = 1) -> tuple[Tape, Any]:
    weight = packing.matrix(device, rng, "Q1_0", n, k).weight
    x, out = device.buffer("x", (m, k)), device.buffer("out", (m, n))
    device.write(x, rng.standard_normal((m, k)).astype(np.float32))
    tape = device.recorder("test", m)
    for _ in range(calls):
        gemm(tape, x, weight, out, activations="int8")
    tape.output("out", out, "rows")
    return tape.finish(), x


# Operands of a good gemm call: x [2, 128], weight Q1_0 [3, 128], out [2, 3].
def operands(**changes: Any) -> list[Any]:
    good = {
        "x": (np.zeros((2, 128), np.float32), "float32", (2, 128)),
        "w": (np.zeros(3 * 18, np.uint8), "Q1_0", (3, 128)),
        "out": (np.zeros((2, 3), np.float32), "float32", (2, 3)),
    }
    good.update(changes)
    return list(good.values())


def frozen(shape: tuple[int, ...]) -> np.ndarray:
    array = np.zeros(shape, np.float32)
    array.flags.writeable = False
    return array


BAD = {
    "bytes too few for the shape": {"w": (np.zeros(3 * 18 - 1, np.uint8), "Q1_0", (3, 128))},
    "bytes too many": {"w": (np.zeros(4 * 18, np.uint8), "Q1_0", (3, 128))},
    "a row less than the output has": {"w": (np.zeros(2 * 18, np.uint8), "Q1_0", (2, 128))},
    "columns in no whole blocks": {"w": (np.zeros(3 * 18, np.uint8), "Q1_0", (3, 129))},
    "other columns than x": {"w": (np.zeros(3 * 36, np.uint8), "Q1_0", (3, 256))},
    "an unknown format": {"w": (np.zeros(3 * 18, np.uint8), "Q9_9", (3, 128))},
    "a buffer for a weight": {"w": (np.zeros((3, 128), np.float32), "float32", (3, 128))},
    "no weight": {"w": None},
    "negative sizes": {"w": (np.zeros(3 * 18, np.uint8), "Q1_0", (-3, -128))},
    "an overflowing size": {"w": (np.zeros(3 * 18, np.uint8), "Q1_0", (2**60, 2**60))},
    "no dimension": {"w": (np.zeros(3 * 18, np.uint8), "Q1_0", ())},
    "x of another dtype": {"x": (np.zeros((2, 128), np.int32), "int32", (2, 128))},
    "x of fewer rows": {"x": (np.zeros((1, 128), np.float32), "float32", (1, 128))},
    "a read-only output": {"out": (frozen((2, 3)), "float32", (2, 3))},
    "an output at an odd address": {"out": (np.zeros(25, np.uint8)[1:], "float32", (2, 3))},
    "an array with gaps": {"x": (np.zeros((2, 256), np.float32)[:, ::2], "float32", (2, 128))},
}


@pytest.mark.row("H.5", "H.6", "H.7", "H.12", "H.22")
@pytest.mark.parametrize("tier", _core.tiers())
@pytest.mark.parametrize("what", BAD)
def test_the_core_checks_for_itself(what: str, tier: str) -> None:
    """Whatever the Python checks missed, nothing is read or written outside an operand."""
    pool = _core.Pool(2)
    _core.Program([("gemm", operands(), [1], [])], 2, 2, pool, tier)
    with pytest.raises(ValueError, match=r"gemm|operand"):
        _core.Program([("gemm", operands(**BAD[what]), [1], [])], 2, 2, pool, tier)


@pytest.mark.parametrize(("ints", "floats"), [([], []), ([1, 2], []), ([1], [0.5]), ([7], [])])
def test_parameters_are_counted(ints: list[int], floats: list[float]) -> None:
    with pytest.raises(ValueError, match="gemm"):
        _core.Program([("gemm", operands(), ints, floats)], 2, 2, _core.Pool(1), "generic")
    with pytest.raises(ValueError, match="gemm"):
        _core.Program([("gemm", operands()[:2], [1], [])], 2, 2, _core.Pool(1), "generic")


def test_an_op_or_tier_that_is_not_there() -> None:
    with pytest.raises(LookupError, match="'warp' has no kernel"):
        _core.Program([("warp", operands(), [1], [])], 2, 2, _core.Pool(1), "generic")
    with pytest.raises(ValueError, match="tier 'mmx'"):
        _core.Program([("gemm", operands(), [1], [])], 2, 2, _core.Pool(1), "mmx")
    device = devices.device("cpu")

    class Warp:
        name = "warp"

        def parameters(self) -> tuple[tuple[()], tuple[()]]:
            return (), ()

        def check(self, operands: Any, step: Step) -> None: ...

    tape = device.recorder("test", 1)
    tape.add(Warp(), (device.buffer("x", (1, 1)),), (0,))
    with pytest.raises(KernelBuild, match=r"cpu \(.*'warp'"):
        tape.finish()


def steps(**changes: Any) -> tuple[Any, ...]:
    good = {"tokens": [0, 0], "positions": [0, 1], "sequences": [0, 0], "pages": TABLE, "wanted": [0, 1]}
    good.update(changes)
    return tuple(np.array(v, np.int32) if isinstance(v, list) else v for v in good.values())


@pytest.mark.row("H.1")
@pytest.mark.parametrize(
    "change",
    [
        {"tokens": [0, 9]},
        {"tokens": [0, -1]},
        {"positions": [0]},
        {"positions": [0, -5]},
        {"sequences": [0, 1]},
        {"wanted": [0, 2]},
        {"wanted": [-1]},
        {"wanted": [0, 0, 0]},
        {"tokens": NONE, "positions": NONE, "sequences": NONE, "wanted": NONE},
        {"tokens": [0] * 3, "positions": [0] * 3, "sequences": [0] * 3},
    ],
    ids=str,
)
def test_a_step_outside_the_operands_is_refused_before_anything_is_written(change: dict[str, Any]) -> None:
    out = np.full((2, 128), 7, np.float32)
    table = (np.zeros(4 * 18, np.uint8), "Q1_0", (4, 128))
    calls = [("embed", [table, (out, "float32", (2, 128))], [], [])]
    program = _core.Program(calls, 2, 2, _core.Pool(2), "generic")
    with pytest.raises(ValueError, match=r"step|embed"):
        program.run(0, 1, *steps(**change))
    for first, last in ((-1, 1), (0, 2), (1, 0)):
        with pytest.raises(ValueError, match="calls"):
            program.run(first, last, *steps())
    assert (out == 7).all()
    assert program.run(0, 1, *steps())
    assert not (out == 7).any()


@pytest.mark.row("H.1", "H.11")
@pytest.mark.parametrize(
    "change",
    [
        {"pages": np.array([[0, 2]], np.int32)},
        {"pages": np.array([[0, -1]], np.int32)},
        {"pages": np.array([[0]], np.int32)},
        {"positions": [64, 128]},
        {"sequences": [0, 1]},
    ],
    ids=str,
)
def test_attend_never_leaves_the_cache(change: dict[str, Any]) -> None:
    cache = (np.zeros((2, 1, 64, 8), np.float32), "float32", (2, 1, 64, 8))
    values = (np.zeros((2, 1, 64, 8), np.float32), "float32", (2, 1, 64, 8))
    qkv = (np.ones((2, 24), np.float32), "float32", (2, 24))
    rope = (np.ones((128, 8), np.float32), "float32", (128, 8))
    out = (np.zeros((2, 8), np.float32), "float32", (2, 8))
    call = ("attend", [qkv, None, None, rope, cache, values, None, None, out], [1, 1, 8, 0], [1e-6])
    program = _core.Program([call], 2, 2, _core.Pool(2), "generic")
    good = {"pages": np.array([[0, 1]], np.int32), "positions": [63, 64]}
    with pytest.raises(ValueError, match=r"attend|step"):
        program.run(0, 1, *steps(**(good | change)))
    assert not cache[0].any() and not out[0].any()
    assert program.run(0, 1, *steps(**good))
    for bad_ints in ([0, 1, 8, 0], [1, 0, 8, 0], [3, 2, 8, 0], [1, 1, 7, 0], [1, 1, 512, 0], [1, 1, 8, 2]):
        with pytest.raises(ValueError, match="attend"):
            _core.Program([(call[0], call[1], bad_ints, [1e-6])], 2, 2, _core.Pool(1), "generic")


@pytest.mark.row("H.18")
def test_cancel_ends_a_long_play_and_the_next_one_is_whole(rng: np.random.Generator) -> None:
    device = devices.device("cpu", threads=2)
    tape, _ = product(device, rng, 64, 512, 1024, calls=400)
    begin = time.perf_counter()
    want = tape.play(Step.rows_only(64), ("out",))["out"]
    whole = time.perf_counter() - begin
    timer = threading.Timer(whole / 10, device.cancel)
    timer.start()
    begin = time.perf_counter()
    with pytest.raises(Cancelled):
        tape.play(Step.rows_only(64))
    assert time.perf_counter() - begin < 0.8 * whole + 1
    timer.join()
    device.cancel()  # nothing runs: without effect
    np.testing.assert_array_equal(tape.play(Step.rows_only(64), ("out",))["out"], want)


@pytest.mark.row("H.18")
@pytest.mark.parametrize("threads", [1, 2])
def test_cancel_drops_the_rest_of_a_stage(rng: np.random.Generator, threads: int) -> None:
    """A play of one call: after a cancel in its middle some outputs were never computed."""
    pool, zero = _core.Pool(threads), np.zeros(128, np.int32)
    x = rng.standard_normal((128, 1024)).astype(np.float32)
    out = np.full((128, 8192), np.nan, np.float32)
    weight = np.zeros((8192, FORMATS["Q1_0"].nbytes(1024)), np.uint8)
    ops = [(x, "float32", x.shape), (weight, "Q1_0", (8192, 1024)), (out, "float32", out.shape)]
    program = _core.Program([("gemm", ops, [0], [])], 128, 128, pool, "generic")
    begin = time.perf_counter()
    assert program.run(0, 1, zero, zero, zero, TABLE, NONE)
    whole = time.perf_counter() - begin
    assert not np.isnan(out).any()
    for attempt in range(10):  # on a busy machine the timer may miss the middle
        out[:] = np.nan
        timer = threading.Timer(whole * (attempt + 1) / 16, pool.cancel)
        timer.start()
        finished = program.run(0, 1, zero, zero, zero, TABLE, NONE)
        timer.join()
        if not finished and np.isnan(out).any() and not np.isnan(out).all():
            return
    pytest.fail(f"ten cancels within {whole:.3f} s dropped nothing")


INTERRUPTED = """
import os, signal, threading, time
import numpy as np
from shohin import _core
x = (np.ones((64, 1024), np.float32), "float32", (64, 1024))
w = (np.zeros(512 * 8 * 18, np.uint8), "Q1_0", (512, 1024))
out = (np.zeros((64, 512), np.float32), "float32", (64, 512))
program = _core.Program([("gemm", [x, w, out], [1], [])] * 200000, 64, 64, _core.Pool(2), "generic")
zero, none = np.zeros(64, np.int32), np.zeros(0, np.int32)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started us with it ignored
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
begin = time.perf_counter()
try:
    program.run(0, 200000, zero, zero, zero, np.zeros((1, 0), np.int32), none)
except KeyboardInterrupt:
    print("interrupted", time.perf_counter() - begin)
program.run(0, 1, zero, zero, zero, np.zeros((1, 0), np.int32), none)
print("works")
"""


def run_script(script: str, seconds: float = 60) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.row("R.23")
def test_ctrl_c_ends_a_play(rng: np.random.Generator) -> None:
    """200,000 calls would take minutes; the signal ends them and the pool still works."""
    words = run_script(INTERRUPTED).split()
    assert words[0] == "interrupted" and words[2] == "works"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_plays_too(rng: np.random.Generator) -> None:
    """The parent's threads don't exist in a child: it starts its own instead of waiting for them for ever."""
    device = devices.device("cpu", threads=3)
    tape, _ = product(device, rng, 9, 64, 256)
    want = tape.play(Step.rows_only(9), ("out",))["out"]
    child = os.fork()
    if child == 0:
        same = np.array_equal(tape.play(Step.rows_only(9), ("out",))["out"], want)
        os._exit(0 if same else 1)
    deadline = time.monotonic() + 60
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(status) == 0
    np.testing.assert_array_equal(tape.play(Step.rows_only(9), ("out",))["out"], want)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_forked_in_the_middle_of_a_play_plays_too() -> None:
    """The parent's play holds the pool for ever as far as the child can see."""
    assert "child 0" in run_script(
        """
        import os, signal, threading, time, warnings
        import numpy as np
        from shohin import _core
        warnings.simplefilter("ignore")
        x = (np.ones((64, 1024), np.float32), "float32", (64, 1024))
        w = (np.zeros(512 * 8 * 18, np.uint8), "Q1_0", (512, 1024))
        out = (np.zeros((64, 512), np.float32), "float32", (64, 512))
        pool, zero = _core.Pool(2), np.zeros(64, np.int32)
        program = _core.Program([("gemm", [x, w, out], [1], [])] * 20000, 64, 64, pool, "generic")
        args = (zero, zero, zero, np.zeros((1, 0), np.int32), zero[:0])
        thread = threading.Thread(target=program.run, args=(0, 20000, *args))
        thread.start()
        time.sleep(0.2)
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            os._exit(0 if program.run(0, 1, *args) else 1)
        print("child", os.waitpid(child, 0)[1])
        pool.cancel()
        thread.join()
        """
    )


@pytest.mark.row("S3.3", "S3.19")
def test_four_threads_share_a_pool(rng: np.random.Generator) -> None:
    """Programs of one pool, run from four threads at once: each waits its turn and gets its own result."""
    pool = _core.Pool(3)
    zero = np.zeros(5, np.int32)

    def make(seed: int) -> tuple[Any, np.ndarray]:
        local = np.random.default_rng(seed)
        out = np.zeros((5, 40), np.float32)
        x = local.standard_normal((5, 256)).astype(np.float32)
        w = local.integers(0, 256, (40, FORMATS["Q8_0"].nbytes(256)), np.uint8)
        w.reshape(40, -1, 34)[:, :, :2] = np.frombuffer(np.float16(0.1).tobytes(), np.uint8)
        ops = [(x, "float32", x.shape), (w, "Q8_0", (40, 256)), (out, "float32", out.shape)]
        return _core.Program([("gemm", ops, [1], [])], 5, 5, pool, "generic"), out

    made = [make(seed) for seed in range(4)]
    wants = []
    for program, out in made:
        assert program.run(0, 1, zero, zero, zero, TABLE, NONE)
        wants.append(out.copy())
    failures: list[str] = []

    def work(program: Any, out: np.ndarray, want: np.ndarray) -> None:
        for _ in range(300):
            out[:] = np.nan
            if not program.run(0, 1, zero, zero, zero, TABLE, NONE) or not np.array_equal(out, want):
                failures.append("mixed up")

    threads = [threading.Thread(target=work, args=(*pair, want)) for pair, want in zip(made, wants, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert not np.array_equal(wants[0], wants[1])


def test_a_play_inside_a_play_is_refused_not_a_deadlock() -> None:
    words = run_script(
        """
        import os, signal, threading, time
        import numpy as np
        from shohin import _core
        x = (np.ones((64, 1024), np.float32), "float32", (64, 1024))
        w = (np.zeros(512 * 8 * 18, np.uint8), "Q1_0", (512, 1024))
        out = (np.zeros((64, 512), np.float32), "float32", (64, 512))
        program = _core.Program([("gemm", [x, w, out], [1], [])] * 200000, 64, 64, _core.Pool(2), "generic")
        zero, none = np.zeros(64, np.int32), np.zeros(0, np.int32)
        args = (zero, zero, zero, np.zeros((1, 0), np.int32), none)
        signal.signal(signal.SIGALRM, lambda *_: program.run(0, 1, *args))
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            program.run(0, 200000, *args)
        except RuntimeError as error:
            print(error)
        """
    )
    assert "inside a play" in words


def resident_bytes() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.row("S0.31", "R.27", "R.30")
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no /proc to read resident memory from")
def test_one_submission_a_play_and_memory_stays_flat(rng: np.random.Generator) -> None:
    """R.27 was 1.8 KiB a play: over 5,000 plays that would be 9 MB."""
    device = devices.device("cpu", threads=2)
    tape, _ = product(device, rng, 1, 64, 256)
    step = Step.rows_only(1)
    for _ in range(1000):
        tape.play(step, ("out",))
    gc.collect()
    before, counts = resident_bytes(), (device.submissions, device.allocations, device.uploads)
    for _ in range(5000):
        tape.play(step, ("out",))
    gc.collect()
    assert (device.submissions, device.allocations, device.uploads) == (counts[0] + 5000, *counts[1:])
    assert resident_bytes() - before < 2**20


def test_pools_and_programs_come_and_go(rng: np.random.Generator) -> None:
    """Threads end with their pool; a program keeps its pool and arrays alive."""
    before = threading.active_count(), len(os.listdir("/proc/self/task")) if os.path.exists("/proc/self/task") else 0
    for _ in range(50):
        pool = _core.Pool(4)
        ops = operands()
        ops[0][0][:] = 1
        program = _core.Program([("gemm", ops, [1], [])], 2, 2, pool, "generic")
        del pool, ops
        assert program.run(0, 1, *steps())
        del program
    gc.collect()
    if before[1]:
        assert len(os.listdir("/proc/self/task")) <= before[1]
    with pytest.raises(ValueError, match="at least one thread"):
        _core.Pool(0)


def test_other_float_modes_of_the_caller_change_nothing(rng: np.random.Generator) -> None:
    """Libraries switch denormals off for the calling thread; a play computes with them all the same."""
    torch = pytest.importorskip("torch", reason="torch switches denormals off in this test")
    device = devices.device("cpu", threads=2)
    tape, x = product(device, rng, 1, 64, 256)
    x.storage[:] *= np.float32(1e-36)
    want = tape.play(Step.rows_only(1), ("out",))["out"]
    if not torch.set_flush_denormal(True):
        pytest.skip("the processor has no such mode")
    try:
        got = tape.play(Step.rows_only(1), ("out",))["out"]
    finally:
        torch.set_flush_denormal(False)
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def test_errors_of_the_core_are_ours(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    device = devices.device("cpu")
    tape, _ = product(device, rng, 2, 8, 128)

    class Broken:
        def __init__(self, error: Exception) -> None:
            self.error = error

        def run(self, *_: Any) -> bool:
            raise self.error

    for raised, ours in ((ValueError("outside"), BadShape), (RuntimeError("fell over"), DeviceFailed)):
        monkeypatch.setattr(tape, "_program", Broken(raised))
        with pytest.raises(ours, match=str(raised)):
            tape.play(Step.rows_only(2))
