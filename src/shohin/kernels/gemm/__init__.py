"""Plain projection, any format and any number of rows."""

from __future__ import annotations

from shohin.kernels.gemm.op import Gemm, gemm

__all__ = ["Gemm", "gemm"]
