"""Projection plus residual."""

from __future__ import annotations

from shohin.kernels.linear_add.op import LinearAdd, linear_add

__all__ = ["LinearAdd", "linear_add"]
