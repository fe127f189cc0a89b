"""A few rows: each multiprocessor has a block that quantises the input and streams its share of the weights past it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd

from shohin.devices.cuda.launch import STEP, Argument, Launch, Plane, Target
from shohin.devices.cuda.packing import LAYOUTS, TileShape
from shohin.kernels.linear.cuda.linear import Linear

__all__ = ["DECODE_ROWS", "MOST_ROWS", "decode_launches", "takes"]

# Rows that the kernel is chosen for, and those that it can take: the columns of a matrix product.
DECODE_ROWS, MOST_ROWS = 4, 8
# Rows up to which 1-bit matrix units, which take rows one by one, need less than int8 ones, which unpack the weights.
BINARY_ROWS = 2
# Weights that a launch reads side by side.
PARTS = 3
# Shared memory that a block costs beside its own, and the step in which it is given.
BLOCK_SHARED, SHARED_STEP = 1024, 128
# Warps of a block: at most, and as many as several warps share a chunk of columns for.
MOST_WARPS, SHARED_WARPS = 32, 16
# Units a warp between barriers: as many as hide one, and the least (for one row) that rounds are cut down to for the
# sake of slots.
ROUND_UNITS, LEAST_UNITS = 8, 6
EPILOGUES = {"store": 0, "add": 1, "swiglu": 2}


@dataclass(frozen=True)
class Work:
    """What a launch multiplies. tiles of 16 rows, ``paired`` where two of them make an output; chunks of 512 columns;
    planes: bits a weight; rows: capacity; binary: on 1-bit matrix units.
    """

    tiles: int
    paired: bool
    chunks: int
    planes: int
    rows: int
    binary: bool

    @classmethod
    def of(cls, linear: Linear, target: Target) -> Work:
        """The work of up to three weights of one format."""
        planes = LAYOUTS[linear.weights[0].format.name][1]
        shapes = [TileShape(w.shape[0], w.shape[1], planes) for w in linear.weights]
        rows = target.wanted if linear.gather else target.rows
        binary = target.tier == "binary" and rows <= BINARY_ROWS
        tiles = sum(shape.tiles for shape in shapes)
        return cls(tiles, linear.epilogue == "swiglu", shapes[0].chunks, planes, rows, binary)

    @property
    def step(self) -> int:
        """Tiles that stay together."""
        return 2 if self.paired else 1

    @property
    def chunk_warps(self) -> int:
        """Warps side by side along K, a chunk each, or several one after the other."""
        return -(-self.chunks // -(-self.chunks // MOST_WARPS))

    @property
    def passes(self) -> int:
        """Chunks a warp."""
        return -(-self.chunks // self.chunk_warps)


@dataclass(frozen=True)
class Deal:
    """How work is dealt: tiles a block and a round, warps that share a chunk, units in flight a warp.

    beside: whether a block leaves room for one of the next kernel.
    """

    work: Work
    block_tiles: int
    shares: int
    round_tiles: int
    slots: int
    beside: bool = True

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.work.chunk_warps * self.shares

    @property
    def unit_bytes(self) -> int:
        """Shared memory that holds one unit of every warp."""
        return self.threads * (32 * self.work.planes + 4)

    @property
    def shared(self) -> int:
        """Bytes of dynamic shared memory, as ``struct Shared`` has it."""
        return 16 * -(-(self.slots * self.unit_bytes + self.input_bytes + self.product_bytes) // 16)

    @property
    def input_bytes(self) -> int:
        """Squares, factors and, where several warps need it, the quantised input."""
        work = self.work
        chunks = 1 if work.binary and self.shares == 1 else work.passes * work.chunk_warps
        return work.rows * (16 * work.chunks + 4 + chunks * (544 if work.binary else 560)) + 32

    @property
    def product_bytes(self) -> int:
        """Two rounds of products, or the only one."""
        buffers = 2 if self.block_tiles > self.round_tiles else 1
        return buffers * self.work.rows * 16 * (self.round_tiles * self.work.chunks * 16 + 1)

    @property
    def whole(self) -> int:
        """Slots with which all of a block's weights are in flight at once."""
        return -(-self.block_tiles // self.round_tiles) * self.round_tiles // self.shares * self.work.passes


def takes(linear: Linear, target: Target) -> bool:
    """Whether this kernel is the one for a projection: few rows, and they fit into a block's shared memory."""
    work = Work.of(linear, target)
    return work.rows <= DECODE_ROWS and _deal(work, target) is not None


def decode_launches(linear: Linear, target: Target) -> list[Launch]:
    """One launch for up to three weights of one tile layout, at most MOST_ROWS rows."""
    if len(linear.weights) > PARTS:
        first, rest = linear.split(PARTS)
        return [*decode_launches(first, target), *decode_launches(rest, target)]
    work = Work.of(linear, target)
    deal = _deal(work, target)
    if deal is None or work.rows > MOST_ROWS:
        raise AssertionError(f"decode_launches was asked for {work}, which decode.takes refuses")
    norm: Argument = Plane(linear.norm, "data") if linear.norm is not None else linear.x
    arguments: list[Argument] = [STEP, linear.x, norm, linear.out]
    for weight in (*linear.weights, *(linear.weights[0],) * (PARTS - len(linear.weights))):
        arguments += [Plane(weight, "bits"), Plane(weight, "scales")]
    grid = (min(work.tiles // work.step, target.multiprocessors), 1, 1)
    source = "linear/cuda/decode.cu"
    shared = max(deal.shared, _spread(linear.epilogue, target))
    return [Launch(source, "decode", _constants(linear, deal), grid, deal.threads, tuple(arguments), shared)]


def _spread(epilogue: str, target: Target) -> int:
    """Bytes of shared memory with which no multiprocessor takes two blocks of a kernel while another takes none.

    While a kernel runs there is one block of it on each, and more than a third leaves room for one block of the next. A
    product that is added may follow attention, which does not run on all of them, so it asks for more than half.
    """
    whole = target.shared_limit + BLOCK_SHARED
    least = whole // (2 if epilogue == "add" else 3)
    return least // SHARED_STEP * SHARED_STEP + SHARED_STEP - BLOCK_SHARED


def _constants(linear: Linear, deal: Deal) -> dict[str, int | float | str]:
    """The macros of decode.cu."""
    work = deal.work
    constants: dict[str, int | float | str] = {
        "K": linear.weights[0].shape[1],
        "PLANES": work.planes,
        "PARTS": 1 if work.paired else len(linear.weights),
        "EPILOGUE": EPILOGUES[linear.epilogue],
        "NORM": int(linear.norm is not None),
        "EPS": float(linear.eps),
        "GATHER": int(linear.gather),
        "WIDTH": linear.width,
        "CAPACITY": work.rows,
        "BINARY": int(work.binary),
        "CHUNK_WARPS": work.chunk_warps,
        "SHARES": deal.shares,
        "MIN_BLOCKS": max(1, 1024 // deal.threads) if deal.beside else 1,
        "SLOTS": deal.slots,
        "ROUND": deal.round_tiles,
        "BLOCK_TILES": deal.block_tiles,
    }
    column = linear.column
    for i in range(PARTS):
        n = linear.weights[i].shape[0] if i < len(linear.weights) else 0
        constants |= {f"TILES_{i}": TileShape(n, 1, 1).tiles, f"N_{i}": n, f"COLUMN_{i}": column}
        column += n
    return constants


def _deal(work: Work, target: Target) -> Deal | None:
    """Whole tiles a block, as even as they go over the multiprocessors; then as many units in flight as fit.

    A block that leaves what ``_spread`` asks for lets the next kernel's block start fetching beside it; only where the
    rows alone need more does it get all. None where even that is too little.
    """
    block = -(-(work.tiles // work.step) // target.multiprocessors) * work.step
    half = (target.shared_limit + BLOCK_SHARED) // 2 - BLOCK_SHARED - 2 * SHARED_STEP
    for room, slots in ((half, 2), (target.shared_limit, 2), (target.shared_limit, 1)):
        found = max(_deals(work, block, room, slots), key=lambda deal: deal.slots, default=None)
        if found is not None:
            return replace(found, beside=room == half)
    return None


def _deals(work: Work, block: int, room: int, least_slots: int) -> Iterator[Deal]:
    """Rounds from the largest on, each with the slots that fit beside it."""
    shares = max(1, min(SHARED_WARPS // work.chunk_warps, block))
    step = work.step * shares // gcd(work.step, shares)
    count = -(-block // max(step, ROUND_UNITS * shares // step * step))
    most = -(-block // count // step) * step
    least = max(step, max(1, LEAST_UNITS // work.rows) * shares // step * step)
    for tiles in range(most, min(most, least) - 1, -step):
        bare = Deal(work, block, shares, tiles, 0)
        slots = min(bare.whole, (room - bare.shared) // bare.unit_bytes)
        if slots >= min(bare.whole, least_slots):
            yield replace(bare, slots=slots)
