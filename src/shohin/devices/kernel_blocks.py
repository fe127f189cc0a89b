"""A tensor in the format whose kernels a device has: ternary containers as PQ2_0, vectors as F32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shohin.formats.blocks import FORMATS, BlockFormat
from shohin.formats.blocks.repack import to_pq2_0
from shohin.formats.tensor import Tensor

__all__ = ["TERNARY", "kernel_blocks"]

# Formats that become PQ2_0, Q2_0 only where the scales of its blocks of 64 come in equal pairs.
TERNARY = ("Q2_0", "Q2_0_G128", "TQ2_0_G128", "PTQ1_0", "TQ1_0", "TQ2_0")


def kernel_blocks(tensor: Tensor) -> tuple[BlockFormat, NDArray[np.uint8]]:
    """Format and rows of bytes, C-contiguous uint8 [rows, bytes a row]: the tensor's own where nothing changes."""
    if len(tensor.shape) == 1:
        return FORMATS["F32"], tensor.decode().astype("<f4", copy=False).view(np.uint8).reshape(1, -1)
    raw = np.ascontiguousarray(tensor.raw())
    repacked = to_pq2_0(raw, tensor.format) if tensor.format.name in TERNARY else None
    return (tensor.format, raw) if repacked is None else (FORMATS["PQ2_0"], np.ascontiguousarray(repacked))
