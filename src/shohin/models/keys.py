"""Typed access to a model's settings: every value is checked where it is read, and every message names its key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from shohin.errors import BadFile

LARGEST = 2**32 - 1


@dataclass(frozen=True)
class Keys:
    """values: key -> value as read. prefix: stands before each name (``qwen3.``). source: the file, for messages.

    witnesses: name -> a tensor that shows what the value should be, as messages say it.
    """

    values: Mapping[str, object]
    prefix: str
    source: str
    witnesses: Mapping[str, str] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.values

    def get(self, name: str) -> object:
        """The value as read, or None."""
        return self.values.get(self.prefix + name)

    def shown(self, name: str) -> str:
        """``key = value`` for a message, or ``key (absent)``."""
        return f"{self.prefix}{name} = {self.get(name)!r}" if name in self else f"{self.prefix}{name} (absent)"

    def bad(self, name: str, expected: str) -> BadFile:
        """The error for a key whose value is not ``expected``."""
        value = self.get(name)
        kind = f" ({type(value).__name__})" if name in self else ""
        witness = f" ({self.witnesses[name]})" if name in self.witnesses else ""
        return BadFile(f"{self.source}: {self.shown(name)}{kind}; {expected} was expected{witness}")

    def count(self, name: str, default: int | None = None, *, low: int = 1) -> int:
        """A whole number from ``low`` to 2^32 - 1; BadFile else, and when absent without a default."""
        value = self.get(name) if name in self else default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= LARGEST:
            raise self.bad(name, f"a whole number of at least {low}")
        return value

    def positive(self, name: str, default: float | None = None) -> float:
        """A finite number above zero; BadFile else, and when absent without a default."""
        value = self.get(name) if name in self else default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.bad(name, "a finite number above 0")
        return float(value)

    def text(self, name: str, default: str | None = None) -> str:
        """A string; BadFile else, and when absent without a default."""
        value = self.get(name) if name in self else default
        if not isinstance(value, str):
            raise self.bad(name, "a text")
        return value
