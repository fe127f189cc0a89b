"""Devices that every kernel test runs on, and a generator whose seed a failure shows."""

from __future__ import annotations

import os
import zlib

import numpy as np
import pytest
from opening import CUDA, HOSTS, NATIVE, WEBGPU, open_device

from shohin.devices import Device


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
