"""Phases that compute nothing: the floor of a chain in which each phase waits for the one before it."""

from __future__ import annotations

from shohin.kernels.barrier.op import Barrier, barrier

__all__ = ["Barrier", "barrier"]
