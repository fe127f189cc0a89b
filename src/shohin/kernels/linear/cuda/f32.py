"""Many rows of float32 weights: the sums of the plain kernels, bit by bit, with more outputs for every value read."""

from __future__ import annotations

from shohin.devices.cuda.launch import STEP, Argument, Launch, Plane, Target
from shohin.kernels.linear.cuda.linear import Linear

__all__ = ["LEAST_ROWS", "f32_launches", "takes"]

# From so many rows on this kernel is faster than the plain one, whose bits it has, for every shape that was measured.
LEAST_ROWS = 9
# Outputs and rows of a block, columns that come together, stages of them in shared memory.
OUTPUTS, ROWS, SLAB, STAGES = 32, 32, 128, 3
THREADS = 256
EPILOGUES = {"store": 0, "add": 1, "swiglu": 2}


def takes(linear: Linear, target: Target) -> bool:
    """Whether this kernel is the one for a projection: weights in F32, and more than a few rows."""
    rows = target.wanted if linear.gather else target.rows
    return rows >= LEAST_ROWS and all(w.format.name == "F32" for w in linear.weights)


def f32_launches(linear: Linear, target: Target) -> list[Launch]:
    """One launch for every weight (gate and up: one), after one that norms or gathers the rows where they need it."""
    width = linear.weights[0].shape[1]
    rows = target.wanted if linear.gather else target.rows
    launches: list[Launch] = []
    source: Argument = linear.x
    stride = width
    if linear.norm is not None or linear.gather:
        stride = -(-width // 4) * 4
        source = target.scratch(4 * rows * stride)
        launches.append(_prepare(linear, target, source, rows, width, stride))
    vector = 1 if width % 4 else 4
    constants = {
        "VECTOR": vector,
        "EPILOGUE": EPILOGUES[linear.epilogue],
        "GATHER": int(linear.gather),
        "STAGES": STAGES,
    }
    shared = (OUTPUTS + ROWS) * (STAGES * SLAB * 4 + 8)
    pairs = [linear.weights] if linear.epilogue == "swiglu" else [(w, w) for w in linear.weights]
    column = linear.column
    for first, second in pairs:
        outputs = first.shape[0]
        tiles = -(-outputs * (2 if linear.epilogue == "swiglu" else 1) // OUTPUTS)
        arguments = (
            *(STEP, source, Plane(first, "data"), Plane(second, "data"), linear.out),
            *(outputs, width, stride, column, linear.width),
        )
        grid = (-(-rows // ROWS), tiles, 1)
        launches.append(Launch("linear/cuda/f32.cu", "multiply_f32", constants, grid, THREADS, arguments, shared))
        column += outputs
    return launches


def _prepare(linear: Linear, target: Target, values: Argument, rows: int, width: int, stride: int) -> Launch:
    """Normed and gathered rows in float32, by the kernel that prepares rows for the plain ones."""
    constants: dict[str, int | float | str] = {
        "GROUP": 0,
        "RUN_LENGTH": 0,
        "LANES": 0,
        "NORM": int(linear.norm is not None),
        "GATHER": int(linear.gather),
    }
    norm: Argument = linear.x if linear.norm is None else Plane(linear.norm, "data")
    nothing = target.scratch(4)
    arguments = (linear.x, norm, values, nothing, nothing, STEP, width, float(linear.eps), 4 * stride, 0, 0)
    source = "linear/cuda/plain_rows.cu"
    return Launch(source, "prepare", constants, (rows, 1, 1), 256, arguments, shared=4 * -(-width // 128))
