"""One or two rows: a block a multiprocessor streams its share of the weights through binary matrix units."""

from __future__ import annotations

from dataclasses import dataclass

from shohin.devices.cuda.launch import STEP, Argument, Launch, Plane, Target
from shohin.devices.cuda.packing import LAYOUTS, TileShape
from shohin.kernels.linear.cuda import Linear

__all__ = ["DECODE_ROWS", "decode_launches"]

# Rows that the kernel takes. Every block quantises them all, so more are better quantised once, by a kernel of its own.
DECODE_ROWS = 2
# Weights that a launch reads side by side.
PARTS = 3
# Shared memory that lets the next kernel's block be there, too, and fetch its weights while this one computes.
SHARED = 108 * 1024
EPILOGUES = {"store": 0, "add": 1, "swiglu": 2}


@dataclass(frozen=True)
class _Shape:
    """How the work is dealt: tiles a block and a round, units in flight a warp, threads."""

    block_tiles: int
    round_tiles: int
    slots: int
    threads: int
    shared: int


def decode_launches(linear: Linear, target: Target) -> list[Launch]:
    """One launch for up to three weights of one tile layout."""
    if len(linear.weights) > PARTS:
        first, rest = linear.split(PARTS)
        return [*decode_launches(first, target), *decode_launches(rest, target)]
    planes = LAYOUTS[linear.weights[0].format.name][1]
    k = linear.weights[0].shape[1]
    tiles = [TileShape(*w.shape, planes).tiles for w in linear.weights]
    rows = target.wanted if linear.gather else target.rows
    shape = _deal(sum(tiles), 2 if linear.epilogue == "swiglu" else 1, k, planes, rows, target)
    constants: dict[str, int | float | str] = {
        "K": k,
        "PLANES": planes,
        "PARTS": 1 if linear.epilogue == "swiglu" else len(tiles),
        "EPILOGUE": EPILOGUES[linear.epilogue],
        "NORM": int(linear.norm is not None),
        "EPS": float(linear.eps),
        "GATHER": int(linear.gather),
        "WIDTH": linear.width,
        "LIVE": rows,
        "THREADS": shape.threads,
        "SLOTS": shape.slots,
        "ROUND": shape.round_tiles,
        "BLOCK_TILES": shape.block_tiles,
    }
    column = linear.column
    for i in range(PARTS):
        there = i < len(tiles)
        constants |= {f"TILES_{i}": tiles[i] if there else 0, f"N_{i}": linear.weights[i].shape[0] if there else 0}
        constants[f"COLUMN_{i}"] = column
        column += linear.weights[i].shape[0] if there else 0
    norm: Argument = Plane(linear.norm, "data") if linear.norm is not None else linear.x
    arguments: list[Argument] = [STEP, linear.x, norm, linear.out]
    for i in range(PARTS):
        weight = linear.weights[min(i, len(tiles) - 1)]
        arguments += [Plane(weight, "bits"), Plane(weight, "scales")]
    blocks = -(-sum(tiles) // shape.block_tiles)
    return [
        Launch(
            "linear/cuda/decode.cu",
            "decode",
            constants,
            (blocks, 1, 1),
            shape.threads,
            tuple(arguments),
            shape.shared,
        )
    ]


def _deal(tiles: int, step: int, k: int, planes: int, rows: int, target: Target) -> _Shape:
    """Whole tiles a block, as even as they go over the multiprocessors; pairs of them (``step`` 2) stay together."""
    chunks = -(-k // 512)
    threads = 512 if k > 2048 else 256
    warps = threads // 32
    block = -(-(-(-tiles // step)) // target.multiprocessors) * step
    # About four units a warp between barriers: enough to hide one behind the other.
    round_tiles = max(step, min(block, 4 * warps // chunks // step * step))
    while True:
        per_round = 2 * rows * 16 * round_tiles * 4 * (chunks | 1) * 4
        fixed = rows * chunks * (512 + 48) + per_round
        slot = warps * 32 * (32 * planes + 4)
        needed = -(-block * chunks // warps)
        slots = min(needed, (SHARED - fixed) // slot)
        if slots >= min(needed, 2) or round_tiles == step:
            break
        round_tiles -= step
    slots = max(slots, 1)
    return _Shape(block, round_tiles, slots, threads, fixed + slots * slot)
