"""``norm_swiglu`` on a GPU: gate and up rows meet in the epilogue of one linear kernel."""

from __future__ import annotations

from typing import cast

from shohin.devices import Buffer, Call, Weight
from shohin.devices.cuda.launch import Launch, Target
from shohin.kernels.linear.cuda import Linear, linear_launches
from shohin.kernels.norm_swiglu.op import NormSwiglu


def launches(call: Call, target: Target) -> list[Launch]:
    """The block that has a row of gate has the same row of up."""
    op = cast(NormSwiglu, call.op)
    hidden, norm, gate, up, out = call.operands
    weights = (cast(Weight, gate), cast(Weight, up))
    linear = Linear(
        cast(Buffer, hidden), cast(Weight, norm), weights, cast(Buffer, out), "swiglu", op.activations, op.eps
    )
    return linear_launches(linear, target)
