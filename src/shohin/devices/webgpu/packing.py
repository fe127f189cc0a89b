"""Weights in storage buffers: codes as they lie in the blocks, then scales; split by rows at the limit of a binding."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shohin.devices.webgpu.gpu import Gpu, Memory
from shohin.formats.blocks import BlockFormat

__all__ = ["DENSE", "HEADS", "PackedPart", "pack", "planes"]

# Bytes of scale (and minimum) at the head of a block; all that follows are codes, 16 or 32 bytes.
HEADS = {"Q1_0": 2, "Q2_0": 2, "PQ2_0": 2, "Q4_0": 2, "Q4_1": 4, "Q8_0": 2}
DENSE = ("F32", "F16", "BF16")


@dataclass(frozen=True, eq=False)
class PackedPart:
    """Rows ``first`` to ``first + rows - 1`` of a weight. Block formats: vec4<u32> of codes, and from word ``scales``
    on the heads of all blocks in order. Dense ones: the numbers row after row, two float16 or bfloat16 a word.
    """

    memory: Memory = field(repr=False)
    first: int
    rows: int
    scales: int


def planes(raw: NDArray[np.uint8], fmt: BlockFormat) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Rows of blocks as all codes and all heads, each in order of the blocks."""
    blocks = fmt.blocks(raw).reshape(-1, fmt.block_bytes)
    head = HEADS[fmt.name]
    return np.ascontiguousarray(blocks[:, head:]).reshape(-1), np.ascontiguousarray(blocks[:, :head]).reshape(-1)


def pack(gpu: Gpu, name: str, raw: NDArray[np.uint8], fmt: BlockFormat) -> tuple[PackedPart, ...]:
    """Upload rows, as many a part as one binding holds."""
    row = max(1, raw.shape[1])
    most = max(1, (gpu.limits.binding - 32) // row)
    parts = []
    for first in range(0, len(raw), most):
        piece = raw[first : first + most]
        if fmt.name in HEADS:
            codes, heads = planes(piece, fmt)
            memory = gpu.allocate(len(codes) + len(heads), f"weight {name!r}")
            gpu.upload(memory, 0, codes)
            gpu.upload(memory, len(codes), heads)
            parts.append(PackedPart(memory, first, len(piece), len(codes) // 4))
        else:
            memory = gpu.allocate(piece.nbytes, f"weight {name!r}")
            gpu.upload(memory, 0, piece)
            parts.append(PackedPart(memory, first, len(piece), 0))
    return tuple(parts)
