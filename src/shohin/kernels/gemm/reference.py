"""The meaning of ``gemm``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from shohin.devices import Step
from shohin.devices.host import HostWeight
from shohin.kernels.linear.reference import Normed, project

if TYPE_CHECKING:
    from shohin.kernels.gemm.op import Gemm


def gemm(op: Gemm, x: NDArray[Any], weight: HostWeight, out: NDArray[Any], step: Step) -> None:
    """out[m] = weight . x[m]."""
    out[: step.rows] = project(Normed(x[: step.rows]), weight, op.activations == "int8")
