"""Live rows kept as they are at this moment: how a tap brings out a stream that the tape later changes in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shohin.devices import Buffer, Operand, Recorder, Step
from shohin.kernels.copy import reference as plain


@dataclass(frozen=True)
class Copy:
    """Operands: x [rows, n], out [rows, n], both of the device's float. Parameters: none."""

    name: ClassVar[str] = "copy"

    def parameters(self) -> tuple[Sequence[int], Sequence[float]]:
        """None."""
        return (), ()

    def check(self, operands: Sequence[Operand], step: Step) -> None:
        """Any step that fits the tape fits this op."""

    def reference(self, operands: Sequence[Any], step: Step) -> None:
        """See ``reference.py``."""
        x, out = operands
        plain.copy(x, out, step)


def copy(tape: Recorder, x: Buffer, out: Buffer) -> None:
    """Record: out[m] = x[m]."""
    x.expect("copy", (tape.rows, x.shape[-1]), tape.device)
    out.expect("copy: out", x.shape, tape.device)
    tape.add(Copy(), (x, out), writes=(1,))
