"""``joint_attention`` on a GPU: float32, or in fast mode float16 matrix units with float32 sums."""

from __future__ import annotations

from typing import cast

import numpy as np

from shohin.devices import Buffer, Call
from shohin.devices.cuda.launch import Launch, Target
from shohin.kernels.joint_attention.op import JointAttention

LOG2E = 1.4426950408889634
# The widest head whose sums stay in registers on matrix units.
FAST_DIM = 128
# Tokens of a block there.
FAST_QUERIES = 128


def launches(call: Call, target: Target) -> list[Launch]:
    """One launch; in fast mode one more before it that rounds keys and values."""
    op = cast(JointAttention, call.op)
    keys = _fast_keys(op, target)
    return _exact(call, op) if keys is None else _fast(call, op, target, keys)


def _constants(op: JointAttention, factor: float) -> dict[str, int | float | str]:
    root = float(1 / np.sqrt(np.float32(op.dim)))
    return {"HEADS": op.heads, "TOKENS": op.tokens, "DIM": op.dim, "FACTOR": root * factor}


def _exact(call: Call, op: JointAttention) -> list[Launch]:
    size = 64 if op.dim <= 128 else 32
    pitch = -(-op.dim // 64) * 64 + 4
    shared = 4 * (2 * size * pitch + size * (size + 4))
    constants = _constants(op, 1.0) | {"QUERIES": size, "KEYS": size}
    grid = (-(-op.tokens // size), op.heads, 1)
    arguments = tuple(cast(Buffer, operand) for operand in call.operands)
    return [Launch("joint_attention/exact.cu", "joint_exact", constants, grid, 256, arguments, shared)]


def _fast_keys(op: JointAttention, target: Target) -> int | None:
    """Keys of a tile; None where the float32 kernel has to do."""
    if op.mode != "fast" or op.dim % 16 or op.dim > FAST_DIM or op.heads * op.tokens * op.dim >= 2**31:
        return None
    return next((keys for keys in (64, 32) if _fast_shared(op, keys) <= target.shared_limit), None)


def _fast_shared(op: JointAttention, keys: int) -> int:
    return 2 * (FAST_QUERIES + 4 * keys) * (op.dim + 8)


def _fast(call: Call, op: JointAttention, target: Target, keys: int) -> list[Launch]:
    q, k, v, out = (cast(Buffer, operand) for operand in call.operands)
    count = op.heads * op.tokens * op.dim
    halves = target.scratch(4 * count)
    rounding = Launch(
        *("joint_attention/halves.cu", "joint_halves", {}, (-(-count // 2048), 2, 1), 256),
        (k, v, halves, count),
    )
    constants = _constants(op, LOG2E) | {"KEYS": keys}
    grid = (-(-op.tokens // FAST_QUERIES), op.heads, 1)
    shared = _fast_shared(op, keys)
    attention = Launch("joint_attention/fast.cu", "joint_fast", constants, grid, 128, (q, halves, out), shared)
    return [rounding, attention]
