"""A tape on a GPU: its kernels bound to memory, captured as graphs, and the step table that they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shohin.devices.beside import beside
from shohin.devices.buffer import Buffer, Weight
from shohin.devices.cuda.driver import Bound, Memory, Source, macros_of
from shohin.devices.cuda.launch import Argument, Launch, Plane, Scratch, StepTable, Target
from shohin.devices.follower import STOPS, Follower, release, stop_words
from shohin.devices.step import HEADER, Step
from shohin.devices.tape import Call, Run, Timing
from shohin.errors import DeviceFailed

if TYPE_CHECKING:
    from shohin.devices.cuda.device import Cuda

__all__ = ["Program", "RingFollower"]

# Page-table entries that a row gets at first: 65,536 positions in pages of 64.
PAGES_A_ROW = 1024
# Steps in flight ahead of the host, and entries of the ring in which they leave their picks.
AHEAD, RING = 6, 64
# A step that takes longer than this is taken for a device that hangs.
PATIENCE = 60.0


@dataclass(frozen=True, eq=False)
class StepMemory:
    """The step table on the device, and pinned host memory that it is uploaded from."""

    memory: Memory
    staged: NDArray[np.int32]


class Program:
    """rows, wanted: capacities. Graphs are captured at their first play, and again when the step table has grown."""

    def __init__(self, device: Cuda, calls: Sequence[Call], rows: int, wanted: int) -> None:
        self.device, self.rows, self.wanted = device, rows, wanted
        target = device.target(rows, wanted)
        self._plans: list[list[Launch]] = []
        for call in calls:
            target.next_call()
            self._plans.append(beside(call.op, device.name).launches(call, target))
        self._kernels = device.load([_source(launch, target) for plan in self._plans for launch in plan])
        self._workspace = device.workspace(target.workspace)
        self._counters = device.cleared(max(4, target.counters))
        self._step = self._step_memory(rows * PAGES_A_ROW)
        self._graphs: dict[tuple[int, int, bool], Any] = {}
        self._follow_graph: Any = None
        self._ring: Ring | None = None
        self.follower: Follower | None = None

    def _step_memory(self, pages: int) -> StepMemory:
        count = HEADER + 3 * self.rows + self.wanted + pages
        staged, _ = self.device.driver.pinned(4 * count)
        return StepMemory(self.device.cleared(4 * count), staged.view(np.int32))

    def run(self, first: int, last: int, step: Step) -> None:
        """One submission of the calls ``first`` to ``last - 1``, complete on return."""
        release(self)
        self.upload(step)
        self.device.driver.replay(self.graph(first, last))
        self.device.driver.synchronize()

    def timed(self, first: int, last: int, step: Step) -> Timing:
        """As ``run``; making the graph and the step table is encoding."""
        begin = perf_counter()
        release(self)
        self.upload(step)
        graph = self.graph(first, last, timed=True)
        encode = perf_counter() - begin
        self.device.driver.replay(graph)
        self.device.driver.synchronize()
        return Timing(encode, self.device.driver.elapsed(graph))

    def upload(self, step: Step) -> None:
        """Copy a step into the table."""
        words = step.table(self.rows, self.wanted)
        if len(words) > len(self._step.staged):
            self._step = self._step_memory(2 * step.pages.size)
            self._graphs.clear()
            self._follow_graph = None
        self._step.staged[: len(words)] = words
        self.device.driver.upload_step(self._step.memory.pointer, self._step.staged[: len(words)])

    def graph(self, first: int, last: int, *, timed: bool = False) -> Any:
        """The captured calls ``first`` to ``last - 1``, with a clock at both ends or without."""
        key = (first, last, timed)
        if key not in self._graphs:
            self._graphs[key] = self.device.driver.capture(self.bound(first, last), timed=timed)
        return self._graphs[key]

    def bound(self, first: int, last: int) -> list[Bound]:
        """The kernels of some calls with their arguments."""
        start = sum(len(plan) for plan in self._plans[:first])
        launches = [launch for plan in self._plans[first:last] for launch in plan]
        return [self._bind(x, k) for x, k in zip(launches, self._kernels[start:], strict=False)]

    def _bind(self, launch: Launch, kernel: Any) -> Bound:
        arguments = tuple(self._argument(a) for a in launch.arguments)
        return Bound(kernel, launch.grid, launch.threads, launch.shared, arguments)

    def _argument(self, argument: Argument) -> np.generic:
        match argument:
            case Buffer():
                return np.uint64(argument.storage.pointer)
            case Plane():
                return np.uint64(_storage(argument.weight).planes[argument.name].pointer)
            case Scratch(offset, _, zeroed):
                return np.uint64((self._counters if zeroed else self._workspace).pointer + offset)
            case StepTable():
                return np.uint64(self._step.memory.pointer)
            case int():
                return np.int32(argument)
            case _:
                return np.float32(argument)

    @property
    def ring(self) -> Ring:
        """Where steps in flight leave their picks."""
        if self._ring is None:
            self._ring = _make_ring(self.device, self.rows)
        return self._ring

    def follow_graph(self, ids: Buffer, status: Buffer) -> Any:
        """The whole tape and then ``advance.cu``, which makes the next step's table."""
        if self._follow_graph is None:
            ring = self.ring
            macros = macros_of({"ROWS": self.rows, "WANTED": self.wanted, "RING": RING})
            (kernel,) = self.device.load([Source("devices/cuda/advance.cu", "advance", macros)])
            pointers = (
                self._step.memory.pointer,
                ids.storage.pointer,
                status.storage.pointer,
                ring.stops.pointer,
                ring.address,
                ring.count.pointer,
            )
            tail = Bound(kernel, (1, 1, 1), 32, 0, tuple(np.uint64(p) for p in pointers))
            self._follow_graph = self.device.driver.capture([*self.bound(0, len(self._plans)), tail])
        return self._follow_graph


@dataclass
class Ring:
    """Where steps in flight leave their picks, and what ends a run. entries: int32 [RING, 1 + 2 rows], host memory."""

    entries: NDArray[np.int32]
    address: int
    count: Memory
    stops: Memory
    issued: int = 0


class RingFollower(Follower):
    """A run whose picks come through the ring of its program. outputs: the tape's buffers of ids and status."""

    ahead = AHEAD

    def __init__(self, program: Program, outputs: tuple[Buffer, Buffer], run: Run) -> None:
        super().__init__(program.device, program, run)
        self._tape, self._outputs = program, outputs

    def _start(self) -> None:
        self._tape.device.driver.upload(self._tape.ring.stops.pointer, stop_words(list(self._stops)))

    def _submit(self) -> int:
        graph, ring = self._tape.follow_graph(*self._outputs), self._tape.ring
        self._tape.device.driver.replay(graph)
        ring.issued += 1
        return ring.issued

    def _wait(self, pending: int) -> tuple[int, int] | None:
        """``pending`` is what the kernel writes into the entry last: the step's number, counted from 1."""
        entry = self._tape.ring.entries[(pending - 1) % RING]
        begin, spins = perf_counter(), 0
        while entry[0] != pending:
            spins += 1
            if spins > 2000:
                sleep(20e-6)
            if spins % 5000 == 0:
                self._tape.device.driver.check()
                if perf_counter() - begin > PATIENCE:
                    raise DeviceFailed(f"device cuda: a step did not end within {PATIENCE:.0f} s")
        token, status = int(entry[1]), int(entry[2])
        return None if status == -1 else (token, status)


def _make_ring(device: Cuda, rows: int) -> Ring:
    """A ring for one row capacity."""
    width = 1 + 2 * rows
    raw, address = device.driver.pinned(4 * RING * width)
    entries = raw.view(np.int32).reshape(RING, width)
    return Ring(entries, address, device.cleared(4), device.cleared(4 * (1 + STOPS)))


def _source(launch: Launch, target: Target) -> Source:
    constants = {**launch.constants, "ROWS": target.rows, "WANTED": target.wanted}
    return Source(f"kernels/{launch.source}", launch.entry, macros_of(constants), launch.shared)


def _storage(weight: Weight) -> Any:
    return weight.storage
