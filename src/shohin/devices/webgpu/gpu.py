"""One opened adapter: memory, pipelines and submissions, with the errors of WebGPU turned into ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shohin.devices.webgpu.adapters import Adapter, library
from shohin.devices.webgpu.dispatch import Limits
from shohin.devices.webgpu.encoding import Bound, Copy, encoder_of, fill_of, queue_of
from shohin.devices.webgpu.modules import modules_of
from shohin.devices.webgpu.shader import Shader
from shohin.errors import DeviceFailed, KernelBuild, OutOfMemory

__all__ = ["Gpu", "Memory", "Pipeline"]

# Storage bindings that we ask for; every adapter has 8.
BINDINGS = 16
# Bytes that one write takes, and that may wait for the next submission while weights are uploaded.
PIECE, WAITING = 32 << 20, 256 << 20
# Bytes that come back from the GPU at a time.
STAGING = 4 << 20

Memory = Any  # a GPUBuffer: it has ``size`` and frees itself
Pipeline = Any  # a GPUComputePipeline with its layout


class Gpu:
    """adapter; subgroups, f16: features to turn on; binding: bytes of a storage binding, by default what it allows."""

    def __init__(self, adapter: Adapter, subgroups: bool, f16: bool, binding: int | None = None) -> None:
        self.adapter = adapter
        self._wgpu = library()
        features = [
            name
            for name, wanted in (("subgroup", subgroups), ("shader-f16", f16))
            if wanted and name in adapter.features
        ]
        self.timestamps = "timestamp-query" in adapter.features
        features += ["timestamp-query"] * self.timestamps
        asked = {
            name: adapter.limit(name)
            for name in (
                "max-buffer-size",
                "max-storage-buffer-binding-size",
                "max-compute-workgroup-storage-size",
                "max-compute-invocations-per-workgroup",
                "max-compute-workgroup-size-x",
            )
        }
        asked["max-storage-buffers-per-shader-stage"] = min(
            BINDINGS, adapter.limit("max-storage-buffers-per-shader-stage")
        )
        try:
            self._device = adapter.handle.request_device_sync(required_features=features, required_limits=asked)
        except Exception as error:  # the package raises what the native library said, in classes of its own
            raise DeviceFailed(f"device webgpu: {adapter} does not open ({error}); try another adapter") from None
        most = min(asked["max-buffer-size"], asked["max-storage-buffer-binding-size"])
        self.limits = Limits(
            binding=min(most, binding or most),
            bindings=asked["max-storage-buffers-per-shader-stage"],
            shared=asked["max-compute-workgroup-storage-size"],
            threads=min(asked["max-compute-invocations-per-workgroup"], asked["max-compute-workgroup-size-x"]),
        )
        self._layouts: dict[tuple[bool, ...], Any] = {}
        self._pipelines: dict[Shader, Pipeline] = {}
        self._waiting = 0
        # Encodes dispatches into a pass that the caller has begun, and ends.
        self.fill = fill_of()
        self._encode = encoder_of(self._device)
        self._queue = queue_of(self._device)
        self._module = modules_of(self._device)
        self._marker = self.allocate(16, "a marker")
        self._staging = self.readable(STAGING)

    # Memory

    def allocate(self, nbytes: int, what: str) -> Memory:
        """A zeroed buffer of at least ``nbytes``; OutOfMemory names ``what`` it was for."""
        size = max(16, -(-nbytes // 16) * 16)
        if size > self.limits.binding:
            raise OutOfMemory(
                f"device webgpu: {size} bytes in one piece for {what} are not available, {self.adapter} binds at most "
                f"{self.limits.binding}; ask for a smaller context or batch"
            )
        flags = self._wgpu.BufferUsage
        usage = flags.STORAGE | flags.COPY_SRC | flags.COPY_DST
        with self.errors(f"{size} bytes for {what}"):
            return self._device.create_buffer(size=size, usage=usage, label=what)

    def upload(self, memory: Memory, offset: int, values: NDArray[Any]) -> None:
        """Copy bytes to a multiple of 4; a length that is none is filled up with zeros."""
        raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        if len(raw) % 4:
            raw = np.concatenate([raw, np.zeros(-len(raw) % 4, np.uint8)])
        with self.errors("an upload"):
            for start in range(0, len(raw), PIECE):
                self._device.queue.write_buffer(memory, offset + start, raw[start : start + PIECE])
            self._waiting += len(raw)
        if self._waiting > WAITING:
            # Writes are kept in memory of the driver's until something is submitted.
            self.submit(())
            self.wait()

    def readable(self, nbytes: int) -> Memory:
        """A buffer that the host reads from after a copy into it."""
        flags = self._wgpu.BufferUsage
        with self.errors(f"{nbytes} bytes for reading back"):
            return self._device.create_buffer(size=nbytes, usage=flags.COPY_DST | flags.MAP_READ)

    def download(self, memory: Memory, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Bytes from a multiple of 4, once everything submitted is done."""
        values = np.empty(-(-nbytes // 4) * 4, np.uint8)
        for start in range(0, len(values), STAGING):
            piece = values[start : start + STAGING]
            number = self.submit((), Copy(memory, offset + start, self._staging, len(piece)))
            self.take(self._staging, piece, number, self.ask(self._staging, len(piece)))
        return values[:nbytes]

    def ask(self, staging: Memory, nbytes: int) -> Any:
        """Ask for a buffer's bytes as soon as the GPU has written them; ``take`` waits for what this returns."""
        with self.errors("a download"):
            return staging.map_async("READ_NOSYNC", 0, -(-nbytes // 8) * 8)

    def take(self, staging: Memory, into: NDArray[np.uint8], number: Any, asked: Any) -> None:
        """Wait for submission ``number``, which wrote a readable buffer that was asked for, and copy its bytes."""
        with self.errors("a download"):
            if self._queue is not None:
                self._queue.wait(number)
            asked.sync_wait()
            into[:] = np.frombuffer(staging.read_mapped(0, -(-into.nbytes // 8) * 8, copy=False), np.uint8)[: len(into)]
            staging.unmap()

    # Pipelines

    def pipeline(self, shader: Shader) -> Pipeline:
        """Compiled once; KernelBuild with the compiler's words where that fails."""
        found = self._pipelines.get(shader)
        if found is None:
            found = self._pipelines[shader] = self._compile(shader)
        return found

    def _compile(self, shader: Shader) -> Pipeline:
        errors = self._wgpu.GPUError
        try:
            module = self._module(shader.text, shader.entry)
            layout = self._device.create_pipeline_layout(bind_group_layouts=[self._layout(shader.writes)])
            return self._device.create_compute_pipeline(
                layout=layout, compute={"module": module, "entry_point": shader.entry}
            )
        except (errors, RuntimeError) as error:
            self._check_lost(error)
            raise KernelBuild(f"device webgpu: kernel {shader.entry!r} does not compile:\n{error}") from None

    def _layout(self, writes: tuple[bool, ...]) -> Any:
        if writes not in self._layouts:
            kinds = ("read-only-storage", "storage")
            entries = [
                {"binding": i, "visibility": self._wgpu.ShaderStage.COMPUTE, "buffer": {"type": kinds[write]}}
                for i, write in enumerate(writes)
            ]
            self._layouts[writes] = self._device.create_bind_group_layout(entries=entries)
        return self._layouts[writes]

    def bind(self, shader: Shader, memories: Sequence[Memory], workgroups: tuple[int, int, int]) -> Bound:
        """A dispatch that is ready to be encoded."""
        entries = [
            {"binding": i, "resource": {"buffer": memory, "offset": 0, "size": memory.size}}
            for i, memory in enumerate(memories)
        ]
        with self.errors(f"the bindings of kernel {shader.entry!r}"):
            group = self._device.create_bind_group(layout=self._layout(shader.writes), entries=entries)
        return Bound(self.pipeline(shader), group, workgroups)

    # Submissions

    def submit(self, bound: Sequence[Bound], copy: Copy | None = None) -> Any:
        """One command buffer with one compute pass, and a copy after it, submitted; its number, without waiting."""
        return self.submit_encoded(self.encode(bound, copy))

    def encode(self, bound: Sequence[Bound], copy: Copy | None = None) -> Any:
        """That command buffer."""
        with self.errors("a submission"):
            return self._encode(bound, copy)

    def submit_encoded(self, buffer: Any) -> Any:
        """Submit a command buffer; its number, without waiting."""
        with self.errors("a submission"):
            self._waiting = 0
            if self._queue is not None:
                return self._queue.submit(buffer)
            self._device.queue.submit([buffer])
            return None

    def wait(self) -> None:
        """Return when everything submitted is done."""
        with self.errors("a submission"):
            if self._queue is not None:
                self._queue.wait(None)
            else:
                self.download(self._marker, 0, 16)

    @property
    def native(self) -> Any:
        """The GPUDevice itself, for what this class has no method for."""
        return self._device

    def lose(self) -> None:
        """Give the device up, as if it had been lost; for tests and for closing."""
        self._device.destroy()

    @contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Turn errors of WebGPU inside into OutOfMemory or DeviceFailed."""
        try:
            yield
        except self._wgpu.GPUOutOfMemoryError as error:
            raise OutOfMemory(
                f"device webgpu: {self.adapter} has no memory for {what} ({_first_line(error)}); use a smaller "
                f"context, batch or model"
            ) from None
        except (self._wgpu.GPUError, RuntimeError) as error:
            self._check_lost(error)
            raise DeviceFailed(f"device webgpu: {what} failed on {self.adapter}: {error}") from None

    def _check_lost(self, error: Exception) -> None:
        words = str(error).lower()
        if "lost" in words or "destroyed" in words:
            raise DeviceFailed(
                f"device webgpu: {self.adapter} was lost ({_first_line(error)}); open the device and build again"
            ) from None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
