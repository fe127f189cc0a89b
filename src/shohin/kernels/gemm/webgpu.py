"""``gemm`` through WebGPU: a linear kernel that overwrites its output."""

from __future__ import annotations

from typing import cast

from shohin.devices import Buffer, Call, Weight
from shohin.devices.webgpu.dispatch import Dispatch, Target
from shohin.kernels.gemm.op import Gemm
from shohin.kernels.linear.webgpu import Linear, linear_dispatches


def dispatches(call: Call, target: Target) -> list[Dispatch]:
    """The product is stored."""
    x, weight, out = cast(Buffer, call.operands[0]), cast(Weight, call.operands[1]), cast(Buffer, call.operands[2])
    linear = Linear(x, None, (weight,), out, out.shape[1], "store", cast(Gemm, call.op).activations)
    return linear_dispatches(linear, target)
