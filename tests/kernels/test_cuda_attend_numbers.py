"""Attention on a GPU, held to host, to float64 and to what may not be read; other devices' tests with this one."""

from __future__ import annotations

import bounds
import numpy as np
import pytest
import test_webgpu_attention
from test_webgpu_attention import Rig, one_sequence, rows_of

from shohin import devices
from shohin.devices import Buffer, Call, Device
from shohin.devices.cuda.launch import Launch, Target
from shohin.kernels.attend import Attend, Heads
from shohin.kernels.attend import cuda as cuda_plan

DTYPES = {"f16": np.float16, "int8": np.int8, "f32": np.float32}


@pytest.fixture
def webgpu(cuda: Device) -> Device:
    return cuda


# Oracles, bounds and mutants of the other device, with this one in its place.
test_attention_is_the_host_s = test_webgpu_attention.test_attention_is_the_host_s
test_bits_depend_on_nothing_but_the_row = test_webgpu_attention.test_bits_depend_on_nothing_but_the_row
test_rows_of_several_sequences_in_one_step = test_webgpu_attention.test_rows_of_several_sequences_in_one_step
test_what_is_not_seen_never_enters = test_webgpu_attention.test_what_is_not_seen_never_enters
test_a_hundred_plays_have_the_same_bits = test_webgpu_attention.test_a_hundred_plays_have_the_same_bits


@pytest.mark.row("H.20", "E.13", "M.8")
@pytest.mark.parametrize("kv", ["f16", "int8"])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_broken_row_of_a_prompt(cuda: Device, rng: np.random.Generator, kv: str, part: int) -> None:
    """q, k or v of one row of 150 is NaN, or infinite: earlier rows keep their bits although they share its chunk."""
    heads, table = Heads(4, 2, 32), np.array([[2, 0, 1]])
    qkv = rows_of(rng, heads, 150)
    want = Rig(cuda, heads, kv, 3).play(qkv, one_sequence(0, 150, table), 160)
    for value in (np.nan, np.inf):
        broken = qkv.copy()
        broken[100, [5, 4 * 32 + 5, 6 * 32 + 5][part]] = value
        got = Rig(cuda, heads, kv, 3).play(broken, one_sequence(0, 150, table), 160)
        np.testing.assert_array_equal(got[:100], want[:100])
        hit = got[100:101] if part == 0 else got[100:]
        # An infinite key may have a score of minus infinity, and then no weight.
        assert (~np.isfinite(hit)).any(axis=1).all() or (part == 1 and value == np.inf)
        if part == 0:
            np.testing.assert_array_equal(got[101:], want[101:])


@pytest.mark.row("M.2", "M.7", "M.9", "M.18")
@pytest.mark.parametrize("kv", ["f16", "int8"])
@pytest.mark.parametrize(
    "sizes",
    [(1, 1, 1), (1e-4, 1, 1), (1e-4, 1e4, 1), (1e5, 1e-5, 1), (1, 1, 1e-3), (1, 1, 5e3), (1e-30, 1, 1)],
    ids=str,
)
def test_halves_of_any_size_are_as_good_as_float32(
    cuda: Device, rng: np.random.Generator, kv: str, sizes: tuple[float, float, float]
) -> None:
    """q, k and v of any size, one row and a prompt: at most twice float32's own error from float64, and a few last
    places of the largest result. Halves alone would be 2^-11 off, and subnormal or infinite for some.
    """
    heads, total = Heads(4, 1, 64), 200
    qkv = rng.standard_normal((total, 6, 64))
    for part, size in zip((slice(0, 4), slice(4, 5), slice(5, 6)), sizes, strict=True):
        qkv[:, part] *= size
    flat = qkv.reshape(total, -1).astype(np.float32)
    results = []
    for device in (devices.device("host", dtype="float64"), devices.device("host", dtype="float32"), cuda):
        rig = Rig(device, heads, kv, 4)
        # Keys that differ in one rounding of float16 are not this test's: all caches hold the same at first.
        steps = ((0, 190, 190), (190, 191, 1), (191, 200, 9))
        results.append([rig.play(flat[a:b], one_sequence(a, b, np.arange(4)[None]), n) for a, b, n in steps])
    for exact, plain, got in zip(*results, strict=True):
        scale = np.abs(exact).max()
        own = np.abs(plain - exact)
        error = np.abs(got - exact)
        assert np.isfinite(got).all()
        # A stored key may round the other way in one of the two, which moves a few rows: medians tell the arithmetic.
        assert np.median(error) <= 2 * np.median(own) + 2.0**-23 * scale, (np.median(error), np.median(own), scale)
        assert error.max() <= 2 * own.max() + 2.0**-13 * scale
        assert not bounds.within(got.astype(np.float16), exact, 2 * np.median(own) + 2.0**-22 * scale)


def planned(heads: Heads, rows: int, limit: int, context: int = 4096, kv: str = "f16") -> list[Launch]:
    """Launches for a cache of one sequence's context (or, beside it, of 64)."""
    host = devices.device("host")
    shape = (context * max(1, rows // 8), heads.kv, 64, heads.dim)
    keys, values = (Buffer(host, name, shape, np.dtype(DTYPES[kv]), None) for name in ("keys", "values"))
    scales = Buffer(host, "scales", shape[:3], np.dtype(np.float16), None) if kv == "int8" else None
    x, out = (host.buffer(name, (1, 1)) for name in ("qkv", "out"))
    rope = Buffer(host, "rope", (context, heads.dim), np.dtype(np.float32), None)
    operands = (x, None, None, rope, keys, values, scales, scales, out)
    return cuda_plan.launches(Call(Attend(heads, 1e-6), operands, (8,), ""), Target(rows, 1, 90, 132, limit, "binary"))


@pytest.mark.parametrize("limit", [166912, 232448, 101376])
def test_plans_fit_every_gpu(limit: int) -> None:
    """The arithmetic follows from the head, the cache and the device alone; what a launch asks for is there."""
    for heads in (Heads(32, 8, 128), Heads(16, 8, 64), Heads(9, 3, 64), Heads(8, 1, 256), Heads(32, 2, 96)):
        for kv in DTYPES:
            kinds = set()
            for rows in (1, 2, 8, 64, 128, 129, 512):
                plans = planned(heads, rows, limit, kv=kv)
                assert all(x.shared <= limit and min(x.grid) >= 1 for x in plans)
                assert [x.entry for x in plans[:-1]] == (["store"] if plans[-1].constants.get("FUSED") != 1 else [])
                kinds.add(plans[-1].entry == "attend_plain")
            assert len(kinds) == 1, "many rows and one in different arithmetic"
    assert planned(Heads(32, 8, 128), 1, limit)[-1].entry == "attend_decode"
    assert planned(Heads(32, 8, 128), 512, limit)[-1].entry == "attend_prefill"
    assert planned(Heads(32, 8, 80), 1, limit)[-1].entry == "attend_plain"


def test_many_rows_start_few_blocks_and_leave_little_memory() -> None:
    """Rows of a batch fill the GPU: more blocks would mostly be idle. A long context's partial sums have a limit."""
    heads = Heads(32, 8, 128)
    for rows, splits in ((1, 16), (8, 9), (64, 2), (128, 1)):
        assert planned(heads, rows, 232448)[-1].grid == (splits, 8, rows)
    assert planned(heads, 16, 232448, context=65536)[-1].entry == "attend_prefill"
    assert planned(heads, 8, 232448, context=65536)[-1].entry == "attend_decode"
