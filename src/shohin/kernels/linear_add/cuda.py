"""``linear_add`` on a GPU: a linear kernel that adds to its output."""

from __future__ import annotations

from typing import cast

from shohin.devices import Buffer, Call, Weight
from shohin.devices.cuda.launch import Launch, Target
from shohin.kernels.linear.cuda import Linear, linear_launches
from shohin.kernels.linear_add.op import LinearAdd


def launches(call: Call, target: Target) -> list[Launch]:
    """The residual is added in the epilogue."""
    x, weight, hidden = call.operands
    activations = cast(LinearAdd, call.op).activations
    linear = Linear(cast(Buffer, x), None, (cast(Weight, weight),), cast(Buffer, hidden), "add", activations)
    return linear_launches(linear, target)
