"""What one rendering may use: processor time, steps, and characters."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import Undefined

_TIMED_EVERY = 64  # steps between two looks at the clock
_MOST_BITS = 4096  # longest whole number
_LONG = 4096  # characters; an operation on more is worth a look at the clock of its own
_ELEMENT = 16  # an element of a container takes as much as so many characters


class OverBudget(SecurityError):
    """A template asked for more time or text than a rendering may use."""


@dataclass(frozen=True)
class TemplateLimits:
    """seconds: processor time of one rendering. steps: loop rounds, calls, filters and operators together.

    value: characters of any one value, containers counted with all that they hold. elements: of any one container.
    output: characters of the result. total: characters and elements of all values ever made, which bounds memory.
    """

    seconds: float = 5.0
    steps: int = 20_000_000
    value: int = 8 << 20
    elements: int = 1 << 20
    output: int = 16 << 20
    total: int = 256 << 20


class Budget:
    """Counts what a rendering uses and raises OverBudget when it is too much. For one rendering, one thread."""

    def __init__(self, limits: TemplateLimits, now: datetime | None = None) -> None:
        """now: the moment of the rendering, as templates see it."""
        self.limits = limits
        self.now = now or datetime.now()
        self._steps = 0
        self._total = 0
        self._ends = time.thread_time() + limits.seconds

    def step(self, *operands: Any) -> None:
        """One round, call, filter or operator; large operands make it look at the clock before it runs."""
        self._steps += 1
        if self._steps > self.limits.steps:
            raise OverBudget(f"more than {self.limits.steps} steps")
        if self._steps % _TIMED_EVERY == 0 or any(map(_takes_time, operands)):
            self._watch()

    def charge(self, size: int) -> None:
        """Characters or elements that came into being."""
        self._total += size
        if self._total > self.limits.total:
            raise OverBudget(f"more than {self.limits.total} characters made on the way")

    def allow(self, size: int) -> None:
        """Refuse a value of this size before it is made."""
        if size > self.limits.value:
            raise OverBudget(f"a value of {size} characters, of which {self.limits.value} are allowed")

    def measure(self, value: Any) -> Any:
        """Charge a fresh value, refuse it if it is too large, and hand it on."""
        if isinstance(value, str):
            self.allow(len(value))
            self.charge(len(value))
        elif isinstance(value, int):
            if value.bit_length() > _MOST_BITS:
                raise OverBudget(f"a number of {value.bit_length()} bits, of which {_MOST_BITS} are allowed")
        elif isinstance(value, (list, tuple, dict)):
            self.charge(_ELEMENT * self.count(value))
        return value

    def compared(self, value: Any) -> Any:
        """An operand of a comparison: a step. What would be searched element by element counts its rounds."""
        self.step(value)
        lazy = isinstance(value, Iterable) and not isinstance(value, (str, list, tuple, Mapping, Undefined))
        return self.each(value) if lazy and not isinstance(value, range) else value

    def each(self, items: Iterable[Any], written: int = 0) -> Counted:
        """The iterable, counting each round and the ``written`` characters of fixed text in its body."""
        return Counted(items, self, written)

    def count(self, container: Any) -> int:
        """Elements of a container with all that it holds, shared parts counted as often as they appear.

        A container of anything but data is refused: the inside of Jinja's own objects has no known size.
        """
        elements, size, waiting = 0, 0, [container]
        while waiting:
            value = waiting.pop()
            elements += 1
            if isinstance(value, str):
                size += len(value)
                self.allow(size)
            elif isinstance(value, (list, tuple, Mapping)):
                parts = 2 * len(value) if isinstance(value, Mapping) else len(value)
                if elements + len(waiting) + parts > self.limits.elements:
                    raise OverBudget(f"a list or dict of more than {self.limits.elements} elements")
                waiting.extend(value)
                waiting.extend(value.values() if isinstance(value, Mapping) else ())
            elif value is not None and not isinstance(value, (int, float, range, Undefined)):
                raise SecurityError(f"a {type(value).__name__} inside a list or dict")
        self._steps += elements // _TIMED_EVERY
        self._watch()
        return elements

    def _watch(self) -> None:
        if time.thread_time() > self._ends:
            raise OverBudget(f"more than {self.limits.seconds} s of processor time")


def _takes_time(value: Any) -> bool:
    # How much a container holds inside is not known without counting, which would take longer than the clock does.
    return len(value) > _LONG if isinstance(value, str) else isinstance(value, (list, tuple, Mapping, range))


class Counted:
    """An iterable that counts its rounds."""

    def __init__(self, items: Iterable[Any], budget: Budget, written: int) -> None:
        self._items = items
        self._budget = budget
        self._written = written

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._budget.step()
            self._budget.charge(self._written)
            yield item

    def __len__(self) -> int:
        if not isinstance(self._items, Sized):
            raise TypeError(f"{type(self._items).__name__} has no length")
        return len(self._items)


_current: ContextVar[Budget] = ContextVar("budget")


@contextmanager
def spending(budget: Budget) -> Iterator[Budget]:
    """Let everything that templates do in this thread count against the budget."""
    token = _current.set(budget)
    try:
        yield budget
    finally:
        _current.reset(token)


def current() -> Budget:
    """The budget of the rendering in progress."""
    return _current.get()
