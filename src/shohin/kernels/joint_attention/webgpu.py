"""``joint_attention`` on WebGPU: a workgroup takes several tokens of one head through all keys."""

from __future__ import annotations

from typing import cast

import numpy as np

from shohin.devices import Buffer, Call
from shohin.devices.webgpu.dispatch import Binding, Dispatch, Target
from shohin.kernels.attend.webgpu import READ_WIDE, SOFTMAX
from shohin.kernels.joint_attention.op import JointAttention

# Tokens of a workgroup up to a head_dim of 128, and above: their queries and scores fit into 16 KiB.
NARROW, WIDE = 8, 4


def dispatches(call: Call, target: Target) -> list[Dispatch]:
    """One dispatch over all tiles of tokens and all heads."""
    op = cast(JointAttention, call.op)
    slots = NARROW if op.dim <= 128 else WIDE
    queries, keys, values, out = (cast(Buffer, operand) for operand in call.operands)
    constants: dict[str, int | float | bool | str] = {
        "HEADS": op.heads,
        "TOKENS": op.tokens,
        "WIDTH": op.dim,
        "PAIRS": -(-op.dim // 2),
        "SLOTS": slots,
        "SCALED": False,
        "FACTOR": float(1 / np.sqrt(np.float32(op.dim))),
    }
    wide = op.dim % 8 == 0
    number = "array<vec4<f32>>" if wide else "array<f32>"
    bindings = (
        Binding("queries", queries, "array<f32>"),
        Binding("keys", keys, number),
        Binding("values", values, number),
        Binding("out", out, "array<f32>", write=True),
    )
    read = READ_WIDE if wide else "kernels/joint_attention/read_narrow.wgsl"
    sources = (*SOFTMAX, read, "kernels/joint_attention/joint_attention.wgsl")
    return [Dispatch(sources, "joint_attention", constants, bindings, (-(-op.tokens // slots), op.heads, 1))]
