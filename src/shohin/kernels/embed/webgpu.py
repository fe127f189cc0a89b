"""``embed`` through WebGPU: a workgroup a row, a dispatch a part of the table."""

from __future__ import annotations

from typing import cast

from shohin.devices import Buffer, Call, Weight
from shohin.devices.webgpu.dispatch import Binding, Dispatch, Part, Target
from shohin.kernels.linear.webgpu import Linear, Piece
from shohin.kernels.linear.webgpu.module import constants_of, format_part, pieces_of


def dispatches(call: Call, target: Target) -> list[Dispatch]:
    """Dispatches over the row capacity."""
    table, out = cast(Weight, call.operands[0]), cast(Buffer, call.operands[1])
    shape = constants_of(Linear(out, None, (table,), out, out.shape[1], "store", "exact"))
    sources = (format_part(table), "kernels/embed/embed.wgsl")
    found = []
    for i, part in enumerate(table.storage):
        constants, weights = pieces_of((Piece(Part(table, i), 0),))
        bindings = (*weights, Binding("out", out, "array<f32>", write=True), Binding.step())
        constants |= shape | {"FIRST": part.first}
        found.append(Dispatch(sources, "embed", constants, bindings, (target.rows, 1, 1)))
    return found
