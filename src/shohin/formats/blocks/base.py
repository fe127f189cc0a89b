"""What a block format is: a fixed number of weights stored in a fixed number of bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from shohin.errors import BadFile, BadShape

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Codes:
    """Quantised weights split into integers and what multiplies them: ``weight = scale * code + minimum``.

    code: int8 [..., n / group, group]; scale: float32 [..., n / group]; minimum: float32 [..., n / group] or None.
    """

    code: NDArray[np.int8]
    scale: Floats
    minimum: Floats | None = None


class BlockFormat(ABC):
    """One row of the format table. Instances carry no state.

    name: the name users type and files are labelled with. type_id: the GGUF tensor type. block: weights in a block.
    block_bytes: bytes in a block. group: consecutive weights that share one scale (and minimum); divides ``block``.
    quantised: False for F32, F16 and BF16, which have no integer codes.
    """

    name: ClassVar[str]
    type_id: ClassVar[int]
    block: ClassVar[int]
    block_bytes: ClassVar[int]
    group: ClassVar[int]
    quantised: ClassVar[bool] = True

    def nbytes(self, n: int) -> int:
        """Bytes that ``n`` weights take; BadShape unless they fill whole blocks."""
        if n % self.block:
            raise BadShape(f"{self.name}: {n} weights do not fill whole blocks of {self.block}")
        return n // self.block * self.block_bytes

    def blocks(self, raw: Bytes) -> Bytes:
        """View uint8 [..., bytes] as blocks [..., blocks, block_bytes]; BadFile names a length that does not fit."""
        if raw.shape[-1] % self.block_bytes:
            raise BadFile(f"{self.name}: {raw.shape[-1]} bytes are not a multiple of the block's {self.block_bytes}")
        return raw.reshape(*raw.shape[:-1], raw.shape[-1] // self.block_bytes, self.block_bytes)

    @abstractmethod
    def decode(self, raw: Bytes) -> Floats:
        """uint8 [..., bytes] -> float32 [..., weights], bit for bit what ggml's dequantiser gives."""

    @abstractmethod
    def encode(self, values: Floats) -> Bytes:
        """float32 [..., weights] -> uint8 [..., bytes]; BadShape for ragged rows, BadFile for NaN, Inf or overflow."""

    @abstractmethod
    def unpack(self, raw: Bytes) -> Codes:
        """uint8 [..., bytes] -> integer codes with scale and minimum; UnsupportedFormat where ``quantised`` is False."""
