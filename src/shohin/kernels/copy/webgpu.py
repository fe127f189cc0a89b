"""``copy`` through WebGPU: a thread a value."""

from __future__ import annotations

from typing import cast

from shohin.devices import Buffer, Call
from shohin.devices.webgpu.dispatch import Binding, Dispatch, Target, grid


def dispatches(call: Call, target: Target) -> list[Dispatch]:
    """One dispatch over the row capacity."""
    x, out = cast(Buffer, call.operands[0]), cast(Buffer, call.operands[1])
    width = x.shape[1]
    bindings = (Binding("x", x, "array<f32>"), Binding("out", out, "array<f32>", write=True), Binding.step())
    workgroups = grid(-(-target.rows * width // 64))
    return [Dispatch(("kernels/copy/copy.wgsl",), "copy", {"WIDTH": width}, bindings, workgroups)]
