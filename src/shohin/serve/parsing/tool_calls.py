"""Tool calls in a model's answer: ``<tool_call>`` JSON ``</tool_call>``, as Qwen models write them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
_SPACE = " \t\n\r"
# Characters that JSON has outside its strings; anything else ends the hope that this is a call.
_OUTSIDE = frozenset('{}[]:,"+-.0123456789truefalsenullE' + _SPACE)
_LONGEST = 1 << 20  # characters in one call


@dataclass(frozen=True)
class ToolCall:
    """index: 0, 1, ... in order. arguments: a JSON object, as the model wrote it."""

    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Parsed:
    """What became certain: text of the answer, and whole calls."""

    content: str = ""
    calls: tuple[ToolCall, ...] = ()


class ToolCallParser:
    """Finds calls in the answer (never in the thinking: feed it content only). Nothing is ever evaluated.

    A call is handed out when it is complete and sound, so that something that turns out not to be one comes back as the
    text it was, the same streamed and whole. Blank space next to a call belongs to neither call nor answer.
    """

    def __init__(self, *, enabled: bool = True, new_id: Callable[[], str] | None = None) -> None:
        """enabled False (``tool_choice`` "none"): everything is text. new_id: makes the call ids."""
        self._enabled = enabled
        self._new_id = new_id or _random_id
        self._pending = ""  # not decided yet
        self._scan: _Scan | None = None  # inside a possible call, which starts at the beginning of _pending
        self._blank = ""  # space that is left out if a call follows
        self._after_call = False  # no text since the last call
        self.calls = 0

    def push(self, text: str) -> Parsed:
        """Text of the answer, cut anywhere."""
        if not self._enabled:
            return Parsed(content=text)
        self._pending += text
        return self._advance(final=False)

    def finish(self) -> Parsed:
        """The end of the answer: an unfinished call is text."""
        parsed = self._advance(final=True)
        blank, self._blank = self._blank, ""
        return parsed if self._after_call else Parsed(parsed.content + blank, parsed.calls)

    def _advance(self, final: bool) -> Parsed:
        content: list[str] = []
        calls: list[ToolCall] = []
        while self._pending:
            if self._scan is None:
                content.append(self._plain(final))
                if self._scan is None:
                    break
            end = self._scan.feed(self._pending)
            if end is None and not final:
                break
            call = None if end is None or end < 0 else self._call(self._pending[len(_OPEN) : end - len(_CLOSE)])
            self._scan = None
            if call is None:
                content.append(self._text(self._pending[: len(_OPEN)]))
                self._pending = self._pending[len(_OPEN) :]
            else:
                calls.append(call)
                self._blank, self._after_call = "", True
                self._pending = self._pending[end:]
        return Parsed("".join(content), tuple(calls))

    def _plain(self, final: bool) -> str:
        """Text up to the next opening tag or what may become one; starts the scan where there is a tag."""
        at = self._pending.find(_OPEN)
        if at >= 0:
            self._scan = _Scan(len(_OPEN))
        else:
            at = len(self._pending) - (0 if final else _overlap(self._pending, _OPEN))
        text, self._pending = self._pending[:at], self._pending[at:]
        return self._text(text)

    def _text(self, text: str) -> str:
        text = self._blank + text
        said = text.rstrip(_SPACE)
        self._blank = text[len(said) :]
        self._after_call = self._after_call and not said
        return said

    def _call(self, body: str) -> ToolCall | None:
        found = _name_and_arguments(body)
        if found is None:
            return None
        call = ToolCall(self.calls, self._new_id(), *found)
        self.calls += 1
        return call


class _Scan:
    """Follows JSON's brackets and strings to the end of one object, then the closing tag, without reading twice."""

    def __init__(self, at: int) -> None:
        self._at = at
        self._depth = 0
        self._string = False
        self._escaped = False
        self._done = False

    def feed(self, text: str) -> int | None:
        """Where the call ends in ``text``, -1 if it is none, None if that is still open."""
        if len(text) > _LONGEST:
            return -1
        while self._at < len(text):
            if self._done:
                return self._tag(text)
            if not self._take(text[self._at]):
                return -1
            self._at += 1
        return None

    def _tag(self, text: str) -> int | None:
        while self._at < len(text) and text[self._at] in _SPACE:
            self._at += 1
        rest = text[self._at : self._at + len(_CLOSE)]
        if rest == _CLOSE:
            return self._at + len(_CLOSE)
        return None if _CLOSE.startswith(rest) else -1

    def _take(self, character: str) -> bool:
        if self._string:
            self._string = self._escaped or character != '"'
            self._escaped = character == "\\" and not self._escaped
            return True
        if character not in _OUTSIDE or (self._depth == 0 and character not in "{" + _SPACE):
            return False
        self._string = character == '"'
        self._depth += (character in "{[") - (character in "}]")
        self._done = self._depth == 0 and character == "}"
        return True


def _name_and_arguments(body: str) -> tuple[str, str] | None:
    """Name and arguments of a call, the arguments as they stand in the text; None unless it is a sound call."""
    try:
        members = _members(body.strip(_SPACE))
    except (ValueError, RecursionError):
        return None
    name = members.get("name", (None, ""))[0]
    arguments, source = members.get("arguments", ({}, "{}"))
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    try:
        name.encode()
    except UnicodeEncodeError:  # an escape for half a surrogate pair
        return None
    return name, source


def _members(text: str) -> dict[str, tuple[Any, str]]:
    """Members of a JSON object: key -> value and the text it was read from. ValueError where it is none."""
    if not isinstance(_JSON.decode(text), dict):
        raise ValueError("not an object")
    members: dict[str, tuple[Any, str]] = {}
    at = _skip(text, 1)
    while text[at] != "}":
        key, at = _JSON.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)
        value, end = _JSON.raw_decode(text, start)
        if key in members:
            raise ValueError(f"{key!r} stands twice")
        members[key] = (value, text[start:end])
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at
    return members


def _skip(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(parse_constant=_no_constant)


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of the text that is a beginning of the tag."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n])), 0)


def _random_id() -> str:
    return f"call_{secrets.token_hex(12)}"
