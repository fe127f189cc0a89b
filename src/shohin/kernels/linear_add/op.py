"""A projection added to the residual stream in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shohin.devices import Buffer, Operand, Recorder, Step, Weight
from shohin.kernels.linear import check_activations, check_matrix
from shohin.kernels.linear_add import reference as plain


@dataclass(frozen=True)
class LinearAdd:
    """Operands: x [rows, K], Weight [N, K], hidden [rows, N], read and written. ints = (activations,), no floats."""

    name: ClassVar[str] = "linear_add"
    activations: str

    def parameters(self) -> tuple[Sequence[int], Sequence[float]]:
        """(activations,), ()."""
        return (check_activations(self.activations),), ()

    def check(self, operands: Sequence[Operand], step: Step) -> None:
        """Any step that fits the tape fits this op."""

    def reference(self, operands: Sequence[Any], step: Step) -> None:
        """See ``reference.py``."""
        x, weight, hidden = operands
        plain.linear_add(self, x, weight, hidden, step)


def linear_add(tape: Recorder, x: Buffer, weight: Weight, hidden: Buffer, *, activations: str) -> None:
    """Record: hidden[m] += W . x[m]."""
    x.expect("linear_add", (tape.rows, x.shape[-1]), tape.device)
    n = check_matrix("linear_add", weight, None, x.shape[-1], tape.device)
    hidden.expect("linear_add: hidden", (tape.rows, n), tape.device)
    tape.add(LinearAdd(activations), (x, weight, hidden), writes=(2,))
