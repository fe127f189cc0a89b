"""The meaning of ``norm_linear``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from shohin.devices import Step
from shohin.devices.host import HostWeight
from shohin.kernels.linear.reference import Normed, project_all

if TYPE_CHECKING:
    from shohin.kernels.norm_linear.op import NormLinear


def norm_linear(
    op: NormLinear,
    x: NDArray[Any],
    norm: HostWeight | None,
    out: NDArray[Any],
    weights: Sequence[HostWeight],
    step: Step,
) -> None:
    """out[m] = every weight times the normed row m; with ``gather``, row ``wanted[m]``."""
    live = x[step.wanted] if op.gather else x[: step.rows]
    out[: len(live)] = project_all(Normed.of(live, norm, op.eps), weights, op.activations == "int8")
