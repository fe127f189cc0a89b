"""Other two-bit and ternary layouts as PQ2_0, where not a single weight changes."""

from __future__ import annotations

import numpy as np

from shohin.errors import BadShape
from shohin.formats.blocks.base import BlockFormat, Bytes
from shohin.formats.blocks.scaled import ScaledFormat
from shohin.formats.blocks.ternary import PTQ1_0, TQ1_0, TQ2_0
from shohin.formats.blocks.twobit import PQ2_0, Q2_0, Q2_0_G128, TQ2_0_G128, pack_pairs

_TARGET = PQ2_0()
# Blocks of 128 worked on at a time, so that the codes of a whole embedding never lie in memory at once.
_PIECE = 1 << 12


def to_pq2_0(raw: Bytes, source: BlockFormat) -> Bytes | None:
    """Rows of ``source``, uint8 [rows, bytes], as rows of PQ2_0; None where that would change or lose a weight.

    Q2_0 fits when a row is a multiple of 128 weights and both scales of every 128 are equal; its code 11 (+2d) stays.
    TQ2_0_G128 means 0 by 11, so 11 becomes 01. Scales, which all of these keep in f16, are copied bit for bit.
    BadFile for a length that does not fit the format, BadShape where ``raw`` is not a matrix.
    """
    if raw.ndim != 2:
        raise BadShape(f"{source.name}: rows of bytes [rows, bytes] were expected, not {list(raw.shape)}")
    if isinstance(source, Q2_0_G128):
        return source.blocks(raw).reshape(raw.shape)
    if isinstance(source, Q2_0):
        return _merge_pairs(source, raw)
    if isinstance(source, TQ2_0_G128 | PTQ1_0 | TQ1_0 | TQ2_0):
        return _by_pieces(raw, source)
    return None


def _merge_pairs(source: Q2_0, raw: Bytes) -> Bytes | None:
    blocks = source.blocks(raw)
    if blocks.shape[1] % 2:
        return None
    pairs = blocks.reshape(-1, 2, source.block_bytes)
    if not np.array_equal(pairs[:, 0, :2], pairs[:, 1, :2]):
        return None
    return np.concatenate([pairs[:, 0], pairs[:, 1, 2:]], axis=1).reshape(len(raw), -1)


def _by_pieces(raw: Bytes, source: ScaledFormat) -> Bytes:
    flat = source.blocks(raw).reshape(-1, source.block_bytes)
    parts = source.block // _TARGET.block
    out = np.empty((len(flat), parts, _TARGET.block_bytes), np.uint8)
    for start in range(0, len(flat), _PIECE):
        piece = flat[start : start + _PIECE]
        scales, _ = source.planes(piece)
        codes = source.unpack(piece).code.reshape(-1, parts, _TARGET.block)
        out[start : start + _PIECE, :, :2] = scales.astype("<f2").view(np.uint8)[:, None, :]
        out[start : start + _PIECE, :, 2:] = pack_pairs(codes)
    return out.reshape(len(raw), -1)
