"""The meaning of ``norm_swiglu``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shohin.devices import Step
from shohin.devices.host import HostWeight
from shohin.kernels.linear.reference import Normed, project

if TYPE_CHECKING:
    from shohin.kernels.norm_swiglu.op import NormSwiglu


def norm_swiglu(
    op: NormSwiglu,
    hidden: NDArray[Any],
    norm: HostWeight,
    gate: HostWeight,
    up: HostWeight,
    out: NDArray[Any],
    step: Step,
) -> None:
    """out[m] = silu(gate . n) * (up . n) with n the normed row m, silu(g) = g / (1 + exp(-g)) (M.14)."""
    rows = Normed.of(hidden[: step.rows], norm, op.eps)
    g, u = (project(rows, weight, op.activations == "int8") for weight in (gate, up))
    out[: step.rows] = g / (1 + np.exp(-g)) * u
