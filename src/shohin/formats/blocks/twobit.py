"""Two bits for each weight: Q2_0 in blocks of 64, and the blocks of 128 known as PQ2_0, legacy Q2_0 and TQ2_0_g128.

Three of the four carry the type id 42; the reader decides which one a file means, never a name.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from shohin.formats.blocks.base import Bytes, Floats, halves, merge
from shohin.formats.blocks.scaled import ScaledFormat, largest, trits

_PAIRS = np.arange(256, dtype=np.uint8)[:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3


def _table(meaning: tuple[int, int, int, int]) -> NDArray[np.uint32]:
    # Byte -> its four codes in one word, so that decoding is one look-up a byte.
    return np.ascontiguousarray(np.array(meaning, np.int8)[_PAIRS]).view(np.uint32)[:, 0]


def pack_pairs(codes: NDArray[np.int8]) -> Bytes:
    """Codes -1 ... 2, int8 [..., n] -> uint8 [..., n / 4]: code + 1 in two bits, the first weight lowest."""
    quads = (codes + 1).astype(np.uint8).reshape(*codes.shape[:-1], codes.shape[-1] // 4, 4)
    return merge([quads[..., i] for i in range(4)], 2)


class _TwoBit(ScaledFormat):
    """Weight j is the bits ``2 (j % 4)`` and the next of byte ``j // 4``; 00, 01, 10, 11 are -d, 0, +d, +2d."""

    _words: ClassVar[NDArray[np.uint32]] = _table((-1, 0, 1, 2))

    def _codes(self, field: Bytes) -> NDArray[np.int8]:
        return self._words[field].view(np.int8).reshape(-1, self.block)

    def _scale(self, values: Floats) -> Floats:
        return largest(values)

    def _field(self, ratio: Floats) -> Bytes:
        return pack_pairs(trits(ratio))


class Q2_0(_TwoBit):  # noqa: N801
    """18 bytes for 64 weights: f16 d, then 16 bytes (ggml)."""

    name = "Q2_0"
    type_id = 42
    block = group = 64
    block_bytes = 18


class Q2_0_G128(_TwoBit):  # noqa: N801
    """34 bytes for 128 weights: f16 d, then 32 bytes; id 42 in PrismML's files of April to August 2026."""

    name = "Q2_0_G128"
    type_id = 42
    block = group = 128
    block_bytes = 34


class PQ2_0(Q2_0_G128):  # noqa: N801
    """The same bytes as Q2_0_G128 under an id of their own (PrismML)."""

    name = "PQ2_0"
    type_id = 142


class TQ2_0_G128(_TwoBit):  # noqa: N801
    """34 bytes for 128 weights: 32 bytes, then f16 d; 11 means 0 (OxiBonsai)."""

    name = "TQ2_0_G128"
    type_id = 42
    block = group = 128
    block_bytes = 34
    scale_first = False
    _words = _table((-1, 0, 1, 0))

    def _pack(self, values: Floats) -> Bytes:
        # Compared with half the largest weight instead of multiplied by its reciprocal.
        peak = self._scale(values)
        half = (peak * np.float32(0.5))[:, None]
        plus = values >= half
        codes = plus.astype(np.int8) - ((values <= -half) & ~plus).astype(np.int8)
        codes[peak == 0] = 0
        return self.join(halves(peak), pack_pairs(codes))
