"""Devices that the model tests run on, by name; the native one is skipped visibly where it is not built."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shohin import devices


@pytest.fixture(scope="session")
def open_device() -> Callable[[str], devices.Device]:
    def opened(name: str) -> devices.Device:
        if name == "cpu":
            pytest.importorskip("shohin._core", reason="the native core is not built")
            return devices.device("cpu", threads=2)
        return devices.device("host", dtype={"host32": "float32", "host64": "float64"}[name])

    return opened
