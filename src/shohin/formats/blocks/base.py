"""What a block format is: a fixed number of weights stored in a fixed number of bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from shohin.errors import BadFile, BadShape, UnsupportedFormat

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Blocks are worked on in pieces of about this many weights, so that temporaries stay in the cache and bounded.
PIECE = 1 << 17


@dataclass(frozen=True)
class Codes:
    """Quantised weights split into integers and what multiplies them: ``weight = scale * code + minimum``.

    code: int8 [..., n / group, group]; scale: float32 [..., n / group]; minimum: float32 [..., n / group] or None.
    """

    code: NDArray[np.int8]
    scale: Floats
    minimum: Floats | None = None


class ScaleOverflow(ArithmeticError):
    """A scale that its storage type cannot hold; ``encode`` turns it into a BadFile that names the row."""

    def __init__(self, block: int, value: float) -> None:
        super().__init__(block, value)
        self.block = block
        self.value = value


def halves(scale: Floats) -> Bytes:
    """float32 [n] -> little-endian f16 as uint8 [n, 2], nearest even; ScaleOverflow from 65520 on, or for NaN."""
    half = scale.astype("<f2")
    bad = ~np.isfinite(half)
    if bad.any():
        first = int(bad.argmax())
        raise ScaleOverflow(first, float(scale[first]))
    return half.view(np.uint8).reshape(-1, 2)


def merge(parts: Sequence[Bytes], bits: int) -> Bytes:
    """Small codes side by side in one byte: ``parts[0]`` lowest, each ``bits`` above the one before."""
    packed = parts[0].copy()
    for i, part in enumerate(parts[1:], 1):
        packed |= np.left_shift(part, i * bits, dtype=np.uint8)
    return packed


def bits(field: Bytes, start: int | Bytes, count: int) -> Bytes:
    """``count`` bits of each byte from bit ``start`` up; ``start`` broadcasts."""
    return np.bitwise_and(np.right_shift(field, start, dtype=np.uint8), (1 << count) - 1, dtype=np.uint8)


def read_halves(field: Bytes) -> Floats:
    """uint8 [n, 2] -> the f16 values as float32 [n]."""
    return field.view("<f2")[:, 0].astype(np.float32)


class BlockFormat(ABC):
    """One row of the format table. Instances carry no state.

    name: the name users type and files are labelled with. type_id: the GGUF tensor type. block: weights in a block.
    block_bytes: bytes in a block. group: consecutive weights that share one scale (and minimum); divides ``block``.
    quantised: False for F32, F16 and BF16, which have no integer codes.

    A format writes two methods over flat lists of blocks, ``_unpack`` and ``_pack``; shapes and checks are done here.
    """

    name: ClassVar[str]
    type_id: ClassVar[int]
    block: ClassVar[int]
    block_bytes: ClassVar[int]
    group: ClassVar[int]
    quantised: ClassVar[bool] = True

    def __repr__(self) -> str:
        return f"<{self.name}: {self.block} weights in {self.block_bytes} bytes>"

    def nbytes(self, n: int) -> int:
        """Bytes that ``n`` weights take; BadShape unless they fill whole blocks."""
        if n % self.block:
            raise BadShape(f"{self.name}: {n} weights do not fill whole blocks of {self.block}")
        return n // self.block * self.block_bytes

    def blocks(self, raw: Bytes) -> Bytes:
        """View uint8 [..., bytes] as blocks [..., blocks, block_bytes]; BadFile names a length that does not fit."""
        if raw.dtype != np.uint8 or raw.ndim == 0:
            raise BadShape(f"{self.name}: bytes [..., n] were expected, not {raw.dtype} {list(raw.shape)}")
        if raw.shape[-1] % self.block_bytes:
            raise BadFile(f"{self.name}: {raw.shape[-1]} bytes are not a multiple of the block's {self.block_bytes}")
        return raw.reshape(*raw.shape[:-1], raw.shape[-1] // self.block_bytes, self.block_bytes)

    def decode(self, raw: Bytes) -> Floats:
        """uint8 [..., bytes] -> float32 [..., weights], bit for bit what ggml's dequantiser gives."""
        blocks = self.blocks(raw)
        flat = blocks.reshape(-1, self.block_bytes)
        out = np.empty((len(flat), self.block), np.float32)
        with np.errstate(all="ignore"):
            for piece in self._pieces(len(flat)):
                self._decode(flat[piece], out[piece])
        return out.reshape(*raw.shape[:-1], blocks.shape[-2] * self.block)

    def encode(self, values: Floats) -> Bytes:
        """float32 [..., weights] -> uint8 [..., bytes]; BadShape for ragged rows, BadFile for NaN, Inf or overflow."""
        flat = self._rows_in_blocks(values)
        out = np.empty((len(flat), self.block_bytes), np.uint8)
        with np.errstate(all="ignore"):
            for piece in self._pieces(len(flat)):
                finite = np.isfinite(flat[piece]).all(axis=1)
                if not finite.all():
                    raise BadFile(self._blame(values, piece.start + int(finite.argmin()), "holds NaN or Inf"))
                try:
                    out[piece] = self._pack(flat[piece])
                except ScaleOverflow as e:
                    reason = f"needs {e.value:.6g}, more than the format stores"
                    raise BadFile(self._blame(values, piece.start + e.block, reason)) from None
        return out.reshape(*values.shape[:-1], values.shape[-1] // self.block * self.block_bytes)

    def unpack(self, raw: Bytes) -> Codes:
        """uint8 [..., bytes] -> integer codes with scale and minimum; UnsupportedFormat where ``quantised`` is False.

        ``scale * code + minimum`` in float32, in that order, is ``decode`` bit for bit.
        """
        if not self.quantised:
            raise UnsupportedFormat(f"{self.name} holds plain numbers and has no integer codes; decode it instead")
        blocks = self.blocks(raw)
        flat = blocks.reshape(-1, self.block_bytes)
        groups = self.block // self.group
        code = np.empty((len(flat), groups, self.group), np.int8)
        scale = np.empty((len(flat), groups), np.float32)
        minimum: Floats | None = None
        with np.errstate(all="ignore"):
            for piece in self._pieces(len(flat)):
                part = self._unpack(flat[piece])
                code[piece], scale[piece] = part.code, part.scale
                if part.minimum is not None:
                    minimum = np.empty_like(scale) if minimum is None else minimum
                    minimum[piece] = part.minimum
        lead = (*raw.shape[:-1], blocks.shape[-2] * groups)
        least = None if minimum is None else minimum.reshape(lead)
        return Codes(code.reshape(*lead, self.group), scale.reshape(lead), least)

    def lost_scales(self, values: Floats, raw: Bytes) -> int:
        """How many blocks of ``raw``, the encoding of ``values``, are all zero although a weight in them was not.

        That is what a scale too small for f16 does; a writer reports the count.
        """
        flat = self._rows_in_blocks(values)
        stored = self.blocks(raw).reshape(-1, self.block_bytes)
        if len(flat) != len(stored):
            raise BadShape(f"{self.name}: {len(stored)} blocks cannot be the encoding of {values.size} weights")
        lost = 0
        for piece in self._pieces(len(flat)):
            kept = self.decode(stored[piece]).any(axis=1)
            lost += int((flat[piece].any(axis=1) & ~kept).sum())
        return lost

    @abstractmethod
    def _unpack(self, blocks: Bytes) -> Codes:
        """uint8 [n, block_bytes] -> code [n, groups, group], scale [n, groups], minimum alike or None."""

    @abstractmethod
    def _pack(self, values: Floats) -> Bytes:
        """Finite float32 [n, block] -> uint8 [n, block_bytes]; ScaleOverflow for a scale that cannot be stored."""

    def _decode(self, blocks: Bytes, out: Floats) -> None:
        codes = self._unpack(blocks)
        grouped = out.reshape(codes.code.shape)
        np.multiply(codes.code, codes.scale[..., None], out=grouped)
        if codes.minimum is not None:
            grouped += codes.minimum[..., None]

    def _pieces(self, blocks: int) -> Iterator[slice]:
        step = max(1, PIECE // self.block)
        return (slice(start, min(start + step, blocks)) for start in range(0, blocks, step))

    def _rows_in_blocks(self, values: Floats) -> Floats:
        if values.ndim == 0 or values.shape[-1] % self.block:
            raise BadShape(f"{self.name}: rows of {list(values.shape)} weights do not fill blocks of {self.block}")
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(values, np.float32).reshape(-1, self.block)

    def _blame(self, values: Floats, block: int, what: str) -> str:
        row, within = divmod(block, values.shape[-1] // self.block)
        first = within * self.block
        return f"{self.name}: row {row}, columns {first} to {first + self.block - 1}: the block {what}"
