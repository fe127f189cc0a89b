"""``norm_swiglu`` through WebGPU: gate and up of the same rows in one workgroup."""

from __future__ import annotations

from typing import cast

from shohin.devices import Buffer, Call, Weight
from shohin.devices.webgpu.dispatch import Dispatch, Target
from shohin.kernels.linear.webgpu import Linear, linear_dispatches
from shohin.kernels.norm_swiglu.op import NormSwiglu


def dispatches(call: Call, target: Target) -> list[Dispatch]:
    """One dispatch for one row where gate and up share a format."""
    op = cast(NormSwiglu, call.op)
    hidden, norm, gate, up, out = call.operands
    made = cast(Buffer, out)
    weights = (cast(Weight, gate), cast(Weight, up))
    linear = Linear(
        cast(Buffer, hidden), cast(Weight, norm), weights, made, made.shape[1], "swiglu", op.activations, op.eps
    )
    return linear_dispatches(linear, target)
