"""The tape: a forward pass recorded once as a flat list of calls, then played with one submission a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from shohin.devices.buffer import Buffer, Weight
from shohin.devices.step import Step
from shohin.errors import BadShape, BadState

if TYPE_CHECKING:
    from shohin.devices.device import Device

Operand = Buffer | Weight | None


class Op(Protocol):
    """One phase: a frozen dataclass of compile-time constants in the room ``kernels``.

    name is the key under which a device finds its kernel.
    """

    name: ClassVar[str]

    def parameters(self) -> tuple[Sequence[int], Sequence[float]]:
        """The constants a compiled kernel needs, in the order that the op's docstring gives."""
        ...

    def check(self, operands: Sequence[Operand], step: Step) -> None:
        """Refuse a step that would index outside an operand, before anything is written.

        It may depend on the op's constants, the operands' shapes and the step: calls alike in these are asked once.
        """
        ...

    def reference(self, operands: Sequence[Any], step: Step) -> None:
        """The meaning of the op in NumPy, written into its outputs in place.

        A scratch operand is an array of the tape's full row capacity; only its first ``step.rows`` rows count.
        """
        ...


@dataclass(frozen=True, eq=False)
class Call:
    """An op bound to its operands. ``writes`` are indexes into operands; ``section`` groups calls in profiles."""

    op: Op
    operands: tuple[Operand, ...]
    writes: tuple[int, ...]
    section: str


@dataclass(frozen=True)
class Timing:
    """Of one submission, in seconds: encoding it on the host, then from submit to completion, or by the device's own
    clock where it has one; and of each call by that clock, where that was asked for.
    """

    encode: float
    device: float
    calls: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class Ticket:
    """What a play brought back: ``outputs`` by name, each holding the live rows only.

    encode_seconds: host time before the submission; device_seconds: from submit to completion, or by the device's own
    clock (``Timing``); calls: seconds of each call of the tape, from a profile on a device with such a clock.
    """

    outputs: dict[str, NDArray[Any]]
    encode_seconds: float
    device_seconds: float
    calls: tuple[float, ...] = ()

    def __getitem__(self, name: str) -> NDArray[Any]:
        """The named output; BadState if it was not fetched."""
        try:
            return self.outputs[name]
        except KeyError:
            raise BadState(f"output {name!r} was not fetched; fetched: {sorted(self.outputs)}") from None


@dataclass(frozen=True, eq=False)
class Run:
    """One-row steps that feed on each other's ids: the first of them, how many at most, and the ids that end it.

    begin: called with nothing of this run in flight, before its first step and again after somebody else has used the
    tape in between; it puts what the steps read beside their table onto the device.
    """

    step: Step
    count: int
    stops: Sequence[int] = ()
    begin: Callable[[], None] = lambda: None


@dataclass
class Recorder:
    """Collects calls; ``finish`` plans scratch memory and hands the tape to the device.

    role names the tape in messages and profiles. rows is its row capacity, wanted its capacity of output rows.
    """

    device: Device
    role: str
    rows: int
    wanted: int
    calls: list[Call] = field(default_factory=list)
    outputs: dict[str, tuple[Buffer, str]] = field(default_factory=dict)
    _section: str = "all"

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Calls added inside belong to this section of the profile."""
        before, self._section = self._section, name
        try:
            yield
        finally:
            self._section = before

    def scratch(self, name: str, shape: tuple[int, ...], dtype: DTypeLike | None = None) -> Buffer:
        """A buffer that lives inside the tape only; its memory may be shared with others whose lives don't overlap."""
        kind = self.device.float_type if dtype is None else np.dtype(dtype)
        return Buffer(self.device, name, shape, kind)

    def output(self, name: str, buffer: Buffer, rows: str) -> None:
        """Let plays fetch ``buffer`` under ``name``; rows (``rows``, ``wanted`` or ``all``) says which part is live."""
        if name in self.outputs:
            raise BadState(f"tape {self.role!r}: output {name!r} is declared twice")
        self.outputs[name] = (buffer, rows)

    def add(self, op: Op, operands: Sequence[Operand], writes: Sequence[int]) -> None:
        """Append a call whose shapes the op's own recording function has checked."""
        self.calls.append(Call(op, tuple(operands), tuple(writes), self._section))

    def finish(self) -> Tape:
        """Plan scratch, let the device compile, and return the tape."""
        return Tape(self.device, self.role, self.rows, self.wanted, tuple(self.calls), dict(self.outputs))


class Tape:
    """A recorded pass. ``play`` is exactly one submission; ``profile`` is one submission per section."""

    def __init__(
        self,
        device: Device,
        role: str,
        rows: int,
        wanted: int,
        calls: tuple[Call, ...],
        outputs: dict[str, tuple[Buffer, str]],
    ) -> None:
        if not calls:
            raise BadShape(f"tape {role!r} has no calls")
        self.device, self.role, self.rows, self.wanted = device, role, rows, wanted
        self.calls, self.outputs = calls, outputs
        kept = {id(buffer) for buffer, _ in outputs.values()}
        self.scratch_bytes = device.plan(calls, kept)
        self._checks = _distinct_checks(calls)
        self._program = device.compile(calls, rows, wanted)

    def play(self, step: Step, fetch: Sequence[str] = (), *, timed: bool = False) -> Ticket:
        """One submission: run every call, then copy the outputs named in ``fetch``. Concurrent callers wait.

        timed: by the device's own clock where it has one, and encoding apart, which costs a little.
        """
        with self.device.lock:
            begin = perf_counter()
            self._check(step)
            submit = perf_counter()
            if timed:
                found = self._timed(0, len(self.calls), step, apart=False)
            else:
                self._submit(0, len(self.calls), step)
                found = Timing(0.0, perf_counter() - submit)
            return Ticket(self._collect(step, fetch), submit - begin + found.encode, found.device)

    def follow(self, run: Run) -> Iterator[tuple[int, int]]:
        """(id, status) of up to ``run.count`` one-row steps, each reading the id that the one before chose.

        The tape has outputs ``ids`` and ``status``; the step's pages hold the positions of all steps. The run ends
        after an id in ``run.stops`` and after a status that is not 0. A device may have several steps in flight ahead
        of the caller; what they write lies behind the positions that the caller has seen, so it is never read.
        """
        with self.device.lock:
            self._check(run.step)
            self._check(run.step.moved(run.count - 1))
        yield from self.device.follow(self, self._program, run)

    def profile(self, step: Step, fetch: Sequence[str] = ()) -> tuple[Ticket, list[tuple[str, float]]]:
        """As ``play``, with one submission per section and its seconds, encoding excluded (S0.32, S0.35)."""
        with self.device.lock:
            begin = perf_counter()
            self._check(step)
            encode = perf_counter() - begin
            names, found = [], []
            for name, first, last in self.sections():
                names.append(name)
                found.append(self._timed(first, last, step, apart=True))
            encode += sum(one.encode for one in found)
            calls = tuple(seconds for one in found for seconds in one.calls)
            ticket = Ticket(self._collect(step, fetch), encode, sum(one.device for one in found), calls)
            return ticket, [(name, one.device) for name, one in zip(names, found, strict=True)]

    def sections(self) -> list[tuple[str, int, int]]:
        """Runs of calls of one section: (name, first call, one past the last)."""
        runs: list[tuple[str, int, int]] = []
        for i, call in enumerate(self.calls):
            if runs and runs[-1][0] == call.section:
                runs[-1] = (call.section, runs[-1][1], i + 1)
            else:
                runs.append((call.section, i, i + 1))
        return runs

    def _check(self, step: Step) -> None:
        if step.rows > self.rows or len(step.wanted) > self.wanted:
            raise BadShape(
                f"tape {self.role!r} holds {self.rows} rows and {self.wanted} output rows; "
                f"the step has {step.rows} and {len(step.wanted)}"
            )
        for call in self._checks:
            call.op.check(call.operands, step)

    def _submit(self, first: int, last: int, step: Step) -> None:
        self.device.submissions += 1
        self.device.run(self._program, first, last, step)

    def _timed(self, first: int, last: int, step: Step, *, apart: bool) -> Timing:
        self.device.submissions += 1
        return self.device.timed(self._program, first, last, step, apart)

    def _collect(self, step: Step, fetch: Sequence[str]) -> dict[str, NDArray[Any]]:
        values: dict[str, NDArray[Any]] = {}
        for name in fetch:
            if name not in self.outputs:
                raise BadState(f"tape {self.role!r} has no output {name!r}; it has {sorted(self.outputs)}")
            buffer, rows = self.outputs[name]
            live = {"rows": step.rows, "wanted": len(step.wanted), "all": buffer.shape[0]}[rows]
            values[name] = self.device.read(buffer, live)
        return values


def _distinct_checks(calls: Sequence[Call]) -> list[Call]:
    """One call for each check: what an op asks of a step depends on its constants and on its operands' shapes only."""
    found: dict[Any, Call] = {}
    for call in calls:
        found.setdefault((type(call.op), call.op, tuple(o and (type(o), o.shape) for o in call.operands)), call)
    return list(found.values())
