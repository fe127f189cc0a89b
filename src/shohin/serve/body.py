"""JSON from outside, read strictly: what Python's reader lets pass is refused here (C21)."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from shohin.errors import BadRequest

__all__ = ["parse_object"]

DEEPEST = 128


def parse_object(raw: bytes | str) -> dict[str, Any]:
    """A JSON object. BadRequest for broken JSON or UTF-8, half surrogate pairs, NaN, infinities and numbers that
    overflow to them, a key given twice, numbers of thousands of digits, and nesting deeper than 128.

    Where the fault lies inside one member of the object, ``param`` names that member.
    """
    try:
        text = raw.decode("utf-8") if isinstance(raw, bytes) else raw
        found = json.loads(text, object_pairs_hook=_members)
    except UnicodeDecodeError as error:
        raise _broken(f"byte {error.start} is not UTF-8") from None
    except RecursionError:
        raise _broken(f"it is nested more than {DEEPEST} deep") from None
    except ValueError as error:
        raise _broken(str(error)) from None
    if not isinstance(found, dict):
        raise _broken(f"it is a {type(found).__name__}, an object was expected")
    for name, value in found.items():
        _check_text(name, None)
        _check(name, value)
    return found


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise BadRequest(f"{twice[:60]!r} is given twice in one object", param=twice[:60], code="invalid_json")
    return members


def _check(name: str, value: Any) -> None:
    """Every value under a member, without recursion: the reader's own limit on depth differs between versions."""
    pending = [(value, 1)]
    while pending:
        item, depth = pending.pop()
        if depth > DEEPEST:
            raise _broken(f"{name[:60]} is nested more than {DEEPEST} deep", name[:60])
        if isinstance(item, float) and not abs(item) < float("inf"):
            raise _broken(f"{name[:60]} holds {item}, which is no JSON number", name[:60])
        if isinstance(item, str):
            _check_text(item, name[:60])
        elif isinstance(item, list):
            pending.extend((entry, depth + 1) for entry in item)
        elif isinstance(item, dict):
            for key, entry in item.items():
                _check_text(key, name[:60])
                pending.append((entry, depth + 1))


def _check_text(text: str, name: str | None) -> None:
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        raise _broken(f"character {error.start} of a text is half a surrogate pair", name) from None


def _broken(why: str, param: str | None = None) -> BadRequest:
    return BadRequest(f"the body is not valid JSON for this request: {why}", param=param, code="invalid_json")
