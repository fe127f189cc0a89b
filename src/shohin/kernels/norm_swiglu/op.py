"""RMSNorm, gate and up projections, SwiGLU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shohin.devices import Buffer, Operand, Recorder, Step, Weight
from shohin.kernels.linear import check_activations, check_eps, check_matrix
from shohin.kernels.norm_swiglu import reference as plain


@dataclass(frozen=True)
class NormSwiglu:
    """Operands: hidden [rows, K], norm Weight [K], gate Weight [I, K], up Weight [I, K], out [rows, I].

    Parameters: ints = (activations: 0 exact, 1 int8), floats = (eps,).
    """

    name: ClassVar[str] = "norm_swiglu"
    activations: str
    eps: float

    def parameters(self) -> tuple[Sequence[int], Sequence[float]]:
        """(activations,), (eps,)."""
        return (check_activations(self.activations),), (self.eps,)

    def check(self, operands: Sequence[Operand], step: Step) -> None:
        """Any step that fits the tape fits this op."""

    def reference(self, operands: Sequence[Any], step: Step) -> None:
        """See ``reference.py``."""
        hidden, norm, gate, up, out = operands
        plain.norm_swiglu(self, hidden, norm, gate, up, out, step)


@dataclass(frozen=True)
class FeedForward:
    """The weights of a gated feed-forward block: norm [K], gate and up [I, K], down [K, I]."""

    norm: Weight
    gate: Weight
    up: Weight
    down: Weight


def norm_swiglu(tape: Recorder, hidden: Buffer, ffn: FeedForward, out: Buffer, *, eps: float, activations: str) -> None:
    """Record: out[m] = silu(gate . n) * (up . n) with n the normed row (M.3, M.14)."""
    what = "norm_swiglu"
    k = hidden.shape[-1]
    hidden.expect(what, (tape.rows, k), tape.device)
    check_eps(what, eps)
    ffn.norm.expect(f"{what}: norm", (k,), tape.device)
    inner = check_matrix(f"{what}: gate", ffn.gate, None, k, tape.device)
    check_matrix(f"{what}: up", ffn.up, inner, k, tape.device)
    out.expect(f"{what}: out", (tape.rows, inner), tape.device)
    tape.add(NormSwiglu(activations, eps), (hidden, ffn.norm, ffn.gate, ffn.up, out), writes=(4,))
