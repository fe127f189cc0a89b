"""A tape on a GPU: its kernels with their bind groups, and the step table that they read."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from shohin.devices.beside import beside
from shohin.devices.buffer import Buffer
from shohin.devices.follower import Follower, release
from shohin.devices.step import HEADER, Step
from shohin.devices.tape import Call, Timing
from shohin.devices.webgpu.dispatch import Argument, Dispatch, Part, Scratch
from shohin.devices.webgpu.encoding import Bound
from shohin.devices.webgpu.follower import Tail
from shohin.devices.webgpu.gpu import Memory
from shohin.devices.webgpu.shader import assemble
from shohin.devices.webgpu.timing import BATCH, clocked

if TYPE_CHECKING:
    from shohin.devices.webgpu.device import WebGpu

__all__ = ["Program"]

# Page-table entries that a tape has room for at first.
PAGES = 1024


class Program:
    """rows, wanted: capacities. Bind groups are made at the first play, and again when the step table has grown."""

    def __init__(self, device: WebGpu, calls: Sequence[Call], rows: int, wanted: int) -> None:
        self.device, self.rows, self.wanted = device, rows, wanted
        target = device.target(rows, wanted)
        self._plans: list[list[Dispatch]] = []
        for call in calls:
            target.next_call()
            self._plans.append(beside(call.op, device.name).dispatches(call, target))
        self._shaders = [[assemble(dispatch, target) for dispatch in plan] for plan in self._plans]
        device.compile_shaders([shader for shaders in self._shaders for shader in shaders])
        self._scratch = device.workspace(target.sizes)
        self._step = self._step_memory(PAGES)
        self._bound: list[list[Bound]] = []
        self._tail: Tail | None = None
        self._followed: list[Bound] = []
        self.follower: Follower | None = None

    @property
    def dispatches(self) -> list[int]:
        """Dispatches of each call."""
        return [len(plan) for plan in self._plans]

    def _step_memory(self, pages: int) -> Memory:
        return self.device.memory(4 * (HEADER + 3 * self.rows + self.wanted + pages), "the step table")

    def run(self, first: int, last: int, step: Step) -> None:
        """One submission of the calls ``first`` to ``last - 1``, complete on return."""
        gpu = self.device.gpu
        release(self)
        self.upload(step)
        gpu.submit(self.bound(first, last))
        gpu.wait()

    def timed(self, first: int, last: int, step: Step, apart: bool) -> Timing:
        """As ``run``, timed: by the GPU's clock, or by the host's where the adapter has no timestamps. apart: also each
        call's share, for which every dispatch gets a pass of its own.
        """
        gpu = self.device.gpu
        release(self)
        self.upload(step)
        bound = self.bound(first, last)
        if not gpu.timestamps or len(bound) > BATCH:
            begin = perf_counter()
            buffer = gpu.encode(bound)
            submit = perf_counter()
            gpu.submit_encoded(buffer)
            gpu.wait()
            return Timing(submit - begin, perf_counter() - submit)
        found = clocked(gpu, [[one] for one in bound] if apart else [bound])
        if not apart:
            return Timing(found.encode, found.span)
        ends = np.cumsum(self.dispatches[first:last])
        spent = np.split(found.passes[:, 1] - found.passes[:, 0], ends[:-1])
        return Timing(found.encode, found.span, tuple(float(one.sum()) for one in spent))

    def tail(self, ids: Buffer, status: Buffer) -> Tail:
        """What this tape needs to run ahead."""
        if self._tail is None:
            self._tail = Tail(self, ids, status)
        return self._tail

    def followed(self, tail: Tail) -> list[Bound]:
        """All dispatches, and the one that makes the next step."""
        if not self._followed:
            self._followed = [*self.bound(0, len(self._plans)), tail.bound()]
        return self._followed

    def upload(self, step: Step) -> None:
        """Copy a step into the table; it reaches the GPU before anything that is submitted afterwards."""
        words = step.table(self.rows, self.wanted)
        if words.nbytes > self._step.size:
            self._step = self._step_memory(2 * step.pages.size)
            self._bound = []
            self._followed = []
        self.device.gpu.upload(self._step, 0, words)

    def bound(self, first: int, last: int) -> list[Bound]:
        """The dispatches of some calls, ready to be encoded."""
        if not self._bound:
            self._bound = [
                [
                    self.device.gpu.bind(shader, [self.memory(b.argument) for b in d.bindings], d.workgroups)
                    for d, shader in zip(plan, shaders, strict=True)
                ]
                for plan, shaders in zip(self._plans, self._shaders, strict=True)
            ]
        return [one for plan in self._bound[first:last] for one in plan]

    def memory(self, argument: Argument) -> Memory:
        """The GPU buffer behind a binding."""
        match argument:
            case Buffer():
                return argument.storage
            case Part(weight, index):
                return weight.storage[index].memory
            case Scratch(index):
                return self._scratch[index]
            case _:
                return self._step
