"""A plain projection of any number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shohin.devices import Buffer, Operand, Recorder, Step, Weight
from shohin.kernels.gemm import reference as plain
from shohin.kernels.linear import check_activations, check_matrix


@dataclass(frozen=True)
class Gemm:
    """Operands: x [rows, K], Weight [N, K], out [rows, N]. ints = (activations: 0 exact, 1 int8), no floats.

    The same product as ``linear_add`` without the residual: out[m] is overwritten for the step's live rows, never read.
    Every format, quantised or float, and every M; K of a float weight may be ragged (no multiple of anything).
    """

    name: ClassVar[str] = "gemm"
    activations: str

    def parameters(self) -> tuple[Sequence[int], Sequence[float]]:
        """(activations,), ()."""
        return (check_activations(self.activations),), ()

    def check(self, operands: Sequence[Operand], step: Step) -> None:
        """Any step that fits the tape fits this op."""

    def reference(self, operands: Sequence[Any], step: Step) -> None:
        """See ``reference.py``."""
        x, weight, out = operands
        plain.gemm(self, x, weight, out, step)


def gemm(tape: Recorder, x: Buffer, weight: Weight, out: Buffer, *, activations: str) -> None:
    """Record: out[m] = W . x[m], all row-major, ``[M, K] . [N, K]^T -> [M, N]`` (S3.14, S3.17)."""
    x.expect("gemm", (tape.rows, x.shape[-1]), tape.device)
    n = check_matrix("gemm", weight, None, x.shape[-1], tape.device)
    out.expect("gemm: out", (tape.rows, n), tape.device)
    check_activations(activations)
    tape.add(Gemm(activations), (x, weight, out), writes=(2,))
