"""Steps that feed on each other's picks, encoded and submitted while the ones before them still run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shohin.devices.buffer import Buffer
from shohin.devices.step import Step
from shohin.devices.webgpu.dispatch import Binding, Dispatch
from shohin.devices.webgpu.encoding import Bound, Copy
from shohin.devices.webgpu.gpu import Memory
from shohin.devices.webgpu.shader import assemble

if TYPE_CHECKING:
    from shohin.devices.webgpu.program import Program

__all__ = ["AHEAD", "Follower", "Tail"]

# Steps in flight ahead of the host.
AHEAD = 3
# Stop ids that the GPU looks at; the host looks at all of them.
STOPS = 63
PICK_BYTES = 16


class Tail:
    """What a tape needs to run ahead: the kernel that makes the next step, and where picks are read from."""

    def __init__(self, program: Program, ids: Buffer, status: Buffer) -> None:
        self._program = program
        device = program.device
        self.picks, self._stops = device.memory(PICK_BYTES, "picks"), device.memory(4 * (1 + STOPS), "stop ids")
        self.free = [device.gpu.readable(PICK_BYTES) for _ in range(AHEAD)]
        device.allocations += AHEAD
        words = "array<i32>"
        bindings = (
            Binding("ids", ids, words),
            Binding("status", status, words),
            Binding("stops", Buffer(device, "stops", (1 + STOPS,), np.dtype(np.int32), self._stops), words),
            Binding("picks", Buffer(device, "picks", (4,), np.dtype(np.int32), self.picks), words, write=True),
            Binding("step_table", Binding.step().argument, "array<u32>", write=True),
        )
        self._dispatch = Dispatch(("devices/webgpu/advance.wgsl",), "advance", {}, bindings, (1, 1, 1))
        self._shader = assemble(self._dispatch, device.target(program.rows, program.wanted))

    def bound(self) -> Bound:
        """The kernel, bound to the step table that the program has now."""
        memories = [self._program.memory(binding.argument) for binding in self._dispatch.bindings]
        return self._program.device.gpu.bind(self._shader, memories, (1, 1, 1))

    def write_stops(self, stops: Sequence[int]) -> None:
        """Ids that end a run; those behind the first STOPS are left to the host."""
        words = np.zeros(1 + STOPS, np.int32)
        some = list(stops)[:STOPS]
        words[0], words[1 : 1 + len(some)] = len(some), some
        self._program.device.gpu.upload(self._stops, 0, words)


@dataclass
class Follower:
    """One run that is ahead of its host. step: the first whose pick the host does not know; left: still to submit."""

    program: Program
    tail: Tail
    step: Step
    left: int
    stops: frozenset[int]
    ready: list[tuple[int, int]] = field(default_factory=list)
    pending: list[tuple[Memory, Any, Any]] = field(default_factory=list)
    ended: bool = False

    def run(self) -> Iterator[tuple[int, int]]:
        """(id, status) of step after step."""
        device = self.program.device
        try:
            while True:
                with device.lock:
                    self._submit()
                    if not self.ready and self.pending:
                        self._read()
                    if not self.ready:
                        return
                    found = self.ready.pop(0)
                yield found
        finally:
            self.left = 0

    def drain(self) -> None:
        """Read everything in flight, before somebody else uses the step table."""
        while self.pending:
            self._read()

    def _submit(self) -> None:
        """Keep AHEAD steps in flight; after somebody else used the table, go on from where this run stands."""
        program, gpu = self.program, self.program.device.gpu
        if self.ended or self.left == 0:
            return
        if program.follower is not self:
            if self.ready:
                return
            program.release()
            program.follower = self
            program.upload(self.step)
            self.tail.write_stops(sorted(self.stops))
        bound = program.followed(self.tail)
        while self.left and len(self.pending) < AHEAD:
            staging = self.tail.free.pop()
            program.device.submissions += 1
            number = gpu.submit(bound, Copy(self.tail.picks, 0, staging, PICK_BYTES))
            self.pending.append((staging, number, gpu.ask(staging, PICK_BYTES)))
            self.left -= 1

    def _read(self) -> None:
        staging, number, asked = self.pending.pop(0)
        raw = np.empty(PICK_BYTES, np.uint8)
        self.program.device.gpu.take(staging, raw, number, asked)
        self.tail.free.append(staging)
        token, status, ran, _ = (int(word) for word in raw.view(np.int32))
        if self.ended or not ran:
            return
        self.ready.append((token, status))
        self.ended = status != 0 or token in self.stops
        if not self.ended:
            self.step = self.step.reading(token)
