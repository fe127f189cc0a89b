"""Steps that feed on each other's picks, encoded and submitted while the ones before them still run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shohin.devices.buffer import Buffer
from shohin.devices.follower import STOPS, Follower, stop_words
from shohin.devices.tape import Run
from shohin.devices.webgpu.dispatch import Binding, Dispatch
from shohin.devices.webgpu.encoding import Bound, Copy
from shohin.devices.webgpu.gpu import Memory
from shohin.devices.webgpu.shader import assemble

if TYPE_CHECKING:
    from shohin.devices.webgpu.program import Program

__all__ = ["AHEAD", "Tail", "TailFollower"]

# Steps in flight ahead of the host.
AHEAD = 3
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
        """Ids that end a run."""
        self._program.device.gpu.upload(self._stops, 0, stop_words(stops))


class TailFollower(Follower):
    """A run whose picks are copied into a buffer of their own after each step."""

    ahead = AHEAD

    def __init__(self, program: Program, tail: Tail, run: Run) -> None:
        super().__init__(program.device, program, run)
        self._tape, self._tail = program, tail

    def _start(self) -> None:
        self._tail.write_stops(list(self._stops))

    def _submit(self) -> tuple[Memory, Any, Any]:
        gpu, staging = self._tape.device.gpu, self._tail.free.pop()
        number = gpu.submit(self._tape.followed(self._tail), Copy(self._tail.picks, 0, staging, PICK_BYTES))
        return staging, number, gpu.ask(staging, PICK_BYTES)

    def _wait(self, pending: tuple[Memory, Any, Any]) -> tuple[int, int] | None:
        staging, number, asked = pending
        raw = np.empty(PICK_BYTES, np.uint8)
        self._tape.device.gpu.take(staging, raw, number, asked)
        self._tail.free.append(staging)
        token, status, ran, _ = (int(word) for word in raw.view(np.int32))
        return (token, status) if ran else None
