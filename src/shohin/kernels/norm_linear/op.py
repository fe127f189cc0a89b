"""RMSNorm, then a list of projections of the same vector: Q, K and V, or the LM head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shohin.devices import Buffer, Operand, Recorder, Step, Weight
from shohin.errors import BadShape
from shohin.kernels.linear import check_activations, check_eps, check_matrix
from shohin.kernels.norm_linear import reference as plain


@dataclass(frozen=True)
class NormLinear:
    """Operands: x [rows, K], norm Weight [K] or None, out [rows or wanted, sum of N], then one Weight [N, K] or more.

    Parameters: ints = (activations: 0 exact, 1 int8; gather: 1 reads only the step's wanted rows), floats = (eps,).
    Without a norm, x is projected as it is. The projections lie side by side in each row of out, in order.
    """

    name: ClassVar[str] = "norm_linear"
    activations: str
    eps: float
    gather: bool

    def parameters(self) -> tuple[Sequence[int], Sequence[float]]:
        """(activations, gather), (eps,)."""
        return (check_activations(self.activations), int(self.gather)), (self.eps,)

    def check(self, operands: Sequence[Operand], step: Step) -> None:
        """Any step that fits the tape fits this op."""

    def reference(self, operands: Sequence[Any], step: Step) -> None:
        """See ``reference.py``."""
        x, norm, out, *weights = operands
        plain.norm_linear(self, x, norm, out, weights, step)


def norm_linear(
    tape: Recorder,
    x: Buffer,
    norm: Weight | None,
    weights: Sequence[Weight],
    out: Buffer,
    *,
    eps: float,
    activations: str,
    gather: bool = False,
) -> None:
    """Record: out[m] = (W_0 . n, W_1 . n, ...) with n = (x[m] * r) * norm, r = 1 / sqrt(mean(x^2) + eps) (M.3)."""
    what = "norm_linear"
    k = x.shape[-1]
    x.expect(what, (tape.rows, k), tape.device)
    check_eps(what, eps)
    if norm is not None:
        norm.expect(f"{what}: norm", (k,), tape.device)
    if not weights:
        raise BadShape(f"{what}: no weight was given")
    n = sum(check_matrix(what, w, None, k, tape.device) for w in weights)
    out.expect(f"{what}: out", (tape.wanted if gather else tape.rows, n), tape.device)
    tape.add(NormLinear(activations, eps, gather), (x, norm, out, *weights), writes=(2,))
