"""Opening a device: a setting has its effect or is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shohin import devices
from shohin.errors import BadRequest, OutOfMemory


@pytest.mark.parametrize(
    ("name", "settings", "param"),
    [
        ("host", {"threads": 5}, "threads"),
        ("host", {"tier": "generic"}, "tier"),
        ("host", {"dtype": "bogus"}, "dtype"),
        ("host", {"dtype": "float16"}, "dtype"),
        ("host", {"dtype": 3}, "dtype"),
        ("host", {"dtype": ["float32"]}, "dtype"),
        ("cpu", {"dtype": "float64"}, "dtype"),
        ("cpu", {"threads": 1, "dtype": "float32"}, "dtype"),
    ],
)
def test_a_setting_that_a_device_lacks_is_refused(name: str, settings: dict[str, Any], param: str) -> None:
    if name == "cpu":
        pytest.importorskip("shohin._core", reason="the native core is not built")
    with pytest.raises(BadRequest, match=param) as caught:
        devices.device(name, **settings)
    assert caught.value.param == param


def test_hosts_float_type() -> None:
    assert devices.device("host").float_type == np.float32
    assert devices.device("host", dtype="float64").float_type == np.float64


def test_threads_that_do_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The native pool says it as a RuntimeError with the system's words."""
    pytest.importorskip("shohin._core", reason="the native core is not built")
    from shohin.devices import cpu

    class Core:
        tiers = staticmethod(cpu._core.tiers)

        @staticmethod
        def Pool(count: int) -> None:  # noqa: N802 - the native core's name
            raise RuntimeError("Resource temporarily unavailable")

    monkeypatch.setattr(cpu, "_core", Core)
    with pytest.raises(OutOfMemory, match=r"1024 threads.*fewer"):
        devices.device("cpu", threads=1024)
