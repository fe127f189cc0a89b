"""``linear_add`` through WebGPU: a linear kernel that adds to its output."""

from __future__ import annotations

from typing import cast

from shohin.devices import Buffer, Call, Weight
from shohin.devices.webgpu.dispatch import Dispatch, Target
from shohin.kernels.linear.webgpu import Linear, linear_dispatches
from shohin.kernels.linear_add.op import LinearAdd


def dispatches(call: Call, target: Target) -> list[Dispatch]:
    """The residual is added at the end."""
    x, weight, hidden = cast(Buffer, call.operands[0]), cast(Weight, call.operands[1]), cast(Buffer, call.operands[2])
    activations = cast(LinearAdd, call.op).activations
    return linear_dispatches(Linear(x, None, (weight,), hidden, hidden.shape[1], "add", activations), target)
