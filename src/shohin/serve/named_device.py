"""A device by its name, with the kernel tier that the environment asks for."""

from __future__ import annotations

import os

from shohin import devices
from shohin.devices import Device

__all__ = ["TIER_VARIABLE", "named_device"]

TIER_VARIABLE = "SHOHIN_CPU"


def named_device(name: str, threads: int | None = None) -> Device:
    """``shohin.device`` with the tier in SHOHIN_CPU for ``cpu`` (``generic``, ``avx2``, ...); unset or empty: the best.

    NoDevice, which lists the tiers of this machine, for one that does not run here.
    """
    tier = os.environ.get(TIER_VARIABLE) if name == "cpu" else None
    return devices.device(name, threads=threads, tier=tier or None)
