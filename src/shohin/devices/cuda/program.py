"""A tape on a GPU: its kernels bound to memory, captured as graphs, and the step table that they read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shohin.devices.beside import beside
from shohin.devices.buffer import Buffer, Weight
from shohin.devices.cuda.driver import Bound, Memory, Source, macros_of
from shohin.devices.cuda.launch import Argument, Launch, Plane, Scratch, StepTable, Target
from shohin.devices.step import Step
from shohin.devices.tape import Call
from shohin.errors import BadShape, DeviceFailed

if TYPE_CHECKING:
    from shohin.devices.cuda.device import Cuda

__all__ = ["Follower", "Program", "stop_list"]

HEADER = 4
# Page-table entries that a row gets at first: 65,536 positions in pages of 64.
PAGES_A_ROW = 1024
# Steps in flight ahead of the host, and entries of the ring in which they leave their picks.
AHEAD, RING = 6, 64
# A step that takes longer than this is taken for a device that hangs.
PATIENCE = 60.0


@dataclass
class StepMemory:
    """The step table on the device, and pinned host memory that it is uploaded from."""

    memory: Memory
    staged: NDArray[np.int32]
    rows: int
    wanted: int

    @property
    def room(self) -> int:
        """Page-table entries that fit."""
        return len(self.staged) - HEADER - 3 * self.rows - self.wanted

    def stage(self, step: Step) -> NDArray[np.int32]:
        """Write a step into pinned memory, in the layout of ``step.cuh``; the part to upload."""
        rows, wanted, table = step.rows, len(step.wanted), step.pages
        s = self.staged
        s[:HEADER] = rows, wanted, table.shape[1], 0
        at = HEADER
        for values in (step.tokens, step.positions, step.sequences):
            s[at : at + rows] = values
            at += self.rows
        s[at : at + wanted] = step.wanted
        at += self.wanted
        s[at : at + table.size] = table.reshape(-1)
        return s[: at + table.size]


class Program:
    """rows, wanted: capacities. Graphs are captured at their first play, and again when the step table has grown."""

    def __init__(self, device: Cuda, calls: Sequence[Call], rows: int, wanted: int) -> None:
        self._device, self.rows, self.wanted = device, rows, wanted
        target = device.target(rows, wanted)
        self._plans: list[list[Launch]] = []
        for call in calls:
            target.next_call()
            self._plans.append(beside(call.op, device.name).launches(call, target))
        self._kernels = device.load([_source(launch, target) for plan in self._plans for launch in plan])
        self._workspace = device.workspace(target.workspace)
        self._counters = device.cleared(max(4, target.counters))
        self._step = self._step_memory(rows * PAGES_A_ROW)
        self._graphs: dict[tuple[int, int], Any] = {}
        self._follow_graph: Any = None
        self._ring: Ring | None = None
        self.follower: Follower | None = None

    def _step_memory(self, pages: int) -> StepMemory:
        count = HEADER + 3 * self.rows + self.wanted + pages
        staged, _ = self._device.driver.pinned(4 * count)
        return StepMemory(self._device.cleared(4 * count), staged.view(np.int32), self.rows, self.wanted)

    def run(self, first: int, last: int, step: Step) -> None:
        """One submission of the calls ``first`` to ``last - 1``, complete on return."""
        self.release()
        self.upload(step)
        self._device.driver.replay(self.graph(first, last))
        self._device.driver.synchronize()

    def release(self) -> None:
        """Let a run that is ahead of its host take what is done, before somebody else uses the step table."""
        if self.follower is not None:
            self.follower.drain()
            self.follower = None

    def upload(self, step: Step) -> None:
        """Copy a step into the table."""
        if step.pages.size > self._step.room:
            self._step = self._step_memory(2 * step.pages.size)
            self._graphs.clear()
            self._follow_graph = None
        self._device.driver.upload_step(self._step.memory.pointer, self._step.stage(step))

    def graph(self, first: int, last: int) -> Any:
        """The captured calls ``first`` to ``last - 1``."""
        key = (first, last)
        if key not in self._graphs:
            self._graphs[key] = self._device.driver.capture(self.bound(first, last))
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
            self._ring = _make_ring(self._device, self.rows)
        return self._ring

    def follow_graph(self, ids: Buffer, status: Buffer) -> Any:
        """The whole tape and then ``advance.cu``, which makes the next step's table."""
        if self._follow_graph is None:
            ring = self.ring
            macros = macros_of({"ROWS": self.rows, "WANTED": self.wanted, "RING": RING})
            (kernel,) = self._device.load([Source("devices/cuda/advance.cu", "advance", macros)])
            pointers = (
                self._step.memory.pointer,
                ids.storage.pointer,
                status.storage.pointer,
                ring.stops.pointer,
                ring.address,
                ring.count.pointer,
            )
            tail = Bound(kernel, (1, 1, 1), 32, 0, tuple(np.uint64(p) for p in pointers))
            self._follow_graph = self._device.driver.capture([*self.bound(0, len(self._plans)), tail])
        return self._follow_graph


@dataclass
class Ring:
    """Where steps in flight leave their picks, and what ends a run. entries: int32 [RING, 1 + 2 rows], host memory."""

    entries: NDArray[np.int32]
    address: int
    count: Memory
    stops: Memory
    issued: int = 0


STOPS = 63


@dataclass
class Follower:
    """One run that is ahead of its host: ``issued`` steps were enqueued, ``taken`` of them were read from the ring."""

    program: Program
    step: Step
    left: int
    ids: Buffer
    status: Buffer
    stops: NDArray[np.int32]
    ready: list[tuple[int, int]] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    ended: bool = False

    def run(self) -> Iterator[tuple[int, int]]:
        """(id, status) of step after step, with up to AHEAD more in flight."""
        device = self.program._device
        try:
            while True:
                with device.lock:
                    self._issue()
                    found = self._take()
                if found is None:
                    return
                yield found
        finally:
            self.left = 0

    def _issue(self) -> None:
        """Enqueue steps up to the limit; after somebody else used the table, from where this run stands."""
        program, device = self.program, self.program._device
        if self.ended or self.left == 0:
            return
        if program.follower is not self:
            if self.ready:
                return
            program.release()
            program.follower = self
            program.upload(self.step)
            device.driver.upload(program.ring.stops.pointer, self.stops)
        graph, ring = program.follow_graph(self.ids, self.status), program.ring
        while self.left and len(self.pending) < AHEAD:
            device.submissions += 1
            device.driver.replay(graph)
            self.pending.append(ring.issued)
            ring.issued += 1
            self.left -= 1

    def _take(self) -> tuple[int, int] | None:
        """The next step's pick, waited for; None when the run is over."""
        if not self.ready and self.pending:
            self._read(self.pending.pop(0))
        return self.ready.pop(0) if self.ready else None

    def _read(self, number: int) -> None:
        entry = self.program.ring.entries[number % RING]
        self._wait(entry, number)
        token, status = int(entry[1]), int(entry[2])
        if status == -1:
            self.ended = True
            return
        self.ready.append((token, status))
        if status != 0 or token in self.stops[1 : 1 + self.stops[0]]:
            self.ended = True
        if not self.ended:
            self.step = self.step.reading(token)

    def _wait(self, entry: NDArray[np.int32], number: int) -> None:
        begin, spins = perf_counter(), 0
        while entry[0] != number + 1:
            spins += 1
            if spins > 2000:
                sleep(20e-6)
            if spins % 5000 == 0:
                self.program._device.driver.check()
                if perf_counter() - begin > PATIENCE:
                    raise DeviceFailed(f"device cuda: a step did not end within {PATIENCE:.0f} s")

    def drain(self) -> None:
        """Read everything in flight."""
        while self.pending:
            self._read(self.pending.pop(0))


def _make_ring(device: Cuda, rows: int) -> Ring:
    """A ring for one row capacity."""
    width = 1 + 2 * rows
    raw, address = device.driver.pinned(4 * RING * width)
    entries = raw.view(np.int32).reshape(RING, width)
    return Ring(entries, address, device.cleared(4), device.cleared(4 * (1 + STOPS)))


def stop_list(stops: Sequence[int]) -> NDArray[np.int32]:
    """{count, ids...}; BadShape for more ids than the device keeps."""
    if len(stops) > STOPS:
        raise BadShape(f"device cuda keeps {STOPS} stop ids, {len(stops)} were given")
    table = np.zeros(1 + STOPS, np.int32)
    table[0], table[1 : 1 + len(stops)] = len(stops), list(stops)
    return table


def _source(launch: Launch, target: Target) -> Source:
    constants = {**launch.constants, "ROWS": target.rows, "WANTED": target.wanted}
    return Source(f"kernels/{launch.source}", launch.entry, macros_of(constants), launch.shared)


def _storage(weight: Weight) -> Any:
    return weight.storage
