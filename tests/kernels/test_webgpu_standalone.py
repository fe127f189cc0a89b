"""The public operations on WebGPU: the tests of every device, with this one in its place."""

from __future__ import annotations

import numpy as np
import packing
import pytest
from opening import open_webgpu
from test_layers import *  # noqa: F403
from test_matmul import *  # noqa: F403
from test_pools import *  # noqa: F403

from shohin import kernels
from shohin.devices import Device
from shohin.devices.webgpu import WebGpu
from shohin.formats.blocks import FORMATS
from shohin.formats.tensor import Tensor


@pytest.fixture(params=("plain", "subgroups+f16"))
def device(request: pytest.FixtureRequest) -> Device:
    """Counters and pools of its own, over an adapter that keeps its kernels."""
    shared = open_webgpu(request.param)
    assert isinstance(shared, WebGpu)
    made = WebGpu(shared.adapter, request.param)
    made.gpu = shared.gpu
    return made


@pytest.mark.row("H.23", "SC.3", "SC.4", "SC.5")
@pytest.mark.parametrize("fmt", ["Q1_0", "PTQ1_0", "Q4_1", "F16"])
def test_blocks_may_lie_at_any_address(device: Device, rng: np.random.Generator, fmt: str) -> None:
    """An odd number of odd-sized blocks, mapped from an odd offset: the same result as from aligned memory."""
    k = 3 * FORMATS[fmt].block if FORMATS[fmt].block > 1 else 99
    aligned = packing.pack(device, "w", fmt, rng.standard_normal((5, k)))
    memory = np.zeros(aligned.raw.size + 64, np.uint8)
    start = 1 - memory.ctypes.data % 2
    memory[start : start + aligned.raw.size] = aligned.raw.reshape(-1)
    odd = device.pack(Tensor("w", (5, k), FORMATS[fmt], memory[start : start + aligned.raw.size]))
    x = rng.standard_normal((2, k)).astype(np.float32)
    for mode in ("exact", "int8"):
        want = kernels.gemm(device, aligned.weight, x, activations=mode)
        np.testing.assert_array_equal(kernels.gemm(device, odd, x, activations=mode), want)


@pytest.mark.row("S3.46")
def test_the_kernels_in_use_are_named(device: Device) -> None:
    assert device.kernels.endswith(device.tiers[0]) or device.kernels.endswith(device.tiers[-1])
