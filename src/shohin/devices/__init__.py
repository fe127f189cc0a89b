"""WHERE: devices, buffers, packed weights and tapes. This room knows no op by name."""

from __future__ import annotations

from shohin.devices.buffer import Buffer, Weight
from shohin.devices.device import Device
from shohin.devices.host import Host
from shohin.devices.lock import Lock
from shohin.devices.pool import Pool
from shohin.devices.step import Step
from shohin.devices.tape import Call, Op, Operand, Recorder, Run, Tape, Ticket
from shohin.errors import BadRequest, NoDevice

__all__ = [
    "Buffer",
    "Call",
    "Device",
    "Host",
    "Lock",
    "Op",
    "Operand",
    "Pool",
    "Recorder",
    "Run",
    "Step",
    "Tape",
    "Ticket",
    "Weight",
    "device",
]


def device(
    name: str = "cpu", *, threads: int | None = None, tier: str | None = None, dtype: str | None = None
) -> Device:
    """Open a device by name: ``cpu`` (threads, tier), ``cuda`` or ``cuda:1`` (tier: ``binary`` or ``int8``),
    ``webgpu``, ``webgpu:1`` or ``webgpu:part of a name`` (tier: ``plain``, ``f16``, ``subgroups``, ``subgroups+f16``),
    or ``host`` (dtype ``float32``, the default, or ``float64``).

    Raises NoDevice for a name or a tier that this build or machine does not have, BadRequest for a bad value and for a
    setting that the device does not have, OutOfMemory where the system does not start that many threads.
    """
    kind, _, which = name.partition(":")
    if name == "host":
        _only(name, threads=threads, tier=tier)
        if dtype not in (None, "float32", "float64"):
            raise BadRequest(f"dtype is {dtype!r}, float32 or float64 was expected", param="dtype")
        return Host(dtype or "float32")
    if name == "cpu":
        from shohin.devices.cpu import Cpu

        _only(name, dtype=dtype)
        return Cpu(threads, tier)
    if kind == "cuda" and (which.isdecimal() or name == "cuda"):
        from shohin.devices.cuda import Cuda
        from shohin.devices.cuda.gpu import Gpu

        _only(kind, threads=threads, dtype=dtype)
        return Cuda(Gpu(int(which or 0)), tier)
    if kind == "webgpu" and (which or name == "webgpu"):
        from shohin.devices.webgpu import WebGpu, choose

        _only(kind, threads=threads, dtype=dtype)
        return WebGpu(choose(which), tier)
    raise NoDevice(f"device {name!r} is not available; available: cpu, cuda, webgpu, host")


def _only(name: str, **foreign: object) -> None:
    """A setting either has its effect or is refused."""
    for setting, value in foreign.items():
        if value is not None:
            raise BadRequest(f"device {name} has no {setting}; {value!r} would have no effect", param=setting)
