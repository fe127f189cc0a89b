"""Weights in the order in which the lanes of a warp feed them to the matrix units (``packing.cu`` in NumPy)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shohin.devices.cuda.driver import Memory
from shohin.formats.blocks import BlockFormat

__all__ = ["CHUNK", "GROUP", "LAYOUTS", "TILE", "Packed", "TileShape", "pack_tiles"]

TILE, CHUNK, GROUP = 16, 512, 128
# Layout of a format that has tiles, and its bit planes.
LAYOUTS = {"Q1_0": ("tiles1", 1), "PQ2_0": ("tiles2", 2)}


@dataclass(frozen=True, eq=False)
class Packed:
    """A weight's storage on the device. layout: ``tiles1``, ``tiles2``, ``blocks`` or ``dense``; planes by name."""

    layout: str
    planes: dict[str, Memory] = field(repr=False)


@dataclass(frozen=True)
class TileShape:
    """Rows and columns of a matrix in tiles of 16 rows by chunks of 512 columns; planes: bits a weight."""

    rows: int
    columns: int
    planes: int

    @property
    def tiles(self) -> int:
        """Tiles of 16 rows."""
        return -(-self.rows // TILE)

    @property
    def chunks(self) -> int:
        """Chunks of 512 columns, four groups of 128."""
        return -(-self.columns // CHUNK)

    @property
    def bits_bytes(self) -> int:
        """Bytes of plane ``bits``: uint32 [tiles, chunks, 2 a plane, 32 lanes, 4]."""
        return self.tiles * self.chunks * self.planes * 2 * 32 * 16

    @property
    def scale_bytes(self) -> int:
        """Bytes of plane ``scales``: a pair of float16 [tiles, chunks, 32 lanes]."""
        return self.tiles * self.chunks * 32 * 4


def pack_tiles(raw: NDArray[np.uint8], fmt: BlockFormat) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Rows of Q1_0 or PQ2_0 blocks, uint8 [N, bytes], as (bits, scales): what ``packing.cu`` makes on the device.

    Lane l holds word l % 4 of the 128-bit groups of rows l / 4 and l / 4 + 8: the fragment order of
    ``mma.m16n8k128`` (PTX ISA). Missing rows and columns are zero bits under zero scales.
    """
    blocks = fmt.blocks(raw)
    rows, groups = blocks.shape[:2]
    shape = TileShape(rows, groups * GROUP, LAYOUTS[fmt.name][1])
    n, g = shape.tiles * TILE, shape.chunks * 4
    words = np.zeros((shape.planes, n, g, 4), np.uint32)
    words[:, :rows, :groups] = _planes(blocks[..., 2:], shape.planes)
    scales = np.zeros((n, g), np.uint16)
    scales[:rows, :groups] = np.ascontiguousarray(blocks[..., :2]).view("<u2")[..., 0]
    # planes, tile, half of the tile, row, chunk, pair of groups, group of the pair, word
    lanes = words.reshape(shape.planes, shape.tiles, 2, 8, shape.chunks, 2, 2, 4)
    bits = lanes.transpose(1, 4, 0, 5, 3, 7, 6, 2)
    pairs = scales.reshape(shape.tiles, 2, 8, shape.chunks, 4).transpose(0, 3, 2, 4, 1)
    return np.ascontiguousarray(bits).reshape(-1), np.ascontiguousarray(pairs).view("<u4").reshape(-1)


def _planes(codes: NDArray[np.uint8], planes: int) -> NDArray[np.uint32]:
    """Code bytes [N, groups, 16 a plane] as words of one bit a weight, [planes, N, groups, 4], high bits first."""
    if planes == 1:
        return np.ascontiguousarray(codes).view("<u4")[None]
    bits = np.unpackbits(codes, axis=-1, bitorder="little")
    both = [np.packbits(bits[..., first::2], axis=-1, bitorder="little") for first in (1, 0)]
    return np.stack([np.ascontiguousarray(part).view("<u4") for part in both])
