"""The driver of a real GPU, on ``cuda.core`` and the driver API's bindings."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shohin.devices.cuda.compiler import Compiler, architecture
from shohin.devices.cuda.driver import Bound, Memory, Source
from shohin.errors import BadRequest, DeviceFailed, KernelBuild, NoDevice, OutOfMemory

__all__ = ["Gpu", "gpu_names"]

OLDEST = 80
# A submission that takes longer than this is taken for a device that hangs.
PATIENCE = 120.0


def gpu_names() -> list[str]:
    """Names of the GPUs of this machine; none where driver or packages are missing."""
    try:
        from cuda.core import Device

        return [device.name for device in Device.get_all_devices()]
    except Exception:
        return []


@dataclass(frozen=True, eq=False)
class Captured:
    """A graph, and the two clocks around its kernels if it is timed."""

    graph: Any
    clocks: list[Any]


class Gpu:
    """GPU ``index`` of this machine, one stream of it. cache: folder of compiled kernels (``Compiler``)."""

    def __init__(self, index: int = 0, cache: Path | None = None) -> None:
        device = _open(index)
        capability = device.compute_capability
        self.arch = capability.major * 10 + capability.minor
        self.name = device.name
        if self.arch < OLDEST:
            raise NoDevice(f"{self.name} has compute capability {self.arch / 10}; {OLDEST / 10} or newer is needed")
        from cuda.bindings import driver

        self._api = driver
        self._device = device
        self.multiprocessors = device.properties.multiprocessor_count
        self.shared_limit = device.properties.max_shared_memory_per_block_optin
        self._stream = device.create_stream()
        self._raw_stream = driver.CUstream(int(self._stream.handle))
        self._compiler = Compiler(architecture(self.arch), cache)

    def free_memory(self) -> int:
        """As ``Driver.free_memory``."""
        self._here()
        free, _ = self._call("reading free memory", self._api.cuMemGetInfo())
        return int(free)

    def allocate(self, nbytes: int) -> Memory:
        """As ``Driver.allocate``."""
        self._here()
        error, pointer = self._api.cuMemAlloc(max(nbytes, 1))
        if error == self._api.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise OutOfMemory(
                f"device cuda ({self.name}): {nbytes:,} bytes are not available, {self.free_memory():,} are free; "
                f"ask for a smaller context (--ctx-size), batch or model, or --kv int8"
            )
        self._check("allocating memory", error)
        return Memory(int(pointer), nbytes, self._free)

    def _free(self, pointer: int) -> None:
        if not sys.is_finalizing():
            self._here()
            self._api.cuMemFree(pointer)

    def clear(self, pointer: int, nbytes: int) -> None:
        """As ``Driver.clear``."""
        self._here()
        self._call("clearing memory", self._api.cuMemsetD8Async(pointer, 0, nbytes, self._raw_stream))

    def upload(self, pointer: int, values: NDArray[Any]) -> None:
        """As ``Driver.upload``."""
        self._here()
        # On the stream: a copy of pageable memory may return before it has arrived, and only the stream's order waits.
        result = self._api.cuMemcpyHtoDAsync(pointer, values.ctypes.data, values.nbytes, self._raw_stream)
        self._call("copying to the device", result)
        self.synchronize()

    def download(self, values: NDArray[Any], pointer: int) -> None:
        """As ``Driver.download``."""
        self.synchronize()
        self._call("copying from the device", self._api.cuMemcpyDtoH(values.ctypes.data, pointer, values.nbytes))

    def pinned(self, nbytes: int) -> tuple[NDArray[np.uint8], int]:
        """As ``Driver.pinned``."""
        self._here()
        flags = self._api.CU_MEMHOSTALLOC_DEVICEMAP | self._api.CU_MEMHOSTALLOC_PORTABLE
        (address,) = self._call("allocating pinned memory", self._api.cuMemHostAlloc(nbytes, flags))
        (pointer,) = self._call("mapping pinned memory", self._api.cuMemHostGetDevicePointer(address, 0))
        raw = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(int(address)))
        raw[:] = 0
        return raw, int(pointer)

    def upload_step(self, pointer: int, staged: NDArray[np.int32]) -> None:
        """As ``Driver.upload_step``."""
        self._here()
        result = self._api.cuMemcpyHtoDAsync(pointer, staged.ctypes.data, staged.nbytes, self._raw_stream)
        self._call("copying a step", result)

    def build(self, sources: Sequence[Source], progress: Callable[[int, int], None] | None = None) -> list[Any]:
        """As ``Driver.build``."""
        from cuda.core import ObjectCode

        self._here()
        kernels = []
        for source, code in zip(sources, self._compiler.build(sources, progress), strict=True):
            try:
                kernel = ObjectCode.from_cubin(code).get_kernel(source.entry)
            except Exception as error:
                raise KernelBuild(f"{source.path} ({source.entry}) does not load: {error}") from None
            self._set_shared(kernel, source)
            kernels.append(kernel)
        return kernels

    def _set_shared(self, kernel: Any, source: Source) -> None:
        """More than 48 KB of dynamic shared memory must be asked for. Every kernel wants all that a multiprocessor has:
        one that is divided otherwise can't take a block of the next kernel, which then doubles up elsewhere.
        """
        attributes = self._api.CUfunction_attribute
        self._set(kernel, source, attributes.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100)
        if source.shared > 48 * 1024:
            self._set(kernel, source, attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, source.shared)

    def _set(self, kernel: Any, source: Source, attribute: Any, value: int) -> None:
        handle, device = self._api.CUkernel(int(kernel.handle)), self._api.CUdevice(self._device.device_id)
        error = self._api.cuKernelSetAttribute(attribute, value, handle, device)
        self._check(f"setting the shared memory of {source.entry} ({source.shared} bytes)", error[0])

    def launch(self, bound: Bound) -> None:
        """As ``Driver.launch``."""
        self._here()
        self._launch(self._stream, bound)

    def _launch(self, stream: Any, bound: Bound) -> None:
        from cuda.core import LaunchConfig, launch

        config = LaunchConfig(
            grid=tuple(int(n) for n in bound.grid),
            block=(bound.threads, 1, 1),
            shmem_size=bound.shared,
            programmatic_stream_serialization=self.arch >= 90,
        )
        launch(stream, config, bound.kernel, *bound.arguments)

    def capture(self, launches: Sequence[Bound], *, timed: bool = False) -> Captured:
        """As ``Driver.capture``."""
        self._here()
        self.synchronize()
        clocks = [self._clock() for _ in range(2 * timed)]
        builder = self._stream.create_graph_builder()
        builder.begin_building()
        try:
            self._record(builder, clocks[:1])
            for bound in launches:
                self._launch(builder, bound)
            self._record(builder, clocks[1:])
        finally:
            builder.end_building()
        graph = builder.complete()
        graph.upload(self._stream)
        return Captured(graph, clocks)

    def _clock(self) -> Any:
        """An event that keeps the time."""
        (event,) = self._call("making a clock", self._api.cuEventCreate(0))
        return event

    def _record(self, builder: Any, clocks: Sequence[Any]) -> None:
        """Let a graph note the time here, at every launch of it."""
        stream = self._api.CUstream(int(builder.stream.handle))
        external = self._api.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL
        for clock in clocks:
            self._call("noting the time", self._api.cuEventRecordWithFlags(clock, stream, int(external)))

    def elapsed(self, graph: Captured) -> float:
        """As ``Driver.elapsed``."""
        (milliseconds,) = self._call("reading the clock", self._api.cuEventElapsedTime(*graph.clocks))
        return float(milliseconds) / 1e3

    def replay(self, graph: Captured) -> None:
        """As ``Driver.replay``."""
        self._here()
        try:
            graph.graph.launch(self._stream)
        except Exception as error:
            raise DeviceFailed(f"device cuda ({self.name}): {error}") from None

    def synchronize(self) -> None:
        """Polls at first, because a step is short; a device that hangs is reported, not waited for."""
        self._here()
        begin, spins = perf_counter(), 0
        while not self.check():
            spins += 1
            if spins > 20000:
                sleep(50e-6)
                if perf_counter() - begin > PATIENCE:
                    raise DeviceFailed(f"device cuda ({self.name}): work did not end within {PATIENCE:.0f} s")

    def check(self) -> bool:
        """Whether all work is done; DeviceFailed if some of it failed."""
        (error,) = self._api.cuStreamQuery(self._raw_stream)
        if error == self._api.CUresult.CUDA_ERROR_NOT_READY:
            return False
        self._check("running a submission", error)
        return True

    def _here(self) -> None:
        """A context belongs to a thread; callers may come from any."""
        self._device.set_current()

    def _call(self, what: str, result: tuple[Any, ...]) -> tuple[Any, ...]:
        self._check(what, result[0])
        return result[1:]

    def _check(self, what: str, error: Any) -> None:
        if error != self._api.CUresult.CUDA_SUCCESS:
            _, name = self._api.cuGetErrorName(error)
            text = name.decode() if isinstance(name, bytes) else str(error)
            raise DeviceFailed(f"device cuda ({self.name}): {what} failed: {text}")


def _open(index: int) -> Any:
    try:
        from cuda.core import Device
    except ImportError as error:
        raise NoDevice(f"device cuda needs the packages of shohin[cuda]: {error}") from None
    try:
        devices = list(Device.get_all_devices())
    except Exception as error:
        raise NoDevice(f"device cuda: no NVIDIA driver answers ({error})") from None
    if not devices:
        raise NoDevice("device cuda: this machine has no NVIDIA GPU")
    if not 0 <= index < len(devices):
        names = ", ".join(f"cuda:{i} {d.name}" for i, d in enumerate(devices))
        raise BadRequest(f"device cuda:{index} does not exist; there are {names}", param="device")
    devices[index].set_current()
    return devices[index]
