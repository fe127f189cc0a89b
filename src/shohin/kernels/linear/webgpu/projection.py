"""What a linear op multiplies: rows of x, weights in pieces, and where the product goes."""

from __future__ import annotations

from dataclasses import dataclass

from shohin.devices import Buffer, Weight
from shohin.devices.webgpu.dispatch import Argument, Part, Target
from shohin.devices.webgpu.packing import PackedPart

__all__ = ["PIECES", "Linear", "Piece"]

# Pieces of weights that a dispatch reads side by side.
PIECES = 3


@dataclass(frozen=True, eq=False)
class Piece:
    """A row part of a weight; column: where the product of its first row goes in a row of out."""

    part: Part
    column: int

    @property
    def packed(self) -> PackedPart:
        """Its memory and rows."""
        found: PackedPart = self.part.weight.storage[self.part.index]
        return found


@dataclass(frozen=True, eq=False)
class Linear:
    """What the linear ops have in common: x [rows, K], normed where ``norm`` is given, times weights [N, K].

    epilogue: ``store`` (the weights' rows side by side in out), ``add`` (out += one weight's product) or ``swiglu``
    (weights are gate and up). gather: row i of out belongs to row ``wanted[i]`` of x. activations: ``int8``, ``exact``.
    column: where the first weight's part of a row of out begins; width: values in a row of out.
    """

    x: Buffer
    norm: Weight | None
    weights: tuple[Weight, ...]
    out: Argument
    width: int
    epilogue: str
    activations: str
    eps: float = 1.0
    gather: bool = False
    column: int = 0

    @property
    def quantised(self) -> bool:
        """Whether x is read in int8."""
        return self.activations == "int8" and self.weights[0].format.quantised

    @property
    def columns(self) -> int:
        """K."""
        return self.weights[0].shape[1]

    def rows(self, target: Target) -> int:
        """Capacity of rows that are multiplied."""
        return target.wanted if self.gather else target.rows

    def pieces(self) -> list[tuple[Piece, ...]]:
        """What each dispatch multiplies: up to three parts, or the same part of gate and of up."""
        if self.epilogue == "swiglu":
            gate, up = self.weights
            return [
                (Piece(Part(gate, i), part.first), Piece(Part(up, i), part.first))
                for i, part in enumerate(gate.storage)
            ]
        found: list[Piece] = []
        column = self.column
        for weight in self.weights:
            found += [Piece(Part(weight, i), column + part.first) for i, part in enumerate(weight.storage)]
            column += weight.shape[0]
        return [tuple(found[i : i + PIECES]) for i in range(0, len(found), PIECES)]
