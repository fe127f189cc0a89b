"""Sizing what could grow faster than its operands, before it runs in a chat template.

What is not sized here makes at most a small multiple of what was measured already. Products of lengths are bounded
too, where the operation compares each character with each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext, Macro
from jinja2.utils import Cycler, Joiner, Namespace

from shohin.formats.text.budget import Budget, OverBudget

_MOST_WIDTH = 4096  # widths, precisions, indents and counts given as numbers
_MOST_INDENT = 16
_MOST_COMPARED = 1 << 28  # characters compared one by one in a single operation
_MOST_POWER = 4096  # bits

_PADDING = frozenset({"center", "ljust", "rjust", "zfill"})
# These look at each character of the text against each of the argument.
_PAIRWISE = frozenset({"strip", "lstrip", "rstrip", "rfind", "rindex", "rsplit", "rpartition"})


def check_operator(budget: Budget, operator: str, left: Any, right: Any) -> None:
    """``*`` of a sequence, ``**``, and ``%`` of a text; whole numbers are short already."""
    if operator == "**" and isinstance(left, int) and isinstance(right, int):
        if left.bit_length() * right > _MOST_POWER:
            raise OverBudget(f"a power of {left.bit_length() * right} bits, of which {_MOST_POWER} are allowed")
    elif operator == "*":
        for many, times in ((left, right), (right, left)):
            if isinstance(many, (str, list, tuple)) and isinstance(times, int):
                budget.allow(len(many) * times)
    elif operator == "%" and isinstance(left, str):
        _check_percent(budget, left, right)


def check_method(budget: Budget, text: str, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """A string method. ``join`` gets its argument as a list back, so that it is read only once."""
    first = args[0] if args else None
    if name == "join" and isinstance(first, Iterable):
        values = list(budget.each(first))
        budget.measure(values)
        budget.allow(len(text) * len(values))
        return (values, *args[1:])
    if name == "replace":
        _check_replace(budget, text, *args[:2])
    elif name in _PADDING and isinstance(first, int):
        budget.allow(first)
    elif name in _PAIRWISE and isinstance(first, str):
        _check_pairs(text, first)
    return args


def check_filter(budget: Budget, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """A filter's arguments, its subject first. Jinja's own objects are refused: filters would show their inside."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, (Namespace, Macro, LoopContext, Cycler, Joiner)):
            raise SecurityError(f"a {type(value).__name__} can't go through the filter {name!r}")
    if name in _NUMBERED:
        for number in (*args[1:], *kwargs.values()):
            if isinstance(number, int) and abs(number) > _MOST_WIDTH:
                raise OverBudget(f"a width or count of {number}, of which {_MOST_WIDTH} are allowed")
    if name in _SIZED:
        _SIZED[name](budget, *args, **kwargs)
    return args


def check_widths(form: str) -> None:
    """Widths and precisions in a format."""
    for digits in re.findall(r"\d+", form):
        if len(digits) > 9 or int(digits) > _MOST_WIDTH:
            raise OverBudget(f"a width of {digits[:20]}, of which {_MOST_WIDTH} are allowed")


def time_format(form: Any) -> str:
    """A format for ``strftime_now``, short and without wide fields."""
    if not isinstance(form, str) or len(form) > 256:
        raise SecurityError("strftime_now takes a format of at most 256 characters")
    check_widths(form)
    return form


def _check_percent(budget: Budget, form: str, values: Any) -> None:
    check_widths(form)
    if "*" in form:
        raise OverBudget("a width taken from an argument ('*')")
    budget.measure([values])
    parts = values.values() if isinstance(values, dict) else values if isinstance(values, tuple) else (values,)
    longest = max((len(str(part)) for part in parts), default=0)
    budget.allow(len(form) + form.count("%") * (longest + (_MOST_WIDTH if re.search(r"\d", form) else 0)))


def _check_pairs(text: str, other: str) -> None:
    if len(text) * len(other) > _MOST_COMPARED:
        raise OverBudget(f"a search of {len(other)} characters, one by one, in {len(text)}")


def _check_replace(budget: Budget, text: Any, old: Any = "", new: Any = "", *_: Any, **__: Any) -> None:
    text, old, new = str(text), str(old), str(new)
    budget.allow(len(text) + (text.count(old) if old else len(text) + 1) * len(new))


def _check_indent(budget: Budget, text: Any, width: Any = 4, *_: Any, **__: Any) -> None:
    budget.allow((str(text).count("\n") + 1) * (len(width) if isinstance(width, str) else int(width)))


def _check_sum(budget: Budget, values: Any, attribute: Any = None, start: Any = 0) -> None:
    if not isinstance(start, (int, float)):
        raise OverBudget("a sum of anything but numbers")


def _check_format(budget: Budget, form: Any, *args: Any, **kwargs: Any) -> None:
    _check_percent(budget, str(form), kwargs or args)


def _check_trim(budget: Budget, text: Any, chars: Any = None) -> None:
    if isinstance(chars, str):
        _check_pairs(str(text), chars)


def _check_json(
    budget: Budget, value: Any, ensure_ascii: Any = False, indent: Any = None, separators: Any = None, **_: Any
) -> None:
    if indent is not None:
        spaces = len(indent) if isinstance(indent, str) else int(indent)
        if spaces > _MOST_INDENT:
            raise OverBudget(f"an indent of {spaces}, of which {_MOST_INDENT} are allowed")
        budget.allow(64 * spaces * budget.count(value))
    for separator in separators or ():
        if len(str(separator)) > _MOST_INDENT:
            raise OverBudget(f"a separator longer than {_MOST_INDENT} characters")


_NUMBERED = frozenset({"batch", "indent", "round", "slice"})
_SIZED: dict[str, Callable[..., None]] = {
    "format": _check_format,
    "indent": _check_indent,
    "replace": _check_replace,
    "sum": _check_sum,
    "tojson": _check_json,
    "trim": _check_trim,
}
