"""A copy of live rows."""

from __future__ import annotations

from shohin.kernels.copy.op import Copy, copy

__all__ = ["Copy", "copy"]
