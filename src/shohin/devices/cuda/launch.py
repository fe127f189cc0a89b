"""What an op's plan hands to the device: launches over buffers, planes of weights, scratch and the step table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from shohin.devices.buffer import Buffer, Weight

__all__ = ["STEP", "Argument", "Launch", "Plane", "Scratch", "StepTable", "Target"]

ALIGNMENT = 256


@dataclass(frozen=True)
class StepTable:
    """The tape's step table, ``const int*`` in a kernel (``step.cuh`` has the accessors)."""


STEP: Final = StepTable()


@dataclass(frozen=True, eq=False)
class Plane:
    """One array of a packed weight: ``bits`` and ``scales`` of tiles, ``data`` of blocks and of plain numbers."""

    weight: Weight
    name: str


@dataclass(frozen=True)
class Scratch:
    """Bytes of the tape's workspace. ``zeroed`` ones belong to one call, start as zeros and are left so by a kernel;
    the others hold values between the launches of one call, and the next call overwrites them.
    """

    offset: int
    nbytes: int
    zeroed: bool = False


Argument = Buffer | Plane | Scratch | StepTable | int | float


@dataclass(frozen=True, eq=False)
class Launch:
    """source: a file below ``shohin/kernels``; entry: its ``extern "C" __global__`` function; constants: macros to
    compile it with (the tape's ROWS and WANTED are always there too).

    grid: blocks; threads: of a block, one-dimensional; shared: bytes of dynamic shared memory. arguments, in the order
    of the kernel's parameters: buffers, planes and scratch become pointers, int a 32-bit int, float a float.
    """

    source: str
    entry: str
    constants: Mapping[str, int | float | str]
    grid: tuple[int, int, int]
    threads: int
    arguments: tuple[Argument, ...]
    shared: int = 0


@dataclass
class Target:
    """What a plan may know of the device and the tape, and where it gets scratch.

    rows, wanted: row capacities of the tape. arch: compute capability times 10 (90). multiprocessors: of the device.
    shared_limit: bytes of shared memory a block may ask for. tier: ``binary`` (1-bit MMA) or ``int8``.
    """

    rows: int
    wanted: int
    arch: int
    multiprocessors: int
    shared_limit: int
    tier: str
    workspace: int = 0
    counters: int = 0
    _used: int = field(default=0, repr=False)

    def scratch(self, nbytes: int) -> Scratch:
        """Workspace for the call that is being planned."""
        found = Scratch(self._used, nbytes)
        self._used += _aligned(nbytes)
        self.workspace = max(self.workspace, self._used)
        return found

    def zeroed(self, nbytes: int) -> Scratch:
        """Memory of this call alone, zero at first."""
        found = Scratch(self.counters, nbytes, zeroed=True)
        self.counters += _aligned(nbytes)
        return found

    def next_call(self) -> None:
        """Another call is planned from here on: the workspace is free again."""
        self._used = 0


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
