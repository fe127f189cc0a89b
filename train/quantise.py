"""Weights on the grid of a one- or two-bit format, with gradients passed straight through.

A group is 128 consecutive weights of a row (the K direction). The scale is the group's mean magnitude, rounded to
bfloat16: such a number is exact in bfloat16 (what the GPU multiplies) and in float16 (what the file stores), so the
grid that training sees and the grid in the file are the same numbers. Ternary codes as in BitNet b1.58 (arXiv
2402.17764), signs as in BitNet (arXiv 2310.11453), both a group instead of a matrix.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 128
SMALLEST_SCALE = 2.0**-14  # float16's smallest normal number: below it the scale would lose bits in the file
GRIDS = ("ternary", "sign", "none")


def codes_and_scales(weight: Tensor, grid: str) -> tuple[Tensor, Tensor]:
    """float32 [n, k] -> codes -1, 0, +1 as float32 [n, k / 128, 128] and scales [n, k / 128, 1]."""
    groups = weight.float().view(*weight.shape[:-1], -1, GROUP)
    mean = groups.abs().mean(-1, keepdim=True)
    scale = mean.clamp(min=SMALLEST_SCALE).bfloat16().float()
    if grid == "sign":
        return torch.where(groups >= 0, 1.0, -1.0), scale
    return (groups / scale).round().clamp(-1, 1), scale


def on_grid(weight: Tensor, grid: str) -> Tensor:
    """The weight as the file will hold it; its gradient goes to ``weight`` unchanged."""
    if grid == "none":
        return weight
    codes, scale = codes_and_scales(weight, grid)
    return weight + ((codes * scale).flatten(-2) - weight).detach()
