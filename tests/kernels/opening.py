"""Devices by name for tests that compare two of them."""

from __future__ import annotations

import pytest

from shohin import devices
from shohin.devices import Device
from shohin.devices.cuda import Cuda
from shohin.errors import NoDevice


def another(device: Device) -> Device:
    """A second device of the same kind."""
    return Cuda(device.driver) if isinstance(device, Cuda) else type(device)()


def host(dtype: str = "float32") -> Device:
    return devices.device("host", dtype=dtype)


def cpu(tier: str | None = None, threads: int = 2) -> Device:
    """Skips, with the reason, where this machine does not run the tier."""
    try:
        return devices.device("cpu", threads=threads, tier=tier)
    except NoDevice as error:
        pytest.skip(str(error))
