"""RMSNorm and projections."""

from __future__ import annotations

from shohin.kernels.norm_linear.op import NormLinear, norm_linear

__all__ = ["NormLinear", "norm_linear"]
