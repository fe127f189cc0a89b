"""Many rows of x: one dispatch prepares them, the next multiplies tiles."""

from __future__ import annotations

from shohin.devices.webgpu.dispatch import Argument, Binding, Dispatch, Scratch, Target, grid
from shohin.kernels.linear.webgpu.module import (
    FOLDER,
    constants_of,
    format_part,
    pieces_of,
    row_bindings,
    row_parts,
    width_of,
)
from shohin.kernels.linear.webgpu.projection import Linear, Piece

__all__ = ["batch_dispatches", "combine"]

# Rows of weights that a workgroup multiplies, four a thread.
TILE_N = 64
# Codes are written word by word and read four words at a time.
READ_AS = {"row_codes": "array<vec4<u32>>"}


def batch_dispatches(linear: Linear, target: Target) -> list[Dispatch]:
    """Preparation, then a dispatch for up to three pieces of one format."""
    rows, width = linear.rows(target), width_of(linear.weights[0])
    blocks = -(-linear.columns // width)
    if linear.quantised:
        places = [target.scratch(rows * linear.columns), target.scratch(8 * rows * blocks)]
        kept = [("row_codes", places[0], "array<u32>"), ("row_scales", places[1], "array<vec2<u32>>")]
    else:
        kept = [("row_inputs", target.scratch(4 * rows * blocks * width), "array<vec4<f32>>")]
    return [_prepare(linear, kept, target), *(_multiply(linear, kept, pieces, target) for pieces in linear.pieces())]


def combine(linear: Linear, places: list[Scratch], target: Target) -> Dispatch:
    """out = silu(gate) * up."""
    bindings = (
        Binding("gates", places[0], "array<f32>"),
        Binding("ups", places[1], "array<f32>"),
        Binding("out", linear.out, "array<f32>", write=True),
        Binding.step(),
    )
    sources = (f"{FOLDER}/gate.wgsl", f"{FOLDER}/combine.wgsl")
    workgroups = grid(-(-target.rows * linear.width // 64))
    return Dispatch(sources, "combine", {"OUT_WIDTH": linear.width}, bindings, workgroups)


Kept = list[tuple[str, Scratch, str]]


def _mode(linear: Linear) -> str:
    return "int8" if linear.quantised else "exact"


def _prepare(linear: Linear, kept: Kept, target: Target) -> Dispatch:
    written = [Binding(name, place, element, write=True) for name, place, element in kept]
    # The format's part reads no weight here, but it names them.
    constants, weights = pieces_of(linear.pieces()[0])
    sources = (
        *row_parts(linear, target),
        f"{FOLDER}/live_rows.wgsl",
        f"{FOLDER}/prepare_{_mode(linear)}.wgsl",
    )
    bindings = (*row_bindings(linear), *weights, *written, Binding.step())
    return Dispatch(sources, "prepare", constants | constants_of(linear), bindings, (linear.rows(target), 1, 1))


def _multiply(linear: Linear, kept: Kept, pieces: tuple[Piece, ...], target: Target) -> Dispatch:
    rows = linear.rows(target)
    threads_m = min(16, max(4, 1 << (rows - 1).bit_length()))
    constants, weights = pieces_of(pieces)
    counted = pieces[:1] if linear.epilogue == "swiglu" else pieces
    tiles = [-(-piece.packed.rows // TILE_N) for piece in counted]
    each_m, wanted = 4, target.workgroups // 2
    # No thread has more rows than there are, nor so many that a part of the adapter idles.
    while each_m > 1 and (rows <= threads_m * each_m // 2 or sum(tiles) * -(-rows // (threads_m * each_m)) < wanted):
        each_m //= 2
    constants |= constants_of(linear) | {
        "THREADS": TILE_N // 4 * threads_m,
        "THREADS_M": threads_m,
        "EACH_M": each_m,
        "OUT_WIDTH": linear.width,
        "TILES_0": tiles[0],
        "TILES_1": tiles[1] if len(tiles) > 1 else 0,
        "ROWS_OF_X": rows,
    }
    out: Argument = linear.out
    bindings = (
        *weights,
        *(Binding(name, place, READ_AS.get(name, element)) for name, place, element in kept),
        Binding("out", out, "array<f32>", write=True),
        Binding.step(),
    )
    mode = _mode(linear)
    names = ("pieces", f"{mode}_terms", f"multiply_{mode}", "gate", "live_rows", "multiply")
    sources = (
        format_part(linear.weights[0]),
        *(f"{FOLDER}/{name}.wgsl" for name in names),
    )
    return Dispatch(sources, "multiply", constants, bindings, (sum(tiles), -(-rows // (threads_m * each_m)), 1))
