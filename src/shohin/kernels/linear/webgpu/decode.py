"""One row of x: one dispatch, in which every workgroup prepares the row for itself."""

from __future__ import annotations

from shohin.devices.webgpu.dispatch import Binding, Dispatch, Target
from shohin.kernels.linear.webgpu.module import (
    FOLDER,
    REDUCED,
    constants_of,
    pieces_of,
    row_bindings,
    row_parts,
    width_of,
)
from shohin.kernels.linear.webgpu.projection import Linear, Piece

__all__ = ["decode_dispatches", "fits_decode"]

# Blocks of quartets that a workgroup multiplies between two barriers.
UNITS = 2 * REDUCED


def fits_decode(linear: Linear, target: Target) -> bool:
    """Whether the row and one quartet fit the workgroup's memory."""
    return _held(linear, target) > 0


def decode_dispatches(linear: Linear, target: Target) -> list[Dispatch]:
    """One dispatch for up to three pieces of one format."""
    return [_dispatch(linear, pieces, target) for pieces in linear.pieces()]


def _dispatch(linear: Linear, pieces: tuple[Piece, ...], target: Target) -> Dispatch:
    counted = pieces[:1] if linear.epilogue == "swiglu" else pieces
    quartets = sum(-(-piece.packed.rows // 4) for piece in counted)
    # As many workgroups as fill the adapter, and no more: each prepares the row for itself.
    share = -(-quartets // target.workgroups)
    rounds = -(-share // _held(linear, target))
    held = -(-share // rounds)
    constants, weights = pieces_of(pieces)
    constants |= constants_of(linear) | {"HELD": held, "ROUNDS": rounds}
    mode = "int8" if linear.quantised else "exact"
    sources = (
        *row_parts(linear, target),
        *(f"{FOLDER}/{name}.wgsl" for name in ("pieces", f"{mode}_terms", f"decode_{mode}", "gate", "decode")),
    )
    bindings = (*row_bindings(linear), *weights, Binding("out", linear.out, "array<f32>", write=True), Binding.step())
    return Dispatch(sources, "decode", constants, bindings, (-(-quartets // (held * rounds)), 1, 1))


def _held(linear: Linear, target: Target) -> int:
    """Quartets that fit into the workgroup's memory, up to UNITS of work; 0 where not even one does."""
    width = width_of(linear.weights[0])
    blocks = -(-linear.columns // width)
    fixed = 4 * REDUCED
    if linear.quantised:
        fixed += 4 * blocks * (width // 4 + 1) + 12 * blocks
    pairs = 2 if linear.epilogue == "swiglu" else 1
    quartet = pairs * 4 * (8 * (blocks | 1) + 4)
    return max(0, min(max(1, UNITS // (blocks * pairs)), (target.limits.shared - fixed) // quartet))
