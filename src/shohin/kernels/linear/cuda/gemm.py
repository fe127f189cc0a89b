"""More rows than the decode kernel takes: quantised once, then multiplied tile by tile on int8 matrix units."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shohin.devices.cuda.launch import STEP, Argument, Launch, Plane, Scratch, Target
from shohin.devices.cuda.packing import LAYOUTS, TileShape
from shohin.kernels.linear.cuda.linear import Linear

__all__ = ["Blocking", "Product", "gemm_launches"]

# Weights that a launch reads side by side.
PARTS = 3
EPILOGUES = {"store": 0, "add": 1, "swiglu": 2}
# Activation rows of a tile (8 a column), weight tiles a warp, warps along N, warps along K.
COLUMNS, TILES, WARPS, SPLITS = (8, 4, 2, 1), (2, 1), (8, 6, 4, 3, 2, 1), (1, 2, 4)
MOST_THREADS, MOST_STAGES, LEAST_STAGES = 512, 6, 2
# A multiprocessor: schedulers, registers of each, bytes of shared memory that a block costs beside its own.
SCHEDULERS, REGISTERS, BLOCK_SHARED = 4, 16384, 1024
# A scheduler's cycles from one m16n8k32 product to the next; bytes a cycle from the second-level cache and from shared
# memory.
PRODUCT_CYCLES, CACHE_BYTES, SHARED_BYTES = 6.5, 28.0, 128.0
# Cycles from a group's first load to its last sum that a lone warp can't hide; the part of issue slots that many use.
GROUP_LATENCY, ISSUED = 250.0, 0.85


@dataclass(frozen=True)
class Product:
    """What is multiplied: rows of activations (capacity), tiles of 16 weight rows, groups of 128, bits a weight."""

    rows: int
    tiles: int
    groups: int
    planes: int
    paired: bool


@dataclass(frozen=True)
class Blocking:
    """How a block is cut (the macros of gemm.cu): nt columns of 8 rows, mt tiles a warp, wm warps, wk warps along K."""

    nt: int
    mt: int
    wm: int
    wk: int
    planes: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.wm * self.wk

    @property
    def tiles(self) -> int:
        """Tiles of weights of a block."""
        return self.wm * self.mt

    @property
    def stage_groups(self) -> int:
        """Groups of 128 that are fetched together: enough for every warp, more where they are small."""
        return 2 if self.nt == 8 and self.wk <= 2 else 4

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage: codes, bits, records, scales."""
        groups = self.stage_groups
        return groups * (8 * self.nt * (128 + 8) + self.tiles * self.planes * 256) + self.tiles * 128

    @property
    def fixed_bytes(self) -> int:
        """Shared memory beside the stages: products on their way to other warps, and pointers."""
        products = 2 * self.stage_groups * self.wm * self.nt * self.mt * 512 if self.wk > 1 else 512 * self.mt
        return products + 32 * self.tiles

    @property
    def registers(self) -> int:
        """About what a thread needs: sums, unpacked weights, and the rest."""
        sums = 4 * self.mt * -(-self.nt // self.wk)
        return min(248, 8 * -(-(sums + 24 * self.mt + 72) // 8))

    @property
    def most_blocks(self) -> int:
        """Blocks whose registers a multiprocessor has."""
        warps = REGISTERS // (32 * self.registers) * SCHEDULERS
        return max(1, warps // (self.wm * self.wk))

    def resident(self, stages: int, target: Target) -> int:
        """Blocks that a multiprocessor can hold."""
        room = (target.shared_limit + BLOCK_SHARED) // (self.shared(stages) + BLOCK_SHARED)
        return max(1, min(room, self.most_blocks))

    def blocks(self, shape: Product) -> int:
        """Tiles of work that cover a product."""
        return -(-shape.rows // (8 * self.nt)) * -(-shape.tiles // self.tiles)

    def shared(self, stages: int) -> int:
        """Bytes of dynamic shared memory."""
        return self.fixed_bytes + stages * self.stage_bytes

    def shared_traffic(self) -> float:
        """Bytes that a block moves through shared memory for one group: codes and records once a warp, weights."""
        read = self.wm * self.nt * (1024 + 128) + self.tiles * self.planes * 512
        exchanged = 2 * self.tiles * self.nt * 512 if self.wk > 1 else 0
        return read + exchanged + 8 * self.nt * 136 + self.tiles * self.planes * 256

    def slots(self) -> float:
        """Instructions that a scheduler issues for one m16n8k32 product.

        The product; four outputs' share of a group (conversion, scale, two roundings) over its four products;
        unpacking, shared by the columns; loads of codes and records, shared by the tiles; copies and the loop; products
        that go through shared memory.
        """
        unpack = 16 * (1.9 if self.planes == 1 else 2.25)
        return 5 + (unpack + 6) / (4 * self.nt) + 0.75 / self.mt + 0.25 + (0.6 if self.wk > 1 else 0.0)


def gemm_launches(linear: Linear, target: Target) -> list[Launch]:
    """One launch to quantise the rows, one for every three weights (gate and up: one)."""
    planes = LAYOUTS[linear.weights[0].format.name][1]
    rows = target.wanted if linear.gather else target.rows
    width = linear.weights[0].shape[1]
    groups = width // 128
    parts = list(_parts(linear))
    shapes = [Product(rows, _tiles(part), groups, planes, linear.epilogue == "swiglu") for part in parts]
    cuts = [choose(shape, target) for shape in shapes]
    step = max(8 * cut.nt for cut in cuts)
    capacity = -(-rows // step) * step
    chunks = -(-groups // 4)
    # Codes, records and the norm's factors (quantise.cu).
    places = tuple(target.scratch(size * capacity) for size in (chunks * 512, chunks * 32, 4))
    made = [_quantise(linear, target, groups, capacity, places)]
    for part, shape, cut in zip(parts, shapes, cuts, strict=True):
        made.append(_multiply(part, shape, cut, capacity, places, target))
    return made


def _parts(linear: Linear) -> Iterator[Linear]:
    while len(linear.weights) > PARTS:
        first, linear = linear.split(PARTS)
        yield first
    yield linear


def _tiles(linear: Linear) -> int:
    return sum(TileShape(w.shape[0], w.shape[1], 1).tiles for w in linear.weights)


def _quantise(linear: Linear, target: Target, groups: int, capacity: int, places: tuple[Scratch, ...]) -> Launch:
    rows = target.wanted if linear.gather else target.rows
    # Few rows want all of them at once, many rows want blocks that share a multiprocessor.
    threads = min(512 if rows <= 2 * target.multiprocessors else 256, 32 * -(-groups // 2))
    constants: dict[str, int | float | str] = {
        "NORM": int(linear.norm is not None),
        "GATHER": int(linear.gather),
        "BATCH": min(4, -(-groups // (threads // 16))),
    }
    norm: Argument = linear.x if linear.norm is None else Plane(linear.norm, "data")
    arguments = (STEP, linear.x, norm, *places, groups, float(linear.eps), capacity)
    return Launch("linear/cuda/quantise.cu", "quantise", constants, (rows, 1, 1), threads, arguments, 12 * groups)


def _multiply(
    linear: Linear, shape: Product, cut: Blocking, capacity: int, places: tuple[Scratch, ...], target: Target
) -> Launch:
    stages = _stages(cut, shape, target)
    weights = (*linear.weights, *(linear.weights[0],) * (PARTS - len(linear.weights)))
    constants: dict[str, int | float | str] = {
        "PLANES": shape.planes,
        "PARTS": len(linear.weights),
        "EPILOGUE": EPILOGUES[linear.epilogue],
        "NORM": int(linear.norm is not None),
        "GATHER": int(linear.gather),
        "MT": cut.mt,
        "NT": cut.nt,
        "WM": cut.wm,
        "WK": cut.wk,
        "STAGE_GROUPS": cut.stage_groups,
        "STAGES": stages,
        "MIN_BLOCKS": cut.resident(stages, target),
    }
    arguments: list[Argument] = [STEP, *places, linear.out]
    for weight in weights:
        arguments += [Plane(weight, "bits"), Plane(weight, "scales")]
    arguments += [weight.shape[0] for weight in weights]
    arguments += [linear.column, linear.width, shape.groups, shape.tiles, capacity]
    blocks = cut.blocks(shape)
    # Work after work in one block, unless K is so short that the ring would run past the next one.
    if stages <= -(-shape.groups // cut.stage_groups):
        blocks = min(blocks, cut.resident(stages, target) * target.multiprocessors)
    grid = (blocks, 1, 1)
    source = "linear/cuda/gemm.cu"
    return Launch(source, "gemm", constants, grid, cut.threads, tuple(arguments), cut.shared(stages))


def choose(shape: Product, target: Target) -> Blocking:
    """The blocking with the least estimated time; the first of equals, which are ordered from large to small."""
    cuts = [cut for cut in _candidates(shape) if cut.shared(LEAST_STAGES) <= target.shared_limit]
    return min(cuts, key=lambda cut: _cycles(cut, shape, target))


def _candidates(shape: Product) -> Iterator[Blocking]:
    most = 1 << (-(-shape.rows // 8) - 1).bit_length()
    for nt in COLUMNS:
        for mt in TILES:
            for wm in WARPS:
                for wk in SPLITS:
                    cut = Blocking(nt, mt, wm, wk, shape.planes)
                    if nt <= most and cut.threads <= MOST_THREADS and (mt == 2 or not shape.paired):
                        yield cut


def _cycles(cut: Blocking, shape: Product, target: Target) -> float:
    """Cycles of the multiprocessor with most to do: issue slots, matrix units, shared memory, second-level cache."""
    share = -(-cut.blocks(shape) // target.multiprocessors)
    together = min(share, cut.resident(_stages(cut, shape, target), target))
    waves = [together] * (share // together) + [share % together]
    product = max(PRODUCT_CYCLES, cut.slots())
    # Of one warp, and of the scheduler that has most warps.
    alone = shape.groups / cut.wk * cut.mt * cut.nt * 4 * product
    hidden = GROUP_LATENCY * shape.groups / cut.wk
    compute = sum(max(-(-n * cut.wm * cut.wk // SCHEDULERS) * alone / ISSUED, alone + hidden) for n in waves if n)
    work = share * shape.groups
    shared = work * cut.shared_traffic() / SHARED_BYTES / ISSUED
    memory = work * (8 * cut.nt * 136 + cut.tiles * (256 * shape.planes + 32)) / CACHE_BYTES
    worst = max(compute, shared, memory)
    # One block alone can't multiply while it stores.
    stored = share * cut.tiles * cut.nt * 512 / CACHE_BYTES / together
    return worst + 0.15 * (compute + shared + memory - worst) + stored + 1500.0 + 250.0 * cut.threads / 128


def _stages(cut: Blocking, shape: Product, target: Target) -> int:
    """As deep as the blocks that a multiprocessor can hold otherwise allow."""
    count = -(-shape.groups // cut.stage_groups)
    most = min(MOST_STAGES, max(LEAST_STAGES, count))
    for wanted in range(cut.most_blocks, 0, -1):
        room = (target.shared_limit + BLOCK_SHARED) // wanted - BLOCK_SHARED
        stages = min(most, (room - cut.fixed_bytes) // cut.stage_bytes)
        if stages >= min(3, most):
            return stages
    return LEAST_STAGES
