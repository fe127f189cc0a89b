"""How long each kernel of a tape runs on the GPU, by its own clock."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from shohin.devices.follower import release
from shohin.devices.step import Step
from shohin.devices.tape import Tape
from shohin.devices.webgpu.device import WebGpu
from shohin.devices.webgpu.encoding import Bound
from shohin.errors import NoDevice

__all__ = ["kernel_times"]

# Dispatches that one set of queries holds, two queries each.
BATCH = 2048


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
            times += _timed(device, bound[first : first + BATCH])
    return list(zip(names, times, strict=True))


def _timed(device: WebGpu, bound: Sequence[Bound]) -> list[float]:
    gpu, count = device.gpu, 2 * len(bound)
    with gpu.errors("timing"):
        native = gpu.native
        queries = native.create_query_set(type="timestamp", count=count)
        flags = import_module("wgpu").BufferUsage
        found = native.create_buffer(size=8 * count, usage=flags.QUERY_RESOLVE | flags.COPY_SRC)
        encoder = native.create_command_encoder()
        for i, one in enumerate(bound):
            ends = {"beginning_of_pass_write_index": 2 * i, "end_of_pass_write_index": 2 * i + 1}
            compute = encoder.begin_compute_pass(timestamp_writes={"query_set": queries, **ends})
            compute.set_pipeline(one.pipeline)
            compute.set_bind_group(0, one.group)
            compute.dispatch_workgroups(*one.workgroups)
            compute.end()
        encoder.resolve_query_set(queries, 0, count, found, 0)
        native.queue.submit([encoder.finish()])
        device.submissions += 1
        ticks = gpu.download(found, 0, 8 * count).view(np.uint64).reshape(-1, 2).astype(np.int64)
    seconds: list[float] = ((ticks[:, 1] - ticks[:, 0]) * _tick(native.queue) * 1e-9).tolist()
    return seconds


def _tick(queue: Any) -> float:
    """Nanoseconds a tick; 1 as WebGPU has it where the native library does not say."""
    try:
        period = import_module("wgpu.backends.wgpu_native._ffi").lib.wgpuQueueGetTimestampPeriod
    except (ImportError, AttributeError):
        return 1.0
    return float(period(queue._internal))
