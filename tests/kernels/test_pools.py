"""Validation order, exact lengths, empty products and the pool of gemm and gemm_f32; handles and buffers."""

from __future__ import annotations

import threading

import numpy as np
import packing
import pytest
from opening import another

from shohin import devices, kernels
from shohin.devices import Device, Step
from shohin.errors import BadRequest, BadShape, BadState, Cancelled, KernelBuild, NoDevice, OutOfMemory
from shohin.formats.blocks import FORMATS
from shohin.formats.tensor import Tensor
from shohin.kernels.gemm import gemm as record_gemm

K, N = 256, 6


@pytest.fixture
def weight(device: Device, rng: np.random.Generator):
    return packing.matrix(device, rng, "Q1_0", N, K).weight


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


@pytest.mark.row("S3.11", "S3.47", "H.22", "T.19")
def test_gemv_checks_x_then_out_and_takes_longer_arrays(device: Device, weight) -> None:
    out = np.full(N + 2, 7, np.float32)
    with pytest.raises(BadShape, match="gemv: x: at least 256 values are needed, got 255"):
        kernels.gemv(device, weight, ones(K - 1), out[: N - 1])
    with pytest.raises(BadShape, match="gemv: out: at least 6 values are needed, got 5"):
        kernels.gemv(device, weight, ones(K), out[: N - 1])
    assert (out == 7).all()
    x = ones(K + 3)
    x[K:] = np.nan
    assert kernels.gemv(device, weight, x, out) is out
    np.testing.assert_array_equal(out[:N], kernels.gemv(device, weight, ones(K)).astype(np.float32))
    assert (out[N:] == 7).all()


@pytest.mark.row("H.22")
def test_arrays_of_the_wrong_kind_are_refused_not_converted(device: Device, weight) -> None:
    wrong = {
        "a NumPy array was expected, got list": [1.0] * K,
        "float32 was expected, got float16": np.ones(K, np.float16),
        "float32 was expected, got int32": np.ones(K, np.int32),
        "is not C-contiguous": ones(2 * K)[::2],
    }
    for words, x in wrong.items():
        with pytest.raises(BadShape, match=words):
            kernels.gemv(device, weight, x)
    frozen = ones(N)
    frozen.flags.writeable = False
    with pytest.raises(BadShape, match="read-only"):
        kernels.gemv(device, weight, ones(K), frozen)
    with pytest.raises(BadShape, match="is not C-contiguous"):
        kernels.gemm(device, weight, np.asfortranarray(ones(3, K)))
    with pytest.raises(BadRequest, match="'fp8', expected one of int8, exact"):
        kernels.gemv(device, weight, ones(K), activations="fp8")


@pytest.mark.row("S3.15", "S3.18", "H.6", "H.7", "S3.47")
def test_gemm_checks_in_order_and_exactly(device: Device, rng: np.random.Generator, weight) -> None:
    out = np.full((3, N), 7, np.float32)
    for call in (kernels.gemm, kernels.gemm_f32):
        for x in (ones(3, K - 1), ones(3, K + 1), ones(3 * K)):
            with pytest.raises(BadShape, match=rf"x must be \[M, {K}\]"):
                call(device, weight, x, out[:2])  # out is wrong too, and comes later
        for bad in (out[:2].copy(), np.full((4, N), 7, np.float32)):
            with pytest.raises(BadShape, match=f"out: exactly {3 * N} values are needed, got {bad.size}"):
                call(device, weight, ones(3, K), bad)
    with pytest.raises(BadShape, match="is Q1_0, F32 was expected"):
        kernels.gemm_f32(device, weight, ones(3, K), out)
    assert (out == 7).all()
    with pytest.raises(BadShape, match="a matrix was expected"):
        kernels.gemm(device, packing.vector(device, "v", ones(K)), ones(3, K), out)


@pytest.mark.row("H.12", "S3.15")
def test_sizes_that_no_device_indexes(device: Device, weight) -> None:
    """An array of 2^33 rows and no columns is a legal NumPy array; M * N is not a legal result."""
    with pytest.raises(BadShape, match="x must be"):
        kernels.gemm(device, weight, np.empty((2**33, 0), np.float32))
    from shohin.kernels.standalone.arrays import product

    assert product("p", 2**31, 2**28) == 2**59
    for sizes in ((2**32, 1), (2**31, 2**31), (2**31, 2**29)):
        with pytest.raises(BadShape, match="more than can be indexed"):
            product("p", *sizes)


@pytest.mark.row("S3.16", "H.8", "T.10", "SC.2", "SC.3")
def test_empty_products(device: Device, weight) -> None:
    """M = 0 is a success that touches nothing. K = 0 can't happen: a weight without bytes is refused when packed."""
    submissions = device.submissions
    assert kernels.gemm(device, weight, ones(0, K)).shape == (0, N)
    out = np.empty((0, N), np.float32)
    assert kernels.gemm(device, weight, ones(0, K), out) is out
    assert device.submissions == submissions
    for shape in ((N, 0), (0, K)):
        with pytest.raises(BadShape, match="holds no bytes"):
            device.pack(Tensor("empty", shape, FORMATS["F32"], np.zeros(0, np.uint8)))
    with pytest.raises(BadShape, match="holds no bytes"):
        device.buffer("empty", (0, 4))


@pytest.mark.row("SC.1", "S3.6", "T.5", "H.5", "H.7", "H.13", "S3.10")
def test_a_weight_carries_what_it_is(device: Device, rng: np.random.Generator, weight) -> None:
    assert (weight.shape, weight.source_format.name, weight.nbytes) == ((N, K), "Q1_0", N * K // 128 * 18)
    tape = device.recorder("test", 1)
    x, out = device.buffer("x", (1, K)), device.buffer("out", (1, N))
    with pytest.raises(BadShape, match="shape"):
        record_gemm(tape, device.buffer("x", (1, K + 128)), weight, out, activations="exact")
    with pytest.raises(BadShape, match="shape"):
        record_gemm(tape, x, weight, device.buffer("out", (1, N + 1)), activations="exact")
    stranger = another(device)
    with pytest.raises(BadShape, match="is on device"):
        record_gemm(tape, stranger.buffer("x", (1, K)), weight, out, activations="exact")
    with pytest.raises(BadShape, match="is on device"):
        kernels.gemv(stranger, weight, ones(K))
    object.__setattr__(weight, "nbytes", weight.nbytes - 18)
    with pytest.raises(BadShape, match="bytes"):
        kernels.gemv(device, weight, ones(K))


@pytest.mark.row("S3.7", "S3.8", "S3.10", "S0.10", "H.13", "H.14", "H.15", "R.30")
def test_handles_are_not_looked_up_by_name_or_address(device: Device, rng: np.random.Generator) -> None:
    """Two tensors of one name, and many in memory that is freed and used again, each keep their own values."""
    x = rng.standard_normal(128).astype(np.float32)
    for fmt in ("F32", "Q1_0", "PQ2_0", "F32"):
        for _ in range(4):
            made = packing.pack(device, "same name", fmt, rng.standard_normal((4, 128)))
            want = made.dense @ x.astype(np.float64)
            np.testing.assert_allclose(kernels.gemv(device, made.weight, x), want, rtol=0, atol=1e-4)


@pytest.mark.row("H.23", "SC.3", "SC.4", "SC.5")
@pytest.mark.parametrize("fmt", packing.QUANTISED + packing.FLOATS)
def test_blocks_may_lie_at_any_address(device: Device, rng: np.random.Generator, fmt: str) -> None:
    """An odd number of odd-sized blocks, mapped from an odd offset: the same result as from aligned memory."""
    k = 3 * FORMATS[fmt].block if FORMATS[fmt].block > 1 else 99
    aligned = packing.pack(device, "w", fmt, rng.standard_normal((5, k)))
    memory = np.zeros(aligned.raw.size + 64, np.uint8)
    start = 1 - memory.ctypes.data % 2  # an odd address
    memory[start : start + aligned.raw.size] = aligned.raw.reshape(-1)
    data = memory[start : start + aligned.raw.size]
    assert data.ctypes.data % 2 == 1
    odd = device.pack(Tensor("w", (5, k), FORMATS[fmt], data))
    x = rng.standard_normal((2, k)).astype(np.float32)
    for mode in ("exact", "int8"):
        want = kernels.gemm(device, aligned.weight, x, activations=mode)
        np.testing.assert_array_equal(kernels.gemm(device, odd, x, activations=mode), want)
    buffer = device.buffer("b", (3, 5))
    address = buffer.storage.pointer if device.name == "cuda" else buffer.storage.ctypes.data
    assert address % 64 == 0


@pytest.mark.row("H.7", "SC.4", "SC.5")
@pytest.mark.parametrize("change", [-1, 1, -18, 18])
def test_bytes_that_do_not_fit_the_shape_are_refused(device: Device, change: int) -> None:
    data = np.zeros(4 * 18 + change, np.uint8)
    with pytest.raises(BadShape, match=rf"'w' has {72 + change} bytes, \[4, 128\] in Q1_0 needs 72"):
        device.pack(Tensor("w", (4, 128), FORMATS["Q1_0"], data))


@pytest.mark.row("S3.46")
def test_the_kernels_in_use_are_named(device: Device) -> None:
    """Built ahead of time: a device tells its tier, and an op it lacks is an error when the tape is made."""
    named = str(device.float_type) if device.name == "host" else device.tier
    assert named in device.kernels
    if device.name == "host":
        return  # every op has a reference
    tape = device.recorder("test", 1)
    x = device.buffer("x", (1, 8))
    unknown = type("Unknown", (), {"name": "no_such_op", "parameters": lambda self: ((), ())})()
    tape.add(unknown, (x,), writes=(0,))
    with pytest.raises(KernelBuild, match="no_such_op"):
        tape.finish()


@pytest.mark.row("H.18", "H.19", "R.26")
def test_a_cancelled_play_ends_and_leaves_the_device_working() -> None:
    try:
        device = devices.device("cpu", threads=2, tier="generic")
    except ImportError as error:
        pytest.skip(f"the native core is not built: {error}")
    w = packing.pack(device, "w", "F32", np.eye(512)).weight
    x = np.random.default_rng(0).standard_normal((256, 512)).astype(np.float32)
    stream, other = (device.buffer(name, x.shape) for name in ("a", "b"))
    tape = device.recorder("long", len(x))
    for _ in range(200):
        record_gemm(tape, stream, w, other, activations="exact")
        record_gemm(tape, other, w, stream, activations="exact")
    finished = tape.finish()
    over = threading.Event()

    def cancel() -> None:
        while not over.wait(0.01):
            device.cancel()

    thread = threading.Thread(target=cancel)
    device.write(stream, x)
    thread.start()
    try:
        with pytest.raises(Cancelled, match="cancelled"):
            finished.play(Step.rows_only(len(x)))
    finally:
        over.set()
        thread.join(10)
    np.testing.assert_array_equal(kernels.gemm(device, w, x), x)


@pytest.mark.row("S3.1", "S3.2")
def test_a_device_that_is_not_there() -> None:
    for _ in range(2):  # nothing is remembered from the failure
        with pytest.raises(NoDevice, match="'cuda:x' is not available"):
            devices.device("cuda:x")
    with pytest.raises(BadRequest, match="float16"):
        devices.device("host", dtype="float16")
    assert devices.device("host").name == "host"


@pytest.mark.row("S3.9", "H.16", "S3.7", "H.15")
def test_handles_are_owned_and_counted(device: Device, rng: np.random.Generator) -> None:
    before = device.resident_bytes
    made = packing.tensor("w", "Q1_0", rng.standard_normal((4, 128)))
    first, second = device.pack(made), device.pack(made)
    assert device.resident_bytes == before + first.nbytes + second.nbytes
    del first
    assert device.resident_bytes == before + second.nbytes
    del second
    assert device.resident_bytes == before


@pytest.mark.row("S3.5", "S3.19", "S3.20", "S3.21", "S3.22", "S3.42", "T.4", "T.17")
def test_gemm_pool_grows_each_buffer_on_its_own(device: Device, rng: np.random.Generator) -> None:
    pool = device.pool("gemm")
    small, wide, tall = (packing.matrix(device, rng, "Q1_0", n, k).weight for n, k in ((4, 128), (4, 512), (64, 128)))
    dense = packing.matrix(device, rng, "F32", 4, 100).weight
    x = rng.standard_normal((2, 128)).astype(np.float32)
    want = kernels.gemm(device, small, x)
    assert pool.allocations == 2
    kernels.gemm(device, small, x)
    assert pool.allocations == 2
    kernels.gemm(device, wide, ones(2, 512))  # only the input grows
    assert pool.allocations == 3
    kernels.gemm(device, tall, ones(2, 128))  # only the output grows
    assert pool.allocations == 4
    kernels.gemm_f32(device, dense, ones(2, 100))  # shares the pool, and fits
    assert pool.allocations == 4
    np.testing.assert_array_equal(kernels.gemm(device, small, x), want)
    assert pool.allocations == 4
    kernels.gemm_f32(device, packing.matrix(device, rng, "F32", 200, 600).weight, ones(2, 600))
    assert pool.allocations == 6
    np.testing.assert_array_equal(kernels.gemm(device, small, x), want)
    assert pool.allocations == 6
    assert another(device).pool("gemm").allocations == 0, "pools and counters belong to a device"


@pytest.mark.row("S3.20", "S3.42")
def test_old_values_in_the_pool_never_reach_a_result(device: Device, rng: np.random.Generator) -> None:
    w = packing.matrix(device, rng, "Q1_0", 4, 128).weight
    x = rng.standard_normal((2, 128)).astype(np.float32)
    want = kernels.gemm(device, w, x)
    kernels.gemm(device, w, np.full((9, 128), np.nan, np.float32))
    np.testing.assert_array_equal(kernels.gemm(device, w, x), want)
    np.testing.assert_array_equal(
        kernels.gemm(device, w, x, activations="int8")[:1], kernels.gemm(device, w, x[:1], activations="int8")
    )


@pytest.mark.row("H.24", "H.19", "S3.21")
def test_failed_growth_of_the_gemm_pool(device: Device, rng: np.random.Generator, monkeypatch) -> None:
    small, wide = (packing.matrix(device, rng, "Q1_0", n, k).weight for n, k in ((4, 128), (64, 512)))
    want = kernels.gemm(device, small, ones(2, 128))
    out = np.full((2, 64), 7, np.float32)

    def failing(shape, dtype):
        raise OutOfMemory("no more")

    monkeypatch.setattr(device, "_allocate", failing)
    with pytest.raises(OutOfMemory):
        kernels.gemm(device, wide, ones(2, 512), out)
    monkeypatch.undo()
    assert (out == 7).all()
    assert device.pool("gemm").allocations == 2
    np.testing.assert_array_equal(kernels.gemm(device, small, ones(2, 128)), want)
    kernels.gemm(device, wide, ones(2, 512), out)
    assert device.pool("gemm").allocations == 4


@pytest.mark.row("SC.2", "S3.4")
def test_a_request_larger_than_memory_says_so(device: Device) -> None:
    before = device.allocations
    with pytest.raises(OutOfMemory, match="not available"):
        device.buffer("huge", (2**31 - 1, 2**30))
    assert device.allocations == before


@pytest.mark.row("S3.3", "S3.19", "S0.9")
def test_concurrent_callers_wait_and_never_mix(device: Device, rng: np.random.Generator) -> None:
    ws = [packing.matrix(device, rng, "Q1_0", n, 128) for n in (3, 8, 17, 33)]
    xs = [rng.standard_normal((m, 128)).astype(np.float32) for m in (1, 5, 2, 9)]
    wants = [kernels.gemm(device, w.weight, x) for w, x in zip(ws, xs, strict=True)]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(20):
            if not np.array_equal(kernels.gemm(device, ws[i].weight, xs[i]), wants[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    assert not wrong and not any(t.is_alive() for t in threads)


@pytest.mark.row("S3.34", "S3.36", "H.5", "H.21")
def test_ffn_checks_in_order_and_writes_nothing(device: Device, rng: np.random.Generator) -> None:
    h, k, inner = 128, 256, 128
    made = {
        name: packing.matrix(device, rng, "Q1_0", n, c).weight
        for name, n, c in (("output", h, k), ("gate", inner, h), ("up", inner, h), ("down", h, inner))
    }
    norm = packing.vector(device, "norm", ones(h))
    block = kernels.standalone.blocks.FeedForward(norm, made["gate"], made["up"], made["down"])
    hidden = ones(h)
    with pytest.raises(BadShape, match="ffn: hidden: at least 128 values are needed, got 127"):
        kernels.ffn(device, made["output"], block, hidden[:-1], ones(k - 1))
    with pytest.raises(BadShape, match="ffn: attended: at least 256 values are needed, got 255"):
        kernels.ffn(device, made["output"], block, hidden, ones(k - 1))
    wrong = {
        "norm": (packing.vector(device, "n", ones(h - 1)), made["gate"], made["up"], made["down"]),
        "up": (norm, made["gate"], made["output"], made["down"]),
        "linear_add": (norm, made["gate"], made["up"], packing.matrix(device, rng, "Q1_0", h + 1, inner).weight),
        "gate": (norm, made["output"], made["up"], made["down"]),
    }
    for words, parts in wrong.items():
        with pytest.raises(BadShape, match=words):
            kernels.ffn(device, made["output"], type(block)(*parts), hidden, ones(k))
    for eps in (0, -1, np.nan, np.inf):
        with pytest.raises(BadShape, match="epsilon"):
            kernels.ffn(device, made["output"], block, hidden, ones(k), eps=eps)
    assert (hidden == 1).all()


def test_an_output_that_was_not_fetched_is_named(device: Device, weight) -> None:
    tape = device.recorder("test", 1)
    x, out = device.buffer("x", (1, K)), device.buffer("out", (1, N))
    record_gemm(tape, x, weight, out, activations="exact")
    tape.output("out", out, "rows")
    finished = tape.finish()
    with pytest.raises(BadState, match="not fetched"):
        finished.play(Step.rows_only(1))["out"]
    with pytest.raises(BadState, match="no output 'logits'"):
        finished.play(Step.rows_only(1), ("logits",))
