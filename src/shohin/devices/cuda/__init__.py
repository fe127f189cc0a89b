"""``cuda``: NVIDIA GPUs from compute capability 8.0 on."""

from __future__ import annotations

from shohin.devices.cuda.device import Cuda

__all__ = ["Cuda"]
