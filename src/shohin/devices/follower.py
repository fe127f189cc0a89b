"""Steps that feed on each other's ids, picked or drawn, several in flight ahead of the host."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from shohin.devices.device import Device
from shohin.devices.step import Step
from shohin.devices.tape import Run

__all__ = ["STOPS", "Followed", "Follower", "release", "stop_words"]

# End ids that a device looks at by itself; the host looks at all of them.
STOPS = 63


class Followed(Protocol):
    """A compiled tape whose step table one run at a time may move on. follower: the run that does."""

    follower: Follower | None

    def upload(self, step: Step) -> None:
        """Copy a step into the table."""
        ...


class Follower(ABC):
    """One run that is ahead of its host. step: the first whose pick the host does not know; left: still to submit."""

    ahead: ClassVar[int]

    def __init__(self, device: Device, program: Followed, run: Run) -> None:
        self._device, self._program, self._step, self._left = device, program, run.step, run.count
        self._stops, self._begin = frozenset(run.stops), run.begin
        self._ready: list[tuple[int, int]] = []
        self._pending: list[Any] = []
        self._ended = False

    @abstractmethod
    def _start(self) -> None:
        """Hand the end ids to the device; the step table holds ``step`` already."""

    @abstractmethod
    def _submit(self) -> Any:
        """Enqueue one step; what ``_wait`` needs to find its pick."""

    @abstractmethod
    def _wait(self, pending: Any) -> tuple[int, int] | None:
        """(id, status) of a submitted step, or None where the run had ended before it."""

    def run(self) -> Iterator[tuple[int, int]]:
        """(id, status) of step after step, with up to ``ahead`` in flight."""
        try:
            while True:
                with self._device.lock:
                    self._fill()
                    if not self._ready and self._pending:
                        self._read()
                    if not self._ready:
                        return
                    found = self._ready.pop(0)
                yield found
        finally:
            self._left = 0

    def drain(self) -> None:
        """Read everything in flight, before somebody else uses the step table."""
        while self._pending:
            self._read()

    def _fill(self) -> None:
        """Enqueue steps up to the limit; after somebody else used the table, from where this run stands."""
        if self._ended or self._left == 0:
            return
        if self._program.follower is not self:
            if self._ready:
                return
            release(self._program)
            self._program.follower = self
            self._program.upload(self._step)
            self._start()
            self._begin()
        while self._left and len(self._pending) < self.ahead:
            self._device.submissions += 1
            self._pending.append(self._submit())
            self._left -= 1

    def _read(self) -> None:
        found = self._wait(self._pending.pop(0))
        if self._ended or found is None:
            self._ended = True
            return
        token, status = found
        self._ready.append(found)
        self._ended = status != 0 or token in self._stops
        if not self._ended:
            self._step = self._step.reading(token)


def release(program: Followed) -> None:
    """Let a run that is ahead of its host take what is in flight, before somebody else uses the step table."""
    if program.follower is not None:
        program.follower.drain()
        program.follower = None


def stop_words(stops: Sequence[int]) -> NDArray[np.int32]:
    """{count, ids...} as the kernels that move a step on read it; ids behind the first STOPS are left to the host."""
    words = np.zeros(1 + STOPS, np.int32)
    some = sorted(stops)[:STOPS]
    words[0], words[1 : 1 + len(some)] = len(some), some
    return words
