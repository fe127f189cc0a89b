"""Devices by name: those that every kernel test runs on, and others for tests that compare two of them."""

from __future__ import annotations

import os
from functools import cache

import pytest
from emulated import REAL, emulated_cuda, real_gpu

from shohin import devices
from shohin.devices import Device
from shohin.devices.cuda import Cuda
from shohin.errors import NoDevice

HOSTS = ("host-float32", "host-float64")
NATIVE = ("cpu-generic", "cpu-avx2")
CUDA = ("cuda-gpu" if REAL else "cuda-emulated",)
WEBGPU = ("webgpu-plain", "webgpu-f16", "webgpu-subgroups", "webgpu-subgroups+f16")


def open_device(name: str) -> Device:
    """``host-<dtype>``, ``cpu-<tier>``, ``cuda-emulated``, ``cuda-gpu`` or ``webgpu-<tier>``; skips, with the reason,
    what this build or machine does not have.
    """
    kind, part = name.split("-")
    if kind == "host":
        return devices.device("host", dtype=part)
    if kind == "cuda":
        return emulated_cuda() if part == "emulated" else Cuda(real_gpu())
    if kind == "webgpu":
        return open_webgpu(part)
    try:
        return devices.device("cpu", threads=2, tier=part)
    except ImportError as error:
        pytest.skip(f"the native core is not built: {error}")
    except NoDevice as error:
        pytest.skip(str(error))


@cache
def open_webgpu(tier: str) -> Device:
    """One device a tier for all tests, so that its kernels are compiled once."""
    try:
        return devices.device(os.environ.get("SHOHIN_TEST_WEBGPU", "webgpu"), tier=tier)
    except NoDevice as error:
        pytest.skip(str(error))


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
