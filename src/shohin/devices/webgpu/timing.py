"""How long a tape and its kernels run on the GPU, by its own clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shohin.devices.follower import release
from shohin.devices.step import Step
from shohin.devices.tape import Tape
from shohin.devices.webgpu.encoding import Bound
from shohin.devices.webgpu.gpu import Gpu
from shohin.errors import NoDevice

if TYPE_CHECKING:
    from shohin.devices.webgpu.device import WebGpu

__all__ = ["BATCH", "Clocked", "clocked", "kernel_times"]

# Passes that one set of queries holds, two queries each.
BATCH = 2048


@dataclass(frozen=True)
class Clocked:
    """One submission. encode: the host's seconds before it; passes: where each begins and ends, in seconds of the GPU's
    clock [passes, 2].
    """

    encode: float
    passes: NDArray[np.float64]

    @property
    def span(self) -> float:
        """From the first pass's begin to the last one's end."""
        return float(self.passes[-1, 1] - self.passes[0, 0])


def clocked(gpu: Gpu, passes: Sequence[Sequence[Bound]]) -> Clocked:
    """Submit passes of dispatches, at most BATCH of them, with a timestamp at both ends of each, and wait.

    WebGPU has timestamps at the ends of passes only, so a kernel that is to be timed gets a pass of its own.
    """
    count = 2 * len(passes)
    with gpu.errors("timing"):
        native = gpu.native
        queries = native.create_query_set(type="timestamp", count=count)
        flags = import_module("wgpu").BufferUsage
        found = native.create_buffer(size=8 * count, usage=flags.QUERY_RESOLVE | flags.COPY_SRC)
        begin = perf_counter()
        encoder = native.create_command_encoder()
        for i, dispatches in enumerate(passes):
            ends = {"beginning_of_pass_write_index": 2 * i, "end_of_pass_write_index": 2 * i + 1}
            compute = encoder.begin_compute_pass(timestamp_writes={"query_set": queries, **ends})
            gpu.fill(compute, dispatches)
            compute.end()
        encoder.resolve_query_set(queries, 0, count, found, 0)
        buffer = encoder.finish()
        encode = perf_counter() - begin
        native.queue.submit([buffer])
        ticks = gpu.download(found, 0, 8 * count).view(np.uint64).reshape(-1, 2)
    # Differences first: a clock that has run for days has no room for fractions of a microsecond in a float64.
    since = (ticks - ticks[0, 0]).astype(np.int64)
    return Clocked(encode, since * (_tick(native.queue) * 1e-9))


def kernel_times(device: WebGpu, tape: Tape, step: Step) -> list[tuple[str, float]]:
    """(op, seconds) of every dispatch of one play, each in a pass of its own with a timestamp at both ends.

    Passes of their own keep kernels from overlapping, so the sum may exceed what a play takes. The tape's outputs are
    those of a play. NoDevice where the adapter has no timestamps.
    """
    if not device.gpu.timestamps:
        raise NoDevice(f"device webgpu: {device.adapter} has no timestamp queries")
    with device.lock:
        program = tape._program
        release(program)
        program.upload(step)
        bound = program.bound(0, len(tape.calls))
        names = [call.op.name for call, n in zip(tape.calls, program.dispatches, strict=True) for _ in range(n)]
        times: list[float] = []
        for first in range(0, len(bound), BATCH):
            device.submissions += 1
            passes = clocked(device.gpu, [[one] for one in bound[first : first + BATCH]]).passes
            times += (passes[:, 1] - passes[:, 0]).tolist()
    return list(zip(names, times, strict=True))


def _tick(queue: Any) -> float:
    """Nanoseconds a tick; 1 as WebGPU has it where the native library does not say."""
    try:
        period = import_module("wgpu.backends.wgpu_native._ffi").lib.wgpuQueueGetTimestampPeriod
    except (ImportError, AttributeError):
        return 1.0
    return float(period(queue._internal))
