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
# Bytes that they may leave for the last of them to merge; beyond that a block goes through all of a row's keys itself.
MOST_PARTIALS = 128 << 20
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
    tensor = kind < 2 and _takes(op, target)
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
    positions = min(cast(Buffer, rope).shape[0], cache.shape[0] * cache.shape[2])
    chunks = -(-positions // CHUNK)
    partial_bytes = 4 * target.rows * op.heads.kv * chunks * group * (op.heads.dim + 2)
    if target.rows > SHARED_ROWS or (target.rows > 1 and partial_bytes > MOST_PARTIALS):
        warps = _prefill_warps(op.heads.dim, target)
        constants["WARPS"] = warps
        grid = (-(-target.rows // (16 // group * warps)), op.heads.kv, 1)
        shared = _prefill_bytes(op.heads.dim, warps)
        arguments = (STEP, x, q, angles, *pool, to)
        return [*before, Launch("attend/prefill.cu", "attend_prefill", constants, grid, 32 * warps, arguments, shared)]
    splits = min(chunks, SPLITS)
    constants |= {"FUSED": int(fused), "SPLITS": splits, "CHUNKS": chunks}
    partials = target.scratch(partial_bytes)
    arrived = target.zeroed(4 * target.rows * op.heads.kv)
    shared = _decode_bytes(op.heads.dim)
    arguments = (STEP, x, q, k, angles, *pool, to, partials, arrived)
    grid = (splits, op.heads.kv, target.rows)
    return [*before, Launch("attend/decode.cu", "attend_decode", constants, grid, DECODE_THREADS, arguments, shared)]


def _stage_bytes(dim: int) -> int:
    return 2 * CHUNK * (dim + 8) * 2 + 2 * CHUNK * 4


def _query_bytes(dim: int) -> int:
    return 2 * 16 * (dim + 8) * 2 + 16 * 4


def _decode_bytes(dim: int) -> int:
    warps = DECODE_THREADS // 32
    weights = max(4 * 16 * (CHUNK + 8), 4 * warps * dim) + 2 * 4 * 16 * warps + 2 * 512 * warps
    return _stage_bytes(dim) + _query_bytes(dim) + weights + 2 * 4 * dim


def _prefill_bytes(dim: int, warps: int) -> int:
    return _stage_bytes(dim) + warps * (_query_bytes(dim) + 4 * dim) + CHUNK // 8


def _prefill_warps(dim: int, target: Target) -> int:
    """Warps of a block: the more, the more rows share what is fetched; 0 where none fit."""
    return next((warps for warps in (8, 4, 2) if _prefill_bytes(dim, warps) <= target.shared_limit), 0)


def _takes(op: Attend, target: Target) -> bool:
    """Whether matrix units do it: whole pairs of steps, a group that fits a tile, and shared memory that is enough."""
    heads = op.heads
    fits = _decode_bytes(heads.dim) <= target.shared_limit and _prefill_warps(heads.dim, target) > 0
    return heads.dim % 32 == 0 and heads.query // heads.kv <= 16 and fits


def _norm(weight: Operand, other: Operand) -> Argument:
    return Plane(weight, "data") if isinstance(weight, Weight) else cast(Buffer, other)
