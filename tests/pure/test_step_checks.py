"""What a tape asks of a step before it plays it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from shohin.devices import Operand, Step, device
from shohin.kernels.copy.op import Copy


def test_calls_alike_are_checked_once_and_others_each() -> None:
    """Calls that differ in the op's constants or in an operand's shape are asked about a step by themselves."""
    asked: list[tuple[str, int]] = []

    @dataclass(frozen=True)
    class Asked(Copy):
        label: str = ""

        def check(self, operands: Sequence[Operand], step: Step) -> None:
            (x, _) = operands
            assert x is not None
            asked.append((self.label, x.shape[-1]))

    place = device("host")
    tape = place.recorder("test", 2)
    for label, width in (("a", 4), ("a", 4), ("b", 4), ("a", 8), ("b", 4)):
        x, out = place.buffer("x", (2, width)), place.buffer("out", (2, width))
        tape.add(Asked(label), (x, out), writes=(1,))
    tape.finish().play(Step.rows_only(2))
    assert asked == [("a", 4), ("b", 4), ("a", 8)]


def test_a_step_of_one_row_equals_a_checked_one() -> None:
    pages = np.array([[3, 1]], np.int32)
    quick, checked = Step.one(7, 20, pages), Step.of([7], positions=[20], pages=pages)
    for field in fields(Step):
        a, b = getattr(quick, field.name), getattr(checked, field.name)
        assert a.dtype == b.dtype == np.int32 and a.shape == b.shape and np.array_equal(a, b), field.name
