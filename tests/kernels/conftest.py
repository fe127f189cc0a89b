"""Devices that every kernel test runs on, and a generator whose seed a failure shows."""

from __future__ import annotations

import os
import zlib
from functools import cache

import numpy as np
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


@pytest.fixture(params=HOSTS + NATIVE + CUDA)
def device(request: pytest.FixtureRequest) -> Device:
    return open_device(request.param)


@pytest.fixture(params=HOSTS)
def host(request: pytest.FixtureRequest) -> Device:
    return open_device(request.param)


@pytest.fixture(params=CUDA)
def cuda(request: pytest.FixtureRequest) -> Device:
    return open_device(request.param)


@pytest.fixture(params=WEBGPU)
def webgpu(request: pytest.FixtureRequest) -> Device:
    return open_device(request.param)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Seeded by the test's name, or by SHOHIN_TEST_SEED; the seed is printed, and pytest shows it on failure."""
    seed = int(os.environ.get("SHOHIN_TEST_SEED", zlib.crc32(request.node.name.encode())))
    print(f"seed {seed} (set SHOHIN_TEST_SEED to repeat)")
    return np.random.default_rng(seed)
