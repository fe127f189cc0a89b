"""``attend`` on a GPU: tensor cores where head_dim and cache allow, float32 otherwise; never chosen by the rows."""

from __future__ import annotations

from typing import cast

from shohin.devices import Buffer, Call, Operand, Weight
from shohin.devices.cuda.launch import STEP, Argument, Launch, Plane, Target
from shohin.kernels.attend.op import PAIRINGS, Attend

# Keys whose scores are weighed together; chunks are merged in order.
CHUNK = 128
# Rows up to which blocks share the chunks of a row; more rows fill the device by themselves.
SHARED_ROWS = 128
# Blocks that share the keys of one row and KV head: with 8 KV heads they are two to a multiprocessor.
SPLITS = 32
DECODE_THREADS = 256
KINDS = {"float16": 0, "int8": 1, "float32": 2}


def launches(call: Call, target: Target) -> list[Launch]:
    """One launch for one row; else every key and value is stored before any is read."""
    op = cast(Attend, call.op)
    qkv, q_norm, k_norm, rope, keys, values, key_scales, value_scales, out = call.operands
    cache = cast(Buffer, keys)
    kind = KINDS[cache.dtype.name]
    constants: dict[str, int | float | str] = {
        "NQ": op.heads.query,
        "NKV": op.heads.kv,
        "HD": op.heads.dim,
        "PAGE": cache.shape[2],
        "ADJACENT": PAIRINGS.index(op.heads.pairing),
        "QK_NORM": int(q_norm is not None),
        "EPS": float(op.eps),
        "KIND": kind,
    }
    group = op.heads.query // op.heads.kv
    q, k = _norm(q_norm, qkv), _norm(k_norm, qkv)
    held = (keys, values, key_scales or keys, value_scales or values)
    pool = tuple(cast(Buffer, b) for b in held)
    x, angles, to = (cast(Buffer, b) for b in (qkv, rope, out))
    tensor = kind < 2 and op.heads.dim % 32 == 0 and group <= 16
    fused = tensor and target.rows == 1
    store = Launch(
        "attend/store.cu",
        "store",
        constants,
        (-(-target.rows * op.heads.kv // 4), 1, 1),
        128,
        (STEP, x, k, angles, *pool),
    )
    before = [] if fused else [store]
    if not tensor:
        arguments: tuple[Argument, ...] = (STEP, x, q, angles, *pool, to)
        grid = (op.heads.query, target.rows, 1)
        return [*before, Launch("attend/plain.cu", "attend_plain", constants, grid, CHUNK, arguments)]
    if target.rows > SHARED_ROWS:
        tokens = 16 // group * 4
        grid = (-(-target.rows // tokens), op.heads.kv, 1)
        shared = _stage_bytes(op.heads.dim) + 4 * _query_bytes(op.heads.dim) + 4 * 4 * op.heads.dim
        arguments = (STEP, x, q, angles, *pool, to)
        return [*before, Launch("attend/prefill.cu", "attend_prefill", constants, grid, 128, arguments, shared)]
    positions = min(cast(Buffer, rope).shape[0], cache.shape[0] * cache.shape[2])
    chunks = -(-positions // CHUNK)
    splits = min(chunks, SPLITS)
    constants |= {"FUSED": int(fused), "SPLITS": splits, "CHUNKS": chunks}
    partials = target.scratch(4 * target.rows * op.heads.kv * chunks * group * (op.heads.dim + 2))
    arrived = target.zeroed(4 * target.rows * op.heads.kv)
    dim = op.heads.dim
    warps = DECODE_THREADS // 32
    shared = _stage_bytes(dim) + _query_bytes(dim) + 4 * 16 * (CHUNK + 4) + 4 * (warps + 2) * dim
    arguments = (STEP, x, q, k, angles, *pool, to, partials, arrived)
    grid = (splits, op.heads.kv, target.rows)
    return [*before, Launch("attend/decode.cu", "attend_decode", constants, grid, DECODE_THREADS, arguments, shared)]


def _stage_bytes(dim: int) -> int:
    return 2 * CHUNK * (dim + 8) * 2 + 2 * CHUNK * 4


def _query_bytes(dim: int) -> int:
    return 2 * 16 * (dim + 8) * 2


def _norm(weight: Operand, other: Operand) -> Argument:
    return Plane(weight, "data") if isinstance(weight, Weight) else cast(Buffer, other)
