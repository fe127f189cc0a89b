"""Argmax of the wanted rows, its ties, and its status for broken logits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import packing
import pytest

from shohin.devices import Device, Step
from shohin.errors import BadShape
from shohin.kernels.pick import pick


def picked(device: Device, logits: np.ndarray, vocabulary: int | None = None) -> tuple[list[int], list[int]]:
    width = logits.shape[1]
    results = []
    for part in range(2):

        def record(tape, buffers, part=part):
            made = [tape.scratch(name, (tape.wanted,), np.int32) for name in ("ids", "status")]
            pick(tape, buffers[0], *made, vocabulary=vocabulary or width)
            return made[part]

        results.append(packing.play(device, record, (logits,)).tolist())
    return results[0], results[1]


@pytest.mark.row("C25", "M.12", "R.7", "S0.23")
def test_ties_go_to_the_lowest_index(device: Device, cases: Path) -> None:
    rows = json.loads((cases / "sampling" / "ties.json").read_text())
    assert len(rows) >= 7
    highest_would_differ = 0
    for row in rows:
        logits = np.full((1, row["n"]), row["low"], np.float32)
        logits[0, row["at"]] = row["high"]
        assert picked(device, logits) == ([row["expected"]], [0]), row
        highest_would_differ += max(row["at"]) != row["expected"]
    assert highest_would_differ >= 6, "a kernel that keeps the highest index would pass too many rows"


@pytest.mark.row("M.12", "H.20")
def test_every_row_is_picked_for_itself(device: Device, rng: np.random.Generator) -> None:
    logits = rng.standard_normal((17, 3001)).astype(np.float32)
    ids, status = picked(device, logits)
    assert ids == [max(range(3001), key=lambda i: (row[i], -i)) for row in logits.tolist()]
    assert status == [0] * 17
    assert picked(device, -np.abs(logits))[0] == (-np.abs(logits)).argmax(axis=1).tolist(), "all negative"
    assert picked(device, np.float32([[-0.0, 0.0, -0.0]])) == ([0], [0]), "zeros of either sign tie"


@pytest.mark.row("H.20", "R.34")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 7, 299])
def test_a_broken_row_is_reported_alone(device: Device, rng: np.random.Generator, bad: float, place: int) -> None:
    logits = rng.standard_normal((3, 300)).astype(np.float32)
    logits[1, place] = bad
    ids, status = picked(device, logits)
    assert status == [0, 1, 0]
    assert ids == [int(logits[0].argmax()), -1, int(logits[2].argmax())]


@pytest.mark.row("M.12", "H.20")
def test_only_the_live_vocabulary_counts(device: Device) -> None:
    """Padding rows of an LM head may hold anything: they are neither picked nor reported."""
    logits = np.zeros((1, 12), np.float32)
    logits[0, 4] = 1
    logits[0, 10:] = [9, np.nan]
    assert picked(device, logits, vocabulary=10) == ([4], [0])
    assert picked(device, logits, vocabulary=11) == ([10], [0])
    assert picked(device, logits, vocabulary=12) == ([-1], [1])


@pytest.mark.row("H.21", "H.22")
def test_refusals(device: Device) -> None:
    logits = device.buffer("logits", (2, 8))
    ids, status = (device.buffer(name, (2,), np.int32) for name in ("ids", "status"))
    tape = device.recorder("test", 2)
    for vocabulary in (0, 9, -1):
        with pytest.raises(BadShape, match=f"vocabulary of {vocabulary} asked of logits 8 wide"):
            pick(tape, logits, ids, status, vocabulary=vocabulary)
    with pytest.raises(BadShape, match="int32 was expected"):
        pick(tape, logits, device.buffer("ids", (2,)), status, vocabulary=8)
    with pytest.raises(BadShape, match="shape"):
        pick(tape, logits, device.buffer("ids", (3,), np.int32), status, vocabulary=8)
    pick(tape, logits, ids, status, vocabulary=8)
    with pytest.raises(BadShape, match="holds 2 rows"):
        tape.finish().play(Step.rows_only(3))
