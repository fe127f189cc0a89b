"""Q1_0: a sign for each weight, one f16 scale for 128."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shohin.formats.blocks.base import Bytes, Floats, halves
from shohin.formats.blocks.scaled import ScaledFormat

_BYTE = np.arange(256, dtype=np.uint8)[:, None]
# Byte -> its eight codes, packed in one word so that decoding is one look-up a byte.
_SIGNS = np.ascontiguousarray((_BYTE >> np.arange(8, dtype=np.uint8) & 1).astype(np.int8) * 2 - 1).view(np.uint64)[:, 0]


class Q1_0(ScaledFormat):  # noqa: N801 - the format's own name
    """18 bytes: f16 d, then 16 bytes; weight j is bit ``j % 8`` of byte ``j // 8``, 1 for +d and 0 for -d (ggml)."""

    name = "Q1_0"
    type_id = 41
    block = group = 128
    block_bytes = 18

    def _codes(self, field: Bytes) -> NDArray[np.int8]:
        return _SIGNS[field].view(np.int8).reshape(-1, self.block)

    def _pack(self, values: Floats) -> Bytes:
        # The sign is that of the weight itself, so that nothing is lost where the scale underflows.
        return self.join(halves(self._scale(values)), self._field(values))

    def _scale(self, values: Floats) -> Floats:
        # ggml sums in float32, in order; another order gives other bits.
        total = np.zeros(len(values), np.float32)
        for column in np.abs(values.T.copy()):
            total += column
        return total / np.float32(self.block)

    def _field(self, ratio: Floats) -> Bytes:
        return np.packbits(ratio >= 0, axis=1, bitorder="little")
