"""``joint_attention`` on WebGPU: a workgroup takes several tokens of one head through all keys."""

from __future__ import annotations

from typing import cast

import numpy as np

from shohin.devices import Buffer, Call
from shohin.devices.webgpu.dispatch import Binding, Dispatch, Target
from shohin.kernels.attend.webgpu import SOFTMAX
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
    bindings = (
        Binding("queries", queries, "array<f32>"),
        Binding("keys", keys, "array<f32>"),
        Binding("values", values, "array<f32>"),
        Binding("out", out, "array<f32>", write=True),
    )
    sources = (*SOFTMAX, "kernels/joint_attention/joint_attention.wgsl")
    return [Dispatch(sources, "joint_attention", constants, bindings, (-(-op.tokens // slots), op.heads, 1))]
