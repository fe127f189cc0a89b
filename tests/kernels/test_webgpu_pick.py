"""``pick`` on WebGPU: the tests of every device, and the borders of what a workgroup looks at."""

from __future__ import annotations

import numpy as np
import opening
import pytest
import test_pick
from opening import open_device

from shohin.devices import Device, Step
from shohin.kernels.pick import pick


@pytest.fixture
def webgpu() -> Device:
    """One tier: these kernels use neither subgroups nor float16."""
    return open_device("webgpu-plain")


@pytest.fixture
def device(webgpu: Device) -> Device:
    return webgpu


test_ties_go_to_the_lowest_index = test_pick.test_ties_go_to_the_lowest_index
test_every_row_is_picked_for_itself = test_pick.test_every_row_is_picked_for_itself
test_a_broken_row_is_reported_alone = test_pick.test_a_broken_row_is_reported_alone
test_only_the_live_vocabulary_counts = test_pick.test_only_the_live_vocabulary_counts

LEFT = -99


def picked(device: Device, logits: np.ndarray, vocabulary: int, wanted: int) -> tuple[np.ndarray, np.ndarray]:
    """ids and status of the whole capacity, LEFT where nothing was written; two plays must agree."""
    buffer = device.buffer("logits", logits.shape)
    device.write(buffer, logits)
    ids, status = (device.buffer(name, (len(logits),), np.int32) for name in ("ids", "status"))
    for made in (ids, status):
        device.write(made, np.full(len(logits), LEFT, np.int32))
    tape = device.recorder("test", len(logits))
    pick(tape, buffer, ids, status, vocabulary=vocabulary)
    tape.output("ids", ids, "all")
    tape.output("status", status, "all")
    played = tape.finish()
    step = Step.of(np.zeros(len(logits), int), wanted=np.arange(wanted))
    first, again = (played.play(step, ("ids", "status")) for _ in range(2))
    np.testing.assert_array_equal(first["ids"], again["ids"])
    return again["ids"], again["status"]


@pytest.mark.row("M.12", "H.20")
@pytest.mark.parametrize("vocabulary", [1, 31, 257, 2047, 2048, 2049, 5000])
def test_pick_is_the_host_s(webgpu: Device, rng: np.random.Generator, vocabulary: int) -> None:
    logits = np.round(rng.standard_normal((5, 5003)) * 4).astype(np.float32)  # many ties
    logits[:, vocabulary:] = 100
    logits[3, vocabulary // 2] = rng.choice(np.array([np.nan, np.inf, -np.inf]))
    got, want = (picked(d, logits, vocabulary, 4) for d in (webgpu, opening.host()))
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert got[0][4] == got[1][4] == LEFT, "a row that is not wanted is left alone"


@pytest.mark.row("M.12", "H.20", "S0.23")
def test_the_whole_vocabulary(webgpu: Device, rng: np.random.Generator) -> None:
    """Ties and broken logits at the borders of what threads and workgroups look at, in 151,669 logits."""
    width, live = 151936, 151669
    spots = (0, 15, 16, 255, 256, 2047, 2048, 65535, 65536, live - 1)
    logits = rng.standard_normal((2 * len(spots), width)).astype(np.float32)
    want = np.full(len(logits), -1)
    for i, spot in enumerate(spots):
        logits[i, [spot, live - 1]] = 9  # a tie with the last one
        logits[i, live] = 99  # past the vocabulary
        want[i] = spot
        logits[len(spots) + i, spot] = (np.nan, np.inf, -np.inf, -np.nan)[i % 4]
    ids, status = picked(webgpu, logits, live, len(logits))
    np.testing.assert_array_equal(ids, want)
    np.testing.assert_array_equal(status, want < 0)


@pytest.mark.row("M.12")
def test_more_shares_than_threads(webgpu: Device) -> None:
    logits = np.zeros((1, 530_000), np.float32)
    logits[0, [529_000, 529_999]] = 1
    assert picked(webgpu, logits, 530_000, 1)[0].tolist() == [529_000]


@pytest.mark.row("M.12", "H.20")
def test_the_smallest_and_the_largest_floats_are_ordered(webgpu: Device) -> None:
    """Subnormals count, zeros of either sign are equal, and the largest float is not broken."""
    tiny, huge = np.float32(1e-45), np.finfo(np.float32).max
    rows = np.float32(
        [[0, tiny, 2 * tiny, tiny], [-tiny, -0.0, 0, -tiny], [-tiny, -2 * tiny, -tiny, -huge], [huge, 1, huge, -huge]]
    )
    ids, status = picked(webgpu, rows, 4, 4)
    assert (ids.tolist(), status.tolist()) == ([2, 1, 0, 0], [0, 0, 0, 0])
    broken = rows.copy()
    for row, bits in enumerate((0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF)):  # NaNs of every sort
        broken.view(np.uint32)[row, row] = bits
    ids, status = picked(webgpu, broken, 4, 4)
    assert (ids.tolist(), status.tolist()) == ([-1] * 4, [1] * 4)
