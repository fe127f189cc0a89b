"""The emulator of CUDA kernels: what kernels may call, against NumPy, and what it must report."""

from __future__ import annotations

from typing import Any

import emulator
import numpy as np
import pytest
from emulated import emulated_driver, kernel_driver, kernel_source, run_kernel
from emulator import EmulatedDriver
from emulator_build import NATIVE
from numpy.typing import NDArray

from shohin.devices.cuda.driver import Bound, Source
from shohin.errors import DeviceFailed, KernelBuild, OutOfMemory

LANES = np.arange(32)
POISON = 0x7FD57FD5


def source_of(entry: str, shared: int = 0, **constants: int) -> Source:
    return kernel_source(
        str(NATIVE / "cases.cu"),
        entry,
        {"WAITS": 1, "EARLY": 0, "TOO_LARGE": 0, "ROWS": 1, "WANTED": 1} | constants,
        shared,
    )


def run(entry: str, arguments: list[Any], threads: int = 32, blocks: int = 1, seed: int = 1) -> list[Any]:
    """On a real GPU where SHOHIN_TEST_GPU is set: what the emulator does is what a GPU does."""
    driver = kernel_driver(seed)
    return run_kernel(driver, source_of(entry), arguments, (blocks, 1, 1), threads)


def emulate(source: Source, arguments: list[Any], threads: int = 32, blocks: int = 1, seed: int = 1) -> list[Any]:
    """What only the emulator shows."""
    return run_kernel(emulated_driver(seed=seed), source, arguments, (blocks, 1, 1), threads)


def spread(matrix: NDArray[Any], rows: int, per_word: int) -> NDArray[np.uint32]:
    """A factor [rows, K] as words in fragments [lane, register] (PTX ISA, fragments of mma.m16n8k*): rows / 8 registers
    go down, then comes the other half of K.
    """
    words = np.ascontiguousarray(matrix).view(np.uint32)
    assert words.shape == (rows, 8), f"{per_word} values a word"
    registers = [words[down * 8 + LANES // 4, right * 4 + LANES % 4] for right in range(2) for down in range(rows // 8)]
    return np.ascontiguousarray(np.stack(registers, axis=1))


def gathered(fragments: NDArray[Any]) -> NDArray[Any]:
    """The 16 x 8 result of fragments [lane, 4]."""
    result = np.zeros((16, 8), fragments.dtype)
    for i in range(4):
        result[LANES // 4 + i // 2 * 8, LANES % 4 * 2 + i % 2] = fragments[:, i]
    return result


def test_bit_products(rng: np.random.Generator) -> None:
    a, b = (rng.integers(0, 2**32, (n, 4), np.uint32) for n in (16, 8))
    c = rng.integers(-1000, 1000, (32, 4), np.int32)
    words = np.stack([a[LANES // 4, LANES % 4], a[LANES // 4 + 8, LANES % 4]], axis=1)
    got = run("bits", [c, words, b[LANES // 4, LANES % 4]])[0]
    bits = [np.unpackbits(m.view(np.uint8), axis=1).astype(int) for m in (a, b)]
    np.testing.assert_array_equal(gathered(got), gathered(c) + bits[0] @ bits[1].T)


def test_byte_products(rng: np.random.Generator) -> None:
    a, b = (rng.integers(-128, 128, (n, 32)).astype(np.int8) for n in (16, 8))
    c = rng.integers(-1000, 1000, (32, 4), np.int32)
    got = run("bytes", [c, spread(a, 16, 4), spread(b, 8, 4)])[0]
    np.testing.assert_array_equal(gathered(got), gathered(c) + a.astype(int) @ b.astype(int).T)


@pytest.mark.parametrize("kind", ["halves", "bfloats"])
def test_float_products(rng: np.random.Generator, kind: str) -> None:
    a, b = (rng.standard_normal((n, 16)).astype(np.float32) for n in (16, 8))
    c = rng.standard_normal((32, 4)).astype(np.float32)
    if kind == "halves":
        narrow = [m.astype(np.float16) for m in (a, b)]
        values = [m.astype(np.float64) for m in narrow]
    else:
        narrow = [(m.view(np.uint32) >> 16).astype(np.uint16) for m in (a, b)]
        values = [(m.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for m in narrow]
    got = run(kind, [c, spread(narrow[0], 16, 2), spread(narrow[1], 8, 2)])[0]
    want = gathered(c) + values[0] @ values[1].T
    # 16 additions of float32.
    bound = 16 * 2.0**-24 * (abs(gathered(c)) + abs(values[0]) @ abs(values[1]).T)
    assert (abs(gathered(got) - want) <= bound).all()
    assert (abs(gathered(got)[[8, *range(1, 16)]] - want) > bound).any()


def test_matrices_are_loaded_in_fragments(rng: np.random.Generator) -> None:
    matrix = rng.integers(0, 2**16, (4, 8, 8), np.uint16)
    out = run("matrices", [matrix, np.zeros(384, np.uint32)])[1]
    for start, count, turned in ((0, 4, False), (128, 4, True), (256, 2, False), (320, 2, True)):
        got = out[start : start + 32 * count].reshape(32, count)
        for m in range(count):
            source = matrix[m].T if turned else matrix[m]
            words = np.ascontiguousarray(source).view(np.uint32)
            np.testing.assert_array_equal(got[:, m], words[LANES // 4, LANES % 4], f"{start} {m}")


@pytest.mark.parametrize("seed", range(4))
def test_lanes_of_a_warp(rng: np.random.Generator, seed: int) -> None:
    x = rng.integers(-40, 40, 64, np.int32)
    got = run("lanes", [x, np.zeros((11, 64), np.int32)], threads=64, seed=seed)[1]
    for w in range(2):
        v, rows = x[w * 32 : w * 32 + 32], got[:, w * 32 : w * 32 + 32]
        positive = np.uint32(sum(1 << i for i in range(32) if v[i] > 0)).astype(np.int32)
        same = [sum(1 << i for i in range(32) if v[i] & 3 == v[lane] & 3) for lane in range(32)]
        want = [
            np.full(32, v[5]),
            v[LANES // 8 * 8 + (w * 32 + LANES + 3) % 8],
            v[LANES ^ 9],
            v[np.where(LANES % 16 < 2, LANES, LANES - 2)],
            v[np.where(LANES % 8 >= 5, LANES, LANES + 3)],
            np.full(32, positive),
            np.full(32, 2 * int((v == 7).any()) + 1),
            np.full(32, v.sum()),
            np.full(32, v.astype(np.uint32).max()).astype(np.int32),
            np.array(same, np.uint32).astype(np.int32),
            np.where(LANES < 16, v[:16].min(), v[20]),
        ]
        np.testing.assert_array_equal(rows, np.array(want))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("threads", [32, 40, 96])
def test_barriers(rng: np.random.Generator, seed: int, threads: int) -> None:
    x = rng.integers(-40, 40, threads, np.int32)
    got = run("barriers", [x, np.zeros((4, threads), np.int32)], threads=threads, seed=seed)[1]
    want = [np.roll(x, 5), x, np.full(threads, 2 * int((x == 7).any()) + 1), np.full(threads, (x > 0).sum())]
    np.testing.assert_array_equal(got, np.array(want))


def test_atomics_and_the_order_of_blocks(rng: np.random.Generator) -> None:
    x = rng.integers(-1000, 1000, 8 * 64, np.int32)
    orders = []
    for seed in range(3):
        out, order = run("atomics", [x, np.zeros(6, np.int32), np.zeros(8, np.uint32)], 64, 8, seed)[1:]
        want = [x.sum(), max(0, x.max()), min(0, x.min()), np.bitwise_xor.reduce(x), 2 * len(x), len(x)]
        np.testing.assert_array_equal(out, want)
        orders.append(tuple(np.argsort(order)))
    if isinstance(kernel_driver(0), EmulatedDriver):
        assert len(set(orders)) == 3, orders


def test_numbers_of_one_thread(rng: np.random.Generator) -> None:
    n = 256
    x = (rng.standard_normal(n) * np.exp(rng.standard_normal(n) * 8)).astype(np.float32)
    x[:8] = [0.0, -0.0, np.inf, -np.inf, 65520.0, 65519.0, 2.5, 3e-8]
    y = rng.integers(0, 2**32, n, np.uint32)
    y[:4] = [0x7C00, 0x0001, 0x83FF, 0]
    w = np.roll(y, -1)
    got = run("numbers", [x, y, np.zeros((11, n), np.uint32)], threads=n)[2]
    with np.errstate(over="ignore", invalid="ignore"):
        half = x.astype(np.float16)
        halves = y.astype(np.uint16).view(np.float16).astype(np.float32)
        powers = np.exp2(x.astype(np.float64))
    bits = x.view(np.uint32).astype(np.uint64)
    bfloat = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint32)
    np.testing.assert_array_equal(got[0], half.view(np.uint16))
    np.testing.assert_array_equal(got[1], bfloat | (bfloat ^ 0x8000) << 16)
    np.testing.assert_array_equal(got[2], half.view(np.uint16) | (-half).view(np.uint16).astype(np.uint32) << 16)
    np.testing.assert_array_equal(got[3].view(np.float32), halves)
    whole = np.clip(np.rint(x.astype(np.float64)), -(2.0**31), 2.0**31 - 1)
    np.testing.assert_array_equal(got[4].view(np.int32), whole.astype(np.int64))
    bytes_u, bytes_w = (v.view(np.int8).reshape(n, 4).astype(int) for v in (y, w))
    np.testing.assert_array_equal(got[5].view(np.int32), (bytes_u * bytes_w).sum(1) - 3)
    signs = np.where(w >> 31, 0xFF000000, 0).astype(np.uint32)  # selector f: the sign of byte 7
    want = (y >> 16 & 255) | (w & 255) << 8 | (y & 255) << 16 | signs
    np.testing.assert_array_equal(got[6], want)
    for i in range(n):
        u, v = int(y[i]), int(w[i])
        count = bin(u).count("1") | (32 - (u >> 3).bit_length()) << 8
        lowest = u & ~1
        count |= (lowest & -lowest).bit_length() << 16
        assert got[7][i] == int(f"{u:032b}"[::-1], 2) ^ count, u
        both = v << 32 | u
        assert got[8][i] == ((both << 7) >> 32 & 0xFFFFFFFF) ^ (both >> 9 & 0xFFFFFFFF)
        assert got[9][i] == u * v >> 32
    exact = np.where(powers < 2.0**-126, 0, powers)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(got[10].view(np.float32), exact.astype(np.float32), rtol=2.0**-22)


WRONG = {
    "divergent": ([np.zeros(64, np.int32)], 64, r"__syncthreads at cases.cu:\d+: threads 0-39\n  ended: threads 40-63"),
    "mismatched": (
        [np.zeros(32, np.int32)],
        32,
        r"cases.cu:\d+, where lane \d+ of its warp is in __(shfl|ballot)_sync",
    ),
    "left_out": ([np.zeros(32, np.int32)], 32, r"mask 000000ff, which leaves lane \d+ out"),
    "outside": ([np.zeros(64, np.int32), np.zeros(32, np.int32), 64], 32, r"0 bytes past .* of 256 in cases.cu:\d+"),
    "beside": ([np.zeros(30, np.int32), 30], 1, r"wrote beside the allocation at 0x\w+ of 120 bytes"),
    "misaligned": ([np.zeros(64, np.uint8), np.zeros(128, np.uint32), 4], 32, r"misaligned address.* in cases.cu:\d+"),
}


@pytest.mark.parametrize("entry", WRONG)
def test_faults_are_reported(entry: str) -> None:
    arguments, threads, message = WRONG[entry]
    with pytest.raises(DeviceFailed, match=message):
        emulate(source_of(entry), arguments, threads)


def test_shared_memory_starts_as_poison_and_ends_where_it_ends() -> None:
    x, out = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    assert (emulate(source_of("dynamic", 128), [x, out, 0])[1] == POISON).all()
    with pytest.raises(DeviceFailed, match="wrote past its 128 bytes of dynamic shared memory"):
        emulate(source_of("dynamic", 128), [x, out, 1])


def test_shared_memory_is_limited() -> None:
    emulate(source_of("large"), [np.zeros(32, np.int32)])
    with pytest.raises(DeviceFailed, match="49664 bytes of shared variables"):
        emulate(source_of("large", TOO_LARGE=1), [np.zeros(32, np.int32)])


def test_copies_arrive_when_they_are_waited_for(rng: np.random.Generator) -> None:
    x = rng.integers(0, 2**32, (2, 32, 4), np.uint32)
    out = run("copies", [x, np.zeros_like(x)])[1]
    np.testing.assert_array_equal(out, x[:, ::-1])
    late = emulate(source_of("copies", WAITS=0), [x, np.zeros_like(x)])[1]
    np.testing.assert_array_equal(late[0], x[0, ::-1])
    assert (late[1] == POISON).all()
    with pytest.raises(DeviceFailed, match=r"0 bytes past .* of 512 in copy_async_16 at cases.cu:\d+"):
        emulate(source_of("copies"), [x[0], np.zeros_like(x)])


def test_a_race_shows_in_some_order() -> None:
    found = {int(v) for seed in range(4) for v in emulate(source_of("races"), [np.zeros(8, np.int32)], 96, 8, seed)[0]}
    assert len(found) > 1, found


@pytest.mark.parametrize(
    ("early", "message"),
    [
        (0, None),
        (1, "before any thread of its block called wait_for_previous"),
        (2, "no thread called wait_for_previous"),
        (3, None),
        (4, "no block called wait_for_previous"),
    ],
)
def test_kernels_of_a_graph_wait_for_their_predecessor(early: int, message: str | None) -> None:
    driver = emulated_driver()
    memory = [driver.allocate(4 * 32) for _ in range(3)]
    for m in memory:
        driver.clear(m.pointer, m.nbytes)
    kernels = driver.build([source_of("follows", EARLY=e) for e in (0, early)])
    graph = driver.capture(
        [
            Bound(kernel, (2, 1, 1), 32, 0, (np.uint64(memory[i].pointer), np.uint64(memory[i + 1].pointer)))
            for i, kernel in enumerate(kernels)
        ]
    )
    if message is None:
        driver.replay(graph)
        got = np.zeros(32, np.int32)
        driver.download(got, memory[2].pointer)
        assert (got == 2).all()
    else:
        with pytest.raises(DeviceFailed, match=message):
            driver.replay(graph)


def test_a_kernel_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulator, "SECONDS", 1)
    with pytest.raises(DeviceFailed, match="does not end"):
        emulate(source_of("endless"), [np.zeros(1, np.int32)], 1)


def test_what_a_driver_refuses() -> None:
    driver = emulated_driver(memory=1000)
    with pytest.raises(OutOfMemory, match="2,000 bytes are not available, 1,000 are free"):
        driver.allocate(2000)
    memory = driver.allocate(64)
    with pytest.raises(DeviceFailed, match="are in no one allocation"):
        driver.upload(memory.pointer, np.zeros(65, np.uint8))
    pointer = memory.pointer
    del memory
    assert driver.free_memory() == 1000
    with pytest.raises(DeviceFailed, match="are in no one allocation"):
        driver.download(np.zeros(4, np.uint8), pointer)
    with pytest.raises(DeviceFailed, match="the parameters are 'ppi', the arguments 'ppf'"):
        emulate(source_of("outside"), [np.zeros(64, np.int32), np.zeros(32, np.int32), 1.0])
    with pytest.raises(KernelBuild, match="no_such_kernel"):
        emulate(source_of("no_such_kernel"), [])


def test_freed_memory_is_out_of_bounds() -> None:
    driver = emulated_driver()
    memory, out = driver.allocate(256), driver.allocate(128)
    (kernel,) = driver.build([source_of("outside")])
    arguments = (np.uint64(memory.pointer), np.uint64(out.pointer), np.int32(3))
    del memory
    with pytest.raises(DeviceFailed, match="byte 12 of a freed allocation of 256"):
        driver.launch(Bound(kernel, (1, 1, 1), 32, 0, arguments))
