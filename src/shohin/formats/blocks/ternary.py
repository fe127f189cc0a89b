"""Ternary blocks: TQ1_0 and PTQ1_0 with five weights a byte, TQ2_0 with four."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from shohin.formats.blocks.base import Bytes, Floats, bits, merge
from shohin.formats.blocks.scaled import ScaledFormat, largest, trits

# Trit n of a byte: the byte is a fraction of 256, so multiplying by 3^n (mod 256) and then by 3 pushes out one digit.
_TRITS = np.stack(
    [((np.arange(256) * 3**n % 256) * 3 // 256 - 1).astype(np.int8) for n in range(5)],
)
# Five base-3 digits as a number 0 ... 242 -> the smallest byte that gives them back.
_FRACTION = ((np.arange(243) * 256 + 242) // 243).astype(np.uint8)


class _BaseThree(ScaledFormat):
    """Stages of (bytes, trits a byte): within a stage of m bytes, weight ``m n + i`` is trit n of byte i.

    Trits stand most significant first. A stage of four trits leaves the fifth 0.
    """

    scale_first = False
    _stages: ClassVar[tuple[tuple[int, int], ...]]

    def _codes(self, field: Bytes) -> NDArray[np.int8]:
        out = np.empty((len(field), self.block), np.int8)
        weight = byte = 0
        for width, digits in self._stages:
            part = field[:, byte : byte + width]
            for table in _TRITS[:digits]:
                out[:, weight : weight + width] = table[part]
                weight += width
            byte += width
        return out

    def _scale(self, values: Floats) -> Floats:
        return largest(values)

    def _field(self, ratio: Floats) -> Bytes:
        digit = (trits(ratio) + 1).astype(np.uint8)
        fields = []
        weight = 0
        for width, digits in self._stages:
            number = np.zeros((len(ratio), width), np.uint8)
            for _ in range(digits):
                number = number * 3 + digit[:, weight : weight + width]
                weight += width
            fields.append(_FRACTION[number * 3 ** (5 - digits)])
        return np.concatenate(fields, axis=1)


class TQ1_0(_BaseThree):  # noqa: N801
    """54 bytes for 256 weights: 48 bytes of five trits, 4 of four, f16 d (ggml)."""

    name = "TQ1_0"
    type_id = 34
    block = group = 256
    block_bytes = 54
    _stages = ((32, 5), (16, 5), (4, 4))


class PTQ1_0(_BaseThree):  # noqa: N801
    """28 bytes for 128 weights: 24 bytes of five trits, 2 of four, f16 d (PrismML)."""

    name = "PTQ1_0"
    type_id = 143
    block = group = 128
    block_bytes = 28
    _stages = ((16, 5), (8, 5), (2, 4))


class TQ2_0(ScaledFormat):  # noqa: N801
    """66 bytes for 256 weights: two halves of 32 bytes, then f16 d (ggml).

    Bit pair l of byte m in half h is weight ``128 h + 32 l + m``; its value is the pair minus one, times d.
    """

    name = "TQ2_0"
    type_id = 35
    block = group = 256
    block_bytes = 66
    scale_first = False

    def _codes(self, field: Bytes) -> NDArray[np.int8]:
        pairs = bits(field.reshape(-1, 2, 1, 32), np.array([0, 2, 4, 6], np.uint8)[:, None], 2)
        return pairs.view(np.int8).reshape(-1, 256) - np.int8(1)

    def _scale(self, values: Floats) -> Floats:
        return largest(values)

    def _field(self, ratio: Floats) -> Bytes:
        pairs = (trits(ratio) + 1).astype(np.uint8).reshape(-1, 2, 4, 32)
        return merge([pairs[:, :, i] for i in range(4)], 2).reshape(-1, 64)
