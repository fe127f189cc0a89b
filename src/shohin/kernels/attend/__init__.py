"""Causal attention over the paged cache."""

from __future__ import annotations

from shohin.kernels.attend.cache import KINDS, PAGE, LayerCache
from shohin.kernels.attend.op import MAX_HEAD_DIM, Attend, Heads, QKNorm, attend

__all__ = ["KINDS", "MAX_HEAD_DIM", "PAGE", "Attend", "Heads", "LayerCache", "QKNorm", "attend"]
