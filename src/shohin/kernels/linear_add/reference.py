"""The meaning of ``linear_add``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from shohin.devices import Step
from shohin.devices.host import HostWeight
from shohin.kernels.linear.reference import Normed, project

if TYPE_CHECKING:
    from shohin.kernels.linear_add.op import LinearAdd


def linear_add(op: LinearAdd, x: NDArray[Any], weight: HostWeight, hidden: NDArray[Any], step: Step) -> None:
    """hidden[m] += weight . x[m], with one addition at the end (M.15)."""
    hidden[: step.rows] += project(Normed(x[: step.rows]), weight, op.activations == "int8")
