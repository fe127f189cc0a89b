"""Constants, parts and bindings that the kernels of one row and of many have in common."""

from __future__ import annotations

from dataclasses import dataclass

from shohin.devices import Weight
from shohin.devices.webgpu.dispatch import Argument, Binding, Part, Target
from shohin.devices.webgpu.packing import HEADS
from shohin.kernels.linear.webgpu.projection import PIECES, Linear, Piece

__all__ = [
    "EPILOGUES",
    "FOLDER",
    "REDUCED",
    "Codes",
    "constants_of",
    "format_part",
    "pieces_of",
    "row_bindings",
    "row_parts",
    "width_of",
]

FOLDER = "kernels/linear/webgpu"
REDUCED = 256
EPILOGUES = {"store": 0, "add": 1, "swiglu": 2}
DENSE_BLOCK = 32
KINDS = {"F32": 0, "F16": 1, "BF16": 2}

Constants = dict[str, int | float | bool | str]


@dataclass(frozen=True)
class Codes:
    """How a format stores a code: bits, codes apart in a word (``blocks.wgsl``), weight = factor * stored - offset."""

    bits: int
    factor: int = 1
    offset: int = 0
    nibbles: bool = False
    signed: bool = False

    @property
    def steps(self) -> int:
        """Quads in a word."""
        return 8 // self.bits

    @property
    def mask(self) -> int:
        """The bits of one code in each byte of a quad."""
        return ((1 << self.bits) - 1) * 0x01010101


CODES = {
    "Q1_0": Codes(1, factor=2, offset=1),
    "Q2_0": Codes(2, offset=1),
    "PQ2_0": Codes(2, offset=1),
    "Q4_0": Codes(4, offset=8, nibbles=True),
    "Q4_1": Codes(4, nibbles=True),
    "Q8_0": Codes(8, signed=True),
}


def width_of(weight: Weight) -> int:
    """Weights in a block as the kernels see it."""
    return weight.format.block if weight.format.quantised else DENSE_BLOCK


def constants_of(linear: Linear) -> Constants:
    """What the format, the row and its norm need."""
    weight = linear.weights[0]
    fmt = weight.format
    constants: Constants = {
        "WIDTH": linear.columns,
        "BLOCKS": -(-linear.columns // width_of(weight)),
        "NORM": linear.norm is not None,
        "EPS": float(linear.eps),
        "GATHER": linear.gather,
        "REDUCED": REDUCED,
        "EPILOGUE": EPILOGUES[linear.epilogue],
    }
    if not fmt.quantised:
        return constants | {"KIND": KINDS[fmt.name]}
    codes = CODES[fmt.name]
    return constants | {
        "BLOCK": fmt.block,
        "VECTORS": (fmt.block_bytes - HEADS[fmt.name]) // 16,
        "STEPS": codes.steps,
        "BITS": codes.bits,
        "MASK": codes.mask,
        "NIBBLES": codes.nibbles,
        "FACTOR": codes.factor,
        "OFFSET": codes.offset,
        "SIGNED": codes.signed,
        "AFFINE": HEADS[fmt.name] == 4,
    }


def format_part(weight: Weight) -> str:
    """The source that reads a format."""
    return f"{FOLDER}/{'blocks' if weight.format.quantised else 'dense'}.wgsl"


def row_parts(linear: Linear, target: Target) -> tuple[str, ...]:
    """The sources that prepare a row."""
    mode = "int8" if linear.quantised else "exact"
    return (format_part(linear.weights[0]), f"{FOLDER}/{mode}_row.wgsl", target.reduce)


def row_bindings(linear: Linear) -> list[Binding]:
    """x and its norm."""
    element = "array<vec4<f32>>" if linear.quantised else "array<f32>"
    norm: Argument = linear.x if linear.norm is None else Part(linear.norm)
    return [Binding("x", linear.x, element), Binding("norm", norm, element)]


def pieces_of(pieces: tuple[Piece, ...]) -> tuple[Constants, list[Binding]]:
    """Rows, columns and bindings of up to three pieces; those that are missing repeat the first."""
    constants: Constants = {"PIECES": len(pieces)}
    bindings = []
    for i in range(PIECES):
        piece = pieces[i] if i < len(pieces) else pieces[0]
        quantised = piece.part.weight.format.quantised
        constants |= {f"N_{i}": piece.packed.rows, f"COLUMN_{i}": piece.column, f"HEADS_{i}": piece.packed.scales}
        bindings.append(Binding(f"weights_{i}", piece.part, "array<vec4<u32>>" if quantised else "array<u32>"))
    return constants, bindings
