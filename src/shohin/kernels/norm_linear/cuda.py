"""``norm_linear`` on a GPU: the linear kernels with the norm folded into the quantiser."""

from __future__ import annotations

from typing import cast

from shohin.devices import Buffer, Call, Weight
from shohin.devices.cuda.launch import Launch, Target
from shohin.kernels.linear.cuda import Linear, linear_launches
from shohin.kernels.norm_linear.op import NormLinear


def launches(call: Call, target: Target) -> list[Launch]:
    """One launch where all projections share a format."""
    op = cast(NormLinear, call.op)
    x, norm, out, *weights = call.operands
    linear = Linear(
        cast(Buffer, x),
        cast("Weight | None", norm),
        tuple(cast(Weight, w) for w in weights),
        cast(Buffer, out),
        "store",
        op.activations,
        op.eps,
        op.gather,
    )
    return linear_launches(linear, target)
