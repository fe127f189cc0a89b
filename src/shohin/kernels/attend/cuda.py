"""``attend`` on a GPU: matrix units where head_dim and cache allow, float32 otherwise; never chosen by the rows."""

from __future__ import annotations

from dataclasses import dataclass
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
# Most blocks that share the keys of one row and KV head, and how many a multiprocessor are worth having in all: one
# that has nothing to do still takes its turn.
SPLITS, BLOCKS = 32, 4
DECODE_WARPS = 8
# Shared memory that a block costs beside its own.
BLOCK_SHARED = 1024
KINDS = {"float16": 0, "int8": 1, "float32": 2}


def launches(call: Call, target: Target) -> list[Launch]:
    """One launch for one row; else every key and value is stored before any is read."""
    plan = Plan(call, target)
    if not plan.on_matrix_units:
        return [plan.store(), plan.plain()]
    if target.rows == 1:
        return [plan.decode()]
    shared = target.rows <= SHARED_ROWS and plan.partial_bytes <= MOST_PARTIALS
    return [plan.store(), plan.decode() if shared else plan.prefill()]


@dataclass(frozen=True)
class Plan:
    """One call on one device."""

    call: Call
    target: Target

    @property
    def op(self) -> Attend:
        """The op."""
        return cast(Attend, self.call.op)

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self.op.heads.query // self.op.heads.kv

    @property
    def on_matrix_units(self) -> bool:
        """Whole pairs of steps, a group that fits a tile, a cache that is exact in float16, enough shared memory."""
        dim, limit = self.op.heads.dim, self.target.shared_limit
        fits = decode_bytes(dim) <= limit and prefill_warps(dim, limit) > 0
        return self._kind < 2 and dim % 32 == 0 and self.group <= 16 and fits

    @property
    def chunks(self) -> int:
        """Most chunks that a sequence can have."""
        rope, keys = self._buffer(3), self._buffer(4)
        return -(-min(rope.shape[0], keys.shape[0] * keys.shape[2]) // CHUNK)

    @property
    def partial_bytes(self) -> int:
        """What ``decode.cu`` leaves of every chunk: weighted sums, largest score and sum of weights of a group."""
        heads = self.op.heads
        return 4 * self.target.rows * heads.kv * self.chunks * self.group * (heads.dim + 2)

    def store(self) -> Launch:
        """Keys and values of all rows into the cache; a warp a row and KV head."""
        grid = (-(-self.target.rows * self.op.heads.kv // 4), 1, 1)
        arguments = (STEP, self._buffer(0), self._norm(2), self._buffer(3), *self._cache)
        return Launch("attend/store.cu", "store", self._constants, grid, 128, arguments)

    def plain(self) -> Launch:
        """A block a row and query head, in float32."""
        grid = (self.op.heads.query, self.target.rows, 1)
        arguments = (STEP, self._buffer(0), self._norm(1), self._buffer(3), *self._cache, self._buffer(8))
        return Launch("attend/plain.cu", "attend_plain", self._constants, grid, CHUNK, arguments)

    def decode(self) -> Launch:
        """Blocks share the chunks of a row and KV head; one row is stored by the same launch."""
        heads, rows = self.op.heads, self.target.rows
        worth = -(-BLOCKS * self.target.multiprocessors // (rows * heads.kv))
        if rows == 1:
            # They start while the projection still holds most of each multiprocessor: one fits beside it.
            worth = max(1, self.target.multiprocessors // heads.kv)
        splits = min(self.chunks, SPLITS, worth)
        constants = self._constants | {"FUSED": int(rows == 1), "SPLITS": splits, "CHUNKS": self.chunks}
        partials, arrived = self.target.scratch(self.partial_bytes), self.target.zeroed(4 * rows * heads.kv)
        inputs = (STEP, self._buffer(0), self._norm(1), self._norm(2), self._buffer(3))
        arguments = (*inputs, *self._cache, self._buffer(8), partials, arrived)
        grid, threads, shared = (splits, heads.kv, rows), 32 * DECODE_WARPS, decode_bytes(heads.dim)
        return Launch("attend/decode.cu", "attend_decode", constants, grid, threads, arguments, shared)

    def prefill(self) -> Launch:
        """A block takes some rows of a KV head past all their keys."""
        heads = self.op.heads
        warps = prefill_warps(heads.dim, self.target.shared_limit)
        constants = self._constants | {"WARPS": warps}
        grid = (-(-self.target.rows // (16 // self.group * warps)), heads.kv, 1)
        arguments = (STEP, self._buffer(0), self._norm(1), self._buffer(3), *self._cache, self._buffer(8))
        shared = prefill_bytes(heads.dim, warps)
        return Launch("attend/prefill.cu", "attend_prefill", constants, grid, 32 * warps, arguments, shared)

    @property
    def _kind(self) -> int:
        return KINDS[self._buffer(4).dtype.name]

    @property
    def _constants(self) -> dict[str, int | float | str]:
        heads = self.op.heads
        return {
            "NQ": heads.query,
            "NKV": heads.kv,
            "HD": heads.dim,
            "PAGE": self._buffer(4).shape[2],
            "ADJACENT": PAIRINGS.index(heads.pairing),
            "QK_NORM": int(self.call.operands[1] is not None),
            "EPS": float(self.op.eps),
            "KIND": self._kind,
        }

    @property
    def _cache(self) -> tuple[Buffer, ...]:
        """Keys, values and their scales; without scales something in their place that is not read."""
        keys, values, key_scales, value_scales = self.call.operands[4:8]
        return tuple(cast(Buffer, b) for b in (keys, values, key_scales or keys, value_scales or values))

    def _buffer(self, index: int) -> Buffer:
        return cast(Buffer, self.call.operands[index])

    def _norm(self, index: int) -> Argument:
        weight: Operand = self.call.operands[index]
        return Plane(weight, "data") if isinstance(weight, Weight) else self._buffer(0)


def _stage_bytes(dim: int) -> int:
    """Keys, values and their scales, as ``struct Stage`` has them."""
    return 2 * CHUNK * (dim + 8) * 2 + 2 * CHUNK * 4


def _query_bytes(dim: int) -> int:
    """16 queries in two halves, as ``struct Queries`` has them."""
    return 2 * 16 * (dim + 8) * 2 + 16 * 4


def decode_bytes(dim: int) -> int:
    """``struct Shared`` of decode.cu."""
    weights = max(4 * 16 * (CHUNK + 8), 4 * DECODE_WARPS * dim) + 2 * 4 * 16 * DECODE_WARPS + 2 * 512 * DECODE_WARPS
    return _stage_bytes(dim) + _query_bytes(dim) + weights + 2 * 4 * dim


def prefill_bytes(dim: int, warps: int) -> int:
    """``struct Shared`` of prefill.cu."""
    return _stage_bytes(dim) + warps * (_query_bytes(dim) + 4 * dim) + CHUNK // 8


def prefill_warps(dim: int, limit: int) -> int:
    """Warps of a block; 0 where none fit into ``limit`` bytes.

    Two blocks of 4 on a multiprocessor, one of which weighs while the other multiplies; else as many as share a fetch.
    """
    if 2 * (prefill_bytes(dim, 4) + BLOCK_SHARED) <= limit + BLOCK_SHARED:
        return 4
    return next((warps for warps in (8, 4, 2) if prefill_bytes(dim, warps) <= limit), 0)
