"""The ``cuda`` device without a GPU, and single kernels run on it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from emulator import EmulatedDriver
from emulator_build import compiler
from numpy.typing import NDArray

from shohin.devices.cuda import Cuda
from shohin.devices.cuda.driver import Bound, Driver, Source, macros_of
from shohin.devices.cuda.gpu import Gpu
from shohin.errors import NoDevice

# SHOHIN_TEST_GPU=1 takes this machine's GPU in place of the emulated one.
REAL = bool(os.environ.get("SHOHIN_TEST_GPU"))
Value = NDArray[Any] | int | float


def emulated_driver(arch: int = 90, **settings: Any) -> EmulatedDriver:
    """A driver of an emulated GPU; skips without a compiler."""
    if compiler() is None:
        pytest.skip("no g++ on Linux: the emulator of CUDA kernels can't be built")
    return EmulatedDriver(arch, **settings)


def emulated_cuda(arch: int = 90, tier: str | None = None, **settings: Any) -> Cuda:
    """The ``cuda`` device on an emulated GPU; skips without a compiler."""
    return Cuda(emulated_driver(arch, **settings), tier)


def real_gpu() -> Gpu:
    """The driver of this machine's GPU; skips, with the reason, without one."""
    try:
        return Gpu()
    except NoDevice as error:
        pytest.skip(str(error))


def kernel_driver(seed: int = 1) -> Driver:
    """The emulator's driver, or with SHOHIN_TEST_GPU a real one."""
    return real_gpu() if REAL else emulated_driver(seed=seed)


def run_kernel(
    driver: Driver,
    source: Source,
    arguments: Sequence[Value],
    grid: tuple[int, int, int] = (1, 1, 1),
    threads: int = 32,
) -> list[NDArray[Any]]:
    """Run one kernel of a file below src/shohin (or any absolute path).

    arguments: arrays (copied to the device and back), ints and floats. Returns the arrays as the kernel left them.
    """
    (kernel,) = driver.build([source])
    memories, bound = [], []
    for value in arguments:
        if isinstance(value, np.ndarray):
            memory = driver.allocate(value.nbytes)
            driver.upload(memory.pointer, np.ascontiguousarray(value))
            memories.append((memory, value))
            bound.append(np.uint64(memory.pointer))
        else:
            bound.append(np.float32(value) if isinstance(value, float) else np.int32(value))
    driver.launch(Bound(kernel, grid, threads, source.shared, tuple(bound)))
    driver.synchronize()
    results = []
    for memory, value in memories:
        result = np.empty_like(value, order="C")
        driver.download(result, memory.pointer)
        results.append(result)
    return results


def kernel_source(
    path: str, entry: str, constants: Mapping[str, int | float | str] | None = None, shared: int = 0
) -> Source:
    """``Source`` with the constants as macros."""
    return Source(path, entry, macros_of(constants or {}), shared)
