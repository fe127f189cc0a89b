"""Argmax with a status."""

from __future__ import annotations

from shohin.kernels.pick.op import Pick, pick

__all__ = ["Pick", "pick"]
