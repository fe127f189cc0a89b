"""Reading memory and nothing else: the floor that decoding is measured against."""

from __future__ import annotations

from shohin.kernels.read.op import Read, read

__all__ = ["Read", "read"]
