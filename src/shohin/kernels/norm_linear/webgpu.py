"""``norm_linear`` through WebGPU: the norm is folded into the preparation of the row."""

from __future__ import annotations

from typing import cast

from shohin.devices import Buffer, Call, Weight
from shohin.devices.webgpu.dispatch import Dispatch, Target
from shohin.kernels.linear.webgpu import Linear, linear_dispatches
from shohin.kernels.norm_linear.op import NormLinear


def dispatches(call: Call, target: Target) -> list[Dispatch]:
    """One dispatch for one row where up to three projections share a format."""
    op = cast(NormLinear, call.op)
    x, norm, out, *weights = call.operands
    made = cast(Buffer, out)
    linear = Linear(
        cast(Buffer, x),
        cast("Weight | None", norm),
        tuple(cast(Weight, w) for w in weights),
        made,
        made.shape[1],
        "store",
        op.activations,
        op.eps,
        op.gather,
    )
    return linear_dispatches(linear, target)
