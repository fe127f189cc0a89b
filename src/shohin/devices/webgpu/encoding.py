"""How dispatches get into a command buffer: through the native library where its binding allows, else by the API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

__all__ = ["Bound", "Copy", "Queue", "encoder_of", "fill_of", "public_encoder", "queue_of"]


@dataclass(frozen=True, eq=False)
class Bound:
    """A pipeline with its bind group, and workgroups (x, y, z)."""

    pipeline: Any
    group: Any
    workgroups: tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Copy:
    """Bytes that leave a buffer after the pass: for what the host reads."""

    source: Any
    offset: int
    target: Any
    nbytes: int


Encode = Callable[[Sequence[Bound], "Copy | None"], Any]
Pass = Callable[[Any, Sequence[Bound]], None]


def encoder_of(device: Any) -> Encode:
    """The fastest way of this wgpu to encode a command buffer: about half the time of the public one."""
    return _encoder(device, fill_of())


def public_encoder(device: Any) -> Encode:
    """The same through the documented methods."""
    return _encoder(device, _public_fill)


def fill_of() -> Pass:
    """What encodes dispatches into a pass, the fastest that this wgpu has.

    The public methods guard every call against errors. Errors inside the fast calls make the command buffer invalid,
    which its end or its submission reports.
    """
    try:
        native = import_module("wgpu.backends.wgpu_native._ffi")
        names = ("SetPipeline", "SetBindGroup", "DispatchWorkgroups")
        set_pipeline, set_group, dispatch = (getattr(native.lib, f"wgpuComputePassEncoder{name}") for name in names)
        null = native.ffi.NULL
    except (ImportError, AttributeError):
        return _public_fill

    def fill(compute: Any, bound: Sequence[Bound]) -> None:
        raw = compute._internal
        for one in bound:
            set_pipeline(raw, one.pipeline._internal)
            set_group(raw, 0, one.group._internal, 0, null)
            dispatch(raw, *one.workgroups)

    return fill


def _public_fill(compute: Any, bound: Sequence[Bound]) -> None:
    for one in bound:
        compute.set_pipeline(one.pipeline)
        compute.set_bind_group(0, one.group)
        compute.dispatch_workgroups(*one.workgroups)


@dataclass(frozen=True)
class Queue:
    """Submits a command buffer and returns its number; waits for a number, or for everything with None."""

    submit: Callable[[Any], Any]
    wait: Callable[[Any], None]


def queue_of(device: Any) -> Queue | None:
    """The native calls that wait for one submission; None where this wgpu has none.

    The documented waiting goes through a thread that waits for the latest submission of all, so with steps in flight
    the first would be known as late as the last. And ``on_submitted_work_done_sync`` of wgpu 0.32 does not work.
    """
    try:
        ffi = import_module("wgpu.backends.wgpu_native._ffi").ffi
        guarded = import_module("wgpu.backends.wgpu_native._api").libf
        submit, poll = guarded.wgpuQueueSubmitForIndex, guarded.wgpuDevicePoll
        buffers, index = ffi.new("WGPUCommandBuffer[1]"), ffi.new("WGPUSubmissionIndex *")
    except (ImportError, AttributeError, TypeError):
        return None

    def submitted(buffer: Any) -> Any:
        buffers[0] = buffer._internal
        return submit(device.queue._internal, 1, buffers)

    def wait(number: Any) -> None:
        if number is None:
            poll(device._internal, True, ffi.NULL)
        else:
            index[0] = number
            poll(device._internal, True, index)

    return Queue(submitted, wait)


def _encoder(device: Any, fill: Pass) -> Encode:
    def encode(bound: Sequence[Bound], copy: Copy | None = None) -> Any:
        encoder = device.create_command_encoder()
        if bound:
            compute = encoder.begin_compute_pass()
            fill(compute, bound)
            compute.end()
        if copy is not None:
            encoder.copy_buffer_to_buffer(copy.source, copy.offset, copy.target, 0, copy.nbytes)
        return encoder.finish()

    return encode
