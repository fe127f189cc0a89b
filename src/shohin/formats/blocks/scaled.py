"""Blocks made of one f16 scale and a field of codes, the scale before or after it."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from shohin.errors import BadFile
from shohin.formats.blocks.base import BlockFormat, Bytes, Codes, Floats, halves


class ScaledFormat(BlockFormat):
    """A block is an f16 scale and ``block_bytes - 2`` bytes of codes; ``weight = scale * code``.

    scale_first: where the scale lies. Scale-last and scale-first files look alike: never take it from anywhere else.
    """

    scale_first: ClassVar[bool] = True

    def planes(self, raw: Bytes) -> tuple[NDArray[np.float16], Bytes]:
        """uint8 [..., bytes] -> scales float16 [..., blocks] and codes uint8 [..., blocks, block_bytes - 2].

        BadFile names a length that is zero or not a whole number of blocks.
        """
        blocks = self.blocks(raw)
        if raw.shape[-1] == 0:
            raise BadFile(f"{self.name}: a length of 0 bytes; at least one block of {self.block_bytes} was expected")
        scale, codes = (blocks[..., :2], blocks[..., 2:]) if self.scale_first else (blocks[..., -2:], blocks[..., :-2])
        return scale.view("<f2")[..., 0].astype(np.float16), codes

    def join(self, scale: Bytes, codes: Bytes) -> Bytes:
        """Two bytes [n, 2] of scale and the codes [n, block_bytes - 2] as blocks [n, block_bytes]."""
        return np.concatenate([scale, codes] if self.scale_first else [codes, scale], axis=1)

    def _unpack(self, blocks: Bytes) -> Codes:
        scale, field = self.planes(blocks)
        return Codes(self._codes(field[:, 0])[:, None, :], scale.astype(np.float32))

    def _pack(self, values: Floats) -> Bytes:
        scale = self._scale(values)
        stored = halves(scale)
        inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
        return self.join(stored, self._field(values * inverse[:, None]))

    @abstractmethod
    def _codes(self, field: Bytes) -> NDArray[np.int8]:
        """uint8 [n, block_bytes - 2] -> int8 [n, block]."""

    @abstractmethod
    def _scale(self, values: Floats) -> Floats:
        """float32 [n, block] -> the scale before it is rounded to f16, [n]."""

    @abstractmethod
    def _field(self, ratio: Floats) -> Bytes:
        """Weights over scale, float32 [n, block] -> uint8 [n, block_bytes - 2]."""


def largest(values: Floats) -> Floats:
    """max |x| of each row of [n, block]."""
    peak: Floats = np.abs(values).max(axis=1)
    return peak


def signed_largest(values: Floats) -> Floats:
    """The first weight of the largest magnitude in each row of [n, block]; +0 where all are zero."""
    where = np.abs(values).argmax(axis=1)[:, None]
    # Adding +0 turns a -0 into +0, as a search that starts from +0 would find.
    found: Floats = np.take_along_axis(values, where, axis=1)[:, 0] + np.float32(0)
    return found


def trits(ratio: Floats) -> NDArray[np.int8]:
    """Ratios of magnitude up to 1 rounded half away from zero: -1, 0 or +1."""
    return (ratio >= np.float32(0.5)).astype(np.int8) - (ratio <= np.float32(-0.5)).astype(np.int8)


def rounded(ratio: Floats) -> Floats:
    """Half away from zero, like C's roundf; ratios that overflowed (the scale is lost anyway) become 0."""
    whole = np.trunc(ratio)
    whole += np.copysign((np.abs(ratio - whole) >= np.float32(0.5)).astype(np.float32), ratio)
    return np.where(np.isfinite(whole), whole, np.float32(0))
