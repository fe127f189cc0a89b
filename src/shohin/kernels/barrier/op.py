"""Waiting and nothing else: what a chain of dependent phases costs before any of them computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shohin.devices import Buffer, Operand, Recorder, Step
from shohin.errors import BadShape

__all__ = ["Barrier", "barrier"]


@dataclass(frozen=True)
class Barrier:
    """Operands: met int32 [1, 1]. Parameters: none. The step's rows don't matter.

    count: phases. inside: one launch whose blocks wait for all others ``count`` times, instead of ``count`` launches.
    """

    name: ClassVar[str] = "barrier"
    count: int
    inside: bool

    def parameters(self) -> tuple[Sequence[int], Sequence[float]]:
        """None."""
        return (), ()

    def check(self, operands: Sequence[Operand], step: Step) -> None:
        """Any step will do."""

    def reference(self, operands: Sequence[Any], step: Step) -> None:
        """Counts without waiting: one thread has nobody to wait for."""
        operands[0][0, 0] = self.count


def barrier(tape: Recorder, met: Buffer, count: int, *, inside: bool = False) -> None:
    """Record: ``count`` phases over the whole device, each after the one before; met[0, 0] = count at the end.

    BadShape: fewer than one phase, or ``met`` is not int32 [1, 1] of this device.
    """
    if count < 1:
        raise BadShape(f"barrier: {count} phases were asked, at least 1 is needed")
    if met.dtype != "int32":
        raise BadShape(f"barrier: met is {met.dtype}; 32-bit integers were expected")
    met.expect("barrier: met", (1, 1), tape.device)
    tape.add(Barrier(count, inside), (met,), writes=(0,))
