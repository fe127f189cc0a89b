"""Exact mode in every layout, and int8 mode of the formats without tiles: general kernels, any number of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shohin.devices import Weight
from shohin.devices.cuda.launch import STEP, Argument, Launch, Plane, Target
from shohin.devices.cuda.packing import LAYOUTS
from shohin.kernels.linear.cuda.linear import TILES, Linear

__all__ = ["plain_launches", "planes_of"]

EPILOGUES = {"store": 0, "add": 1, "swiglu": 2}
# Rows of x that share one reading of the weights, and matrices that one launch can take.
PASS, PARTS = 8, 3
THREADS = 128
TILE_WARPS = 8
# Up to this many inputs every block prepares the rows itself: less than another launch costs.
FUSED_INPUTS, FUSED_BYTES = 4096, 12288


def plain_launches(linear: Linear, target: Target) -> list[Launch]:
    """The rows are prepared once, or by every block where they are few; a launch multiplies up to three weights."""
    if linear.epilogue == "swiglu" and len({_kind(w) for w in linear.weights}) > 1:
        return _apart(linear, target)
    shape = RowShape.of(linear, target)
    launches: list[Launch] = []
    if shape.fused:
        places: tuple[Argument, ...] = (linear.x, linear.x, linear.x)
    else:
        places = tuple(target.scratch(max(4, n) * shape.rows) for n in (shape.values, 4 * shape.scales, 4 * shape.sums))
        launches.append(_prepare(linear, shape, places))
    column = linear.column
    for i in range(0, len(linear.weights), PARTS):
        part = replace(linear, weights=linear.weights[i : i + PARTS], column=column)
        launches.append(_multiply(part, shape, places, linear.out, target))
        column += sum(w.shape[0] for w in part.weights)
    return launches


def planes_of(weight: Weight) -> tuple[Argument, Argument]:
    """Data and scales; weights in blocks have their scales inside."""
    if weight.storage.layout in TILES:
        return Plane(weight, "bits"), Plane(weight, "scales")
    return Plane(weight, "data"), Plane(weight, "data")


@dataclass(frozen=True)
class RowShape:
    """How rows of x are kept for the multiplication (``plain_rows.cuh``).

    rows: capacity. group: inputs under one scale, 0 in float32. run: codes under one sum, 0 without sums. lanes: whose
    inputs lie side by side, 0 in plain order. values: bytes of a row; scales, sums: floats of a row.
    """

    rows: int
    width: int
    group: int
    run: int
    lanes: int
    fused: bool

    @classmethod
    def of(cls, linear: Linear, target: Target) -> RowShape:
        """The shape that a projection's weights ask for."""
        weight = linear.weights[0]
        fmt, width = weight.format, weight.shape[1]
        tiles = weight.storage.layout in TILES
        group = min(128, fmt.block) if linear.activations == "int8" and fmt.quantised else 0
        run = min(group, fmt.group) if fmt.name in AFFINE else 0
        lanes = (4 if tiles else 32) if fmt.quantised else 0
        rows = target.wanted if linear.gather else target.rows
        made = cls(rows, width, group, run, lanes, False)
        small = rows <= PASS and rows * width <= FUSED_INPUTS and made.shared(_passed(rows)) <= FUSED_BYTES
        return replace(made, fused=small and not tiles)

    @property
    def values(self) -> int:
        """Bytes of a row, a multiple of 16; whole spans of 32 inputs a lane."""
        span = 32 * self.lanes if self.lanes else 4
        inputs = -(-self.width // span) * span
        return inputs if self.group else 4 * inputs

    @property
    def scales(self) -> int:
        """Activation scales of a row."""
        return self.width // self.group if self.group else 0

    @property
    def sums(self) -> int:
        """Sums of codes of a row."""
        return self.width // self.run if self.run else 0

    def shared(self, rows: int) -> int:
        """Bytes of shared memory for rows that a block prepares itself, with the sums of squares of one."""
        return rows * (self.values + 4 * self.scales + 4 * self.sums) + self.squares

    @property
    def squares(self) -> int:
        """Bytes of the sums of squares of a row."""
        return 4 * -(-self.width // 128)

    @property
    def strides(self) -> tuple[int, int, int]:
        """From row to row: bytes of values, floats of scales and sums."""
        return self.values, self.scales, self.sums


AFFINE = ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K")


def _kind(weight: Weight) -> tuple[str, str]:
    return weight.storage.layout, weight.format.name


def _passed(rows: int) -> int:
    """Rows in a pass: the least power of two that holds them, up to eight."""
    return min(PASS, 1 << (rows - 1).bit_length())


def _prepare(linear: Linear, shape: RowShape, places: tuple[Argument, ...]) -> Launch:
    constants: dict[str, int | float | str] = {
        "GROUP": shape.group,
        "RUN_LENGTH": shape.run,
        "LANES": shape.lanes,
        "NORM": int(linear.norm is not None),
        "GATHER": int(linear.gather),
    }
    norm: Argument = linear.x if linear.norm is None else Plane(linear.norm, "data")
    arguments = (linear.x, norm, *places, STEP, shape.width, float(linear.eps), *shape.strides)
    source = "linear/cuda/plain_rows.cu"
    return Launch(source, "prepare", constants, (shape.rows, 1, 1), 256, arguments, shared=shape.squares)


def _multiply(linear: Linear, shape: RowShape, places: tuple[Argument, ...], out: Argument, target: Target) -> Launch:
    weights, first = linear.weights, linear.weights[0]
    tiles = first.storage.layout in TILES
    passed = _passed(shape.rows)
    outputs = 16 if tiles else _outputs(linear, passed, target)
    constants: dict[str, int | float | str] = {
        "GATHER": int(linear.gather),
        "EPILOGUE": EPILOGUES[linear.epilogue],
        "PARTS": len(weights),
        "INT8": int(shape.group > 0),
        "PASS": passed,
    }
    counted = weights[:1] if linear.epilogue == "swiglu" else weights
    units = sum(-(-w.shape[0] // outputs) for w in counted)
    padded = (*weights, *(first,) * (PARTS - len(weights)))
    data = tuple(planes_of(w)[0] for w in padded)
    rows = tuple(w.shape[0] for w in padded)
    tail = (*places, out, STEP, shape.width, *shape.strides, linear.width, linear.column)
    passes = -(-shape.rows // passed)
    if tiles:
        warps = 1 if shape.group else TILE_WARPS
        constants |= {"PLANES": LAYOUTS[first.format.name][1], "WARPS": warps}
        scales = tuple(planes_of(w)[1] for w in padded)
        arguments: tuple[Argument, ...] = (*data, *scales, *rows, *tail)
        source = "linear/cuda/plain_tiles.cu"
        return Launch(source, "multiply_tiles", constants, (units, passes, 1), 32 * warps, arguments)
    constants |= {
        "FORMAT": first.format.name,
        "DENSE": int(not first.format.quantised),
        "VECTOR": _vector(first),
        "GROUP": shape.group,
        "OUTPUTS": outputs,
        "FUSED": int(shape.fused),
        "NORM": int(linear.norm is not None),
    }
    norm: Argument = linear.x if linear.norm is None else Plane(linear.norm, "data")
    arguments = (*data, *rows, linear.x, norm, float(linear.eps), *tail)
    blocks = -(-units // (THREADS // 32))
    shared = shape.shared(passed) if shape.fused else 0
    return Launch("linear/cuda/plain.cu", "multiply", constants, (blocks, passes, 1), THREADS, arguments, shared)


def _outputs(linear: Linear, passed: int, target: Target) -> int:
    """Rows of weights a warp: more share what is loaded of x, fewer make work for more warps."""
    rows = sum(w.shape[0] for w in linear.weights)
    return 4 if passed > 1 or rows >= 64 * target.multiprocessors else 2


def _vector(weight: Weight) -> int:
    """Numbers in a load of at most 16 bytes to which every row of a plain matrix is aligned."""
    most = 16 // weight.format.block_bytes
    return 1 if weight.format.quantised or weight.shape[1] % most else most


def _apart(linear: Linear, target: Target) -> list[Launch]:
    """Gate and up in two layouts: two products, then what joins them."""
    rows = target.wanted if linear.gather else target.rows
    width = linear.width
    launches: list[Launch] = []
    made: list[Argument] = []
    for weight in linear.weights:
        one = replace(linear, weights=(weight,), epilogue="store")
        shape = replace(RowShape.of(one, target), fused=False)
        places = tuple(target.scratch(max(4, n) * rows) for n in (shape.values, 4 * shape.scales, 4 * shape.sums))
        product = target.scratch(4 * rows * width)
        launches += [_prepare(one, shape, places), _multiply(one, shape, places, product, target)]
        made.append(product)
    constants = {"GATHER": int(linear.gather), "EPILOGUE": EPILOGUES["swiglu"], "PARTS": 2}
    grid = (-(-width // 256), rows, 1)
    arguments = (*made, linear.out, STEP, width)
    return [*launches, Launch("linear/cuda/plain_gate.cu", "combine", constants, grid, 256, arguments)]
