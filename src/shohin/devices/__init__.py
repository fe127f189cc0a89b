"""WHERE: devices, buffers, packed weights and tapes. This room knows no op by name."""

from __future__ import annotations

from shohin.devices.buffer import Buffer, Weight
from shohin.devices.device import Device
from shohin.devices.host import Host
from shohin.devices.lock import Lock
from shohin.devices.pool import Pool
from shohin.devices.step import Step
from shohin.devices.tape import Call, Op, Operand, Recorder, Tape, Ticket
from shohin.errors import NoDevice

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
    "Step",
    "Tape",
    "Ticket",
    "Weight",
    "device",
]


def device(name: str = "cpu", *, threads: int | None = None, tier: str | None = None, dtype: str = "float32") -> Device:
    """Open a device by name: ``cpu`` (threads, tier) or ``host`` (dtype ``float32`` or ``float64``).

    Raises NoDevice for a name this build does not have, BadRequest for a bad thread count.
    """
    if name == "host":
        return Host(dtype)
    if name == "cpu":
        from shohin.devices.cpu import Cpu

        return Cpu(threads, tier)
    raise NoDevice(f"device {name!r} is not available; available: cpu, host")
