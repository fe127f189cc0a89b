"""RMSNorm, gate and up, SwiGLU."""

from __future__ import annotations

from shohin.kernels.norm_swiglu.op import FeedForward, NormSwiglu, norm_swiglu

__all__ = ["FeedForward", "NormSwiglu", "norm_swiglu"]
