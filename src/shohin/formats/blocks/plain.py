"""F32, F16 and BF16: numbers as they are."""

from __future__ import annotations

import numpy as np

from shohin.formats.blocks.base import BlockFormat, Bytes, Codes, Floats, ScaleOverflow, halves, read_halves


class _Plain(BlockFormat):
    block = group = 1
    quantised = False

    def _unpack(self, blocks: Bytes) -> Codes:
        raise NotImplementedError(f"{self.name} has no codes")


class F32(_Plain):
    """IEEE binary32, little endian."""

    name = "F32"
    type_id = 0
    block_bytes = 4

    def _decode(self, blocks: Bytes, out: Floats) -> None:
        out[:] = blocks.view("<f4")

    def _pack(self, values: Floats) -> Bytes:
        return values.astype("<f4").view(np.uint8)


class F16(_Plain):
    """IEEE binary16, little endian, rounded to nearest even."""

    name = "F16"
    type_id = 1
    block_bytes = 2

    def _decode(self, blocks: Bytes, out: Floats) -> None:
        out[:, 0] = read_halves(blocks)

    def _pack(self, values: Floats) -> Bytes:
        return halves(values[:, 0])


class BF16(_Plain):
    """The upper half of a binary32, little endian, rounded to nearest even."""

    name = "BF16"
    type_id = 30
    block_bytes = 2

    def _decode(self, blocks: Bytes, out: Floats) -> None:
        np.left_shift(blocks.view("<u2"), 16, out=out.view(np.uint32), dtype=np.uint32)

    def _pack(self, values: Floats) -> Bytes:
        bits = values.view(np.uint32)
        upper = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
        over = (upper[:, 0] & 0x7FFF) >= 0x7F80
        if over.any():
            first = int(over.argmax())
            raise ScaleOverflow(first, float(values[first, 0]))
        return upper.astype("<u2").view(np.uint8)
