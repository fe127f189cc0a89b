"""Conversations to text, and to spans that tell the template's control tokens from everything else.

A template writes control tokens and content into one string. To know which is which afterwards, the control tokens
among the template's own fixed texts are swapped for private marks (random characters from a private-use plane), the
template is rendered with them, and the marks are read back as ids. Content can't spell a mark, so nothing it holds can
become a control token, not even together with its neighbours.

Two things could go wrong and are checked rather than assumed. A template may look at its own control tokens (compare,
split, measure): then the rendering with the marks undone differs from the plain one. And a template may put a control
token together from pieces (``'<|' + role + '|>'``): then the rendering still holds the text of one. In both cases
the characters that control tokens begin or end with are marked in the content instead; what then still reads as a
control token begins and ends in the template. When no way gives the plain rendering again, the request is refused.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from shohin.errors import BadFile, BadRequest
from shohin.formats.text.conversation import messages_for, plain
from shohin.formats.text.markers import Markers
from shohin.formats.text.template import ChatTemplate

Span = str | int
_NONCE = 8  # private characters: some 2^127 possibilities
_ZERO = 0x100100  # marks are numbered with two digits of 12 bits, private characters from here on
_BASE = 1 << 12
_LETTERS = 0x110000  # numbers below are characters, from here on control pieces
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt"})


class ChatEncoder:
    """Renders conversations for one model. Templates compile on first use: a broken one hinders nothing else."""

    def __init__(
        self, controls: Mapping[str, int], names: Mapping[str, str], templates: Mapping[str, str], source: str
    ) -> None:
        """controls: control pieces to ids. names: ``bos_token`` and its like, which templates may write by name."""
        self._controls = controls
        self._names = names
        self._templates = templates
        self._source = source
        self._found = Markers(controls)
        self._marks = _Marks(sorted(controls))
        self._edges = frozenset(c for piece in controls for c in (piece[0], piece[-1]))
        self._compiled: dict[tuple[str, bool], ChatTemplate] = {}

    def render(self, messages: object, tools: object, prompt: bool, options: Mapping[str, object]) -> str:
        """The conversation as the template writes it."""
        return self._plainly(_Request(messages, tools, prompt, options))[0]

    def spans(self, messages: object, tools: object, prompt: bool, options: Mapping[str, object]) -> list[Span]:
        """Text and control ids in order; joined, with ids as their pieces, they are the rendering."""
        expected, request = self._plainly(_Request(messages, tools, prompt, options))
        for way in _WAYS:
            spans = self._try(way, request)
            if spans is not None and "".join(map(self._text, spans)) == expected:
                return spans
        raise BadRequest(
            f"{self._source}: the messages hold control tokens or parts of them, and the chat template handles them in "
            f"a way that leaves unclear which ones are its own; remove them, or set allow_control_in_content",
            param="messages",
            code="control_in_content",
        )

    def refuse_unread(self, messages: object, tools: object, prompt: bool, options: Mapping[str, object]) -> None:
        """BadRequest for tools and options that the template never looks at, None and False aside: those ask for
        nothing. ``render`` itself takes everything, as transformers does.
        """
        request = _Request(messages, tools, prompt, options)
        reads = self._template(self._name(request), marked=False).reads
        asked = {"tools": request.tools or None, **request.options}
        unread = [
            name for name, value in asked.items() if value is not None and value is not False and name not in reads
        ]
        if unread:
            raise BadRequest(
                f"{self._source}: {unread[0]} would have no effect: this model's chat template does not use it; "
                f"leave it out",
                param=unread[0],
                code="unsupported_parameter",
            )

    def _plainly(self, request: _Request) -> tuple[str, _Request]:
        """The plain rendering, and the request that gave it.

        An answer that consists of tool calls has null content in OpenAI's form. Templates see no content then, as in
        transformers; those that can't do without get an empty text.
        """
        try:
            return self._rendering(request, marked=False), request
        except BadRequest:
            if request.filled or not request.lacks_content():
                raise
            return self._plainly(request.with_empty_content())

    def _try(self, way: _Way, request: _Request) -> list[Span] | None:
        """Spans by one way of marking; None where it fails or leaves doubt."""
        try:
            text = self._rendering(request, way.template, self._change(way.content))
        except (BadRequest, BadFile):
            return None
        spans: list[Span] = []
        for piece in self._marks.split(text):
            if isinstance(piece, int):
                spans.append(self._controls[self._marks.pieces[piece]])
                continue
            for part in self._found.split(piece):
                if isinstance(part, int) and way.content != "edges":
                    return None
                spans.append(part if isinstance(part, int) else self._marks.undo(part))
        return _joined(spans)

    def _change(self, content: str) -> Callable[[str], str]:
        if content == "edges":
            hidden = re.compile("[" + re.escape("".join(sorted(self._edges))) + "]") if self._edges else None
            return (lambda text: hidden.sub(lambda m: self._marks.hide(m[0]), text)) if hidden else str
        if content == "pieces":
            return lambda text: "".join(
                part if isinstance(part, str) else self._marks.hide(self._text(part))
                for part in self._found.split(text)
            )
        return str

    def _rendering(self, request: _Request, marked: bool, change: Callable[[str], str] = str) -> str:
        names = {k: self._mark_literals(v) if marked else v for k, v in self._names.items()}
        return self._template(self._name(request), marked).render({**names, **request.variables(change)}, request.now)

    def _name(self, request: _Request) -> str:
        """Which of the templates this request gets."""
        return "tool_use" if request.tools is not None and "tool_use" in self._templates else "default"

    def _template(self, name: str, marked: bool) -> ChatTemplate:
        if name not in self._templates:
            raise BadRequest(
                f"{self._source}: this model has no chat template; give a plain prompt instead (--raw)",
                param="messages",
                code="no_chat_template",
            )
        if (name, marked) not in self._compiled:
            origin = f"{self._source}: tokenizer.chat_template" + ("" if name == "default" else f".{name}")
            literal = self._mark_literals if marked else None
            self._compiled[name, marked] = ChatTemplate(self._templates[name], origin, literal=literal)
        return self._compiled[name, marked]

    def _mark_literals(self, text: str) -> str:
        return "".join(p if isinstance(p, str) else self._marks.mark(self._text(p)) for p in self._found.split(text))

    def _text(self, span: Span) -> str:
        return span if isinstance(span, str) else self._spelled[span]

    @cached_property
    def _spelled(self) -> dict[int, str]:
        return {token: piece for piece, token in self._controls.items()}


@dataclass(frozen=True)
class _Way:
    """template: mark its control tokens. content: hide ``nothing``, the ``edges`` of control tokens, or ``pieces``."""

    template: bool
    content: str


_WAYS = (_Way(True, "nothing"), _Way(True, "edges"), _Way(True, "pieces"), _Way(False, "edges"))


class _Request:
    """One conversation to render, checked on construction. All renderings of it see the same time."""

    def __init__(
        self, messages: object, tools: object, prompt: bool, options: Mapping[str, object], filled: bool = False
    ) -> None:
        clash = _RESERVED.intersection(options)
        if clash:
            raise BadRequest(f"{sorted(clash)[0]} can't be a template option", param=sorted(clash)[0])
        if tools is not None and not isinstance(tools, (list, tuple)):
            raise BadRequest(f"tools is a {type(tools).__name__}; a list was expected", param="tools")
        self.messages = messages_for(messages)
        self.tools = tools
        self.prompt = prompt
        self.options = options
        self.filled = filled
        self.now = datetime.now()

    def lacks_content(self) -> bool:
        """Whether an answer of the assistant has no content."""
        return any(m["role"] == "assistant" and "content" not in m for m in self.messages)

    def with_empty_content(self) -> _Request:
        """The same with empty text where an answer has no content."""
        messages = [m if m["role"] != "assistant" else {**m, "content": m.get("content", "")} for m in self.messages]
        return _Request(messages, self.tools, self.prompt, self.options, filled=True)

    def variables(self, change: Callable[[str], str]) -> dict[str, Any]:
        """What the template sees: fresh copies, each string changed."""
        return {
            "messages": messages_for(self.messages, change),
            "tools": plain(self.tools, "tools", change),
            "documents": None,
            "add_generation_prompt": self.prompt,
            **{name: plain(value, name, change) for name, value in self.options.items()},
        }


class _Marks:
    """Private stand-ins: a random run of characters that nobody outside can know, then a number."""

    def __init__(self, pieces: Sequence[str]) -> None:
        """pieces: what may be marked."""
        nonce = "".join(chr(0xF0000 + secrets.randbelow(0xFFFE)) for _ in range(_NONCE))
        self.pieces = pieces
        self._shown = nonce + chr(0x100000)
        self._hidden = nonce + chr(0x100001)
        self._number = {piece: i for i, piece in enumerate(pieces)}
        digits = f"([{chr(_ZERO)}-{chr(_ZERO + _BASE - 1)}]{{2}})"
        self._mark = re.compile(self._shown + digits)
        self._hide = re.compile(self._hidden + digits)

    def mark(self, piece: str) -> str:
        """The stand-in for a control token that the template wrote."""
        return self._shown + _digits(self._number[piece])

    def hide(self, text: str) -> str:
        """The stand-in for a control token, or a single character, in the content."""
        return self._hidden + _digits(_LETTERS + self._number[text] if text in self._number else ord(text))

    def undo(self, text: str) -> str:
        """Hidden text back in its place."""
        return self._hide.sub(self._reveal, text)

    def split(self, text: str) -> list[str | int]:
        """Text and marked pieces in order, a piece as its place in ``pieces``."""
        parts: list[str | int] = []
        for index, part in enumerate(self._mark.split(text)):
            if index % 2:
                parts.append(_number(part))
            elif part:
                parts.append(part)
        return parts

    def _reveal(self, match: re.Match[str]) -> str:
        number = _number(match[1])
        return chr(number) if number < _LETTERS else self.pieces[number - _LETTERS]


def _digits(number: int) -> str:
    return chr(_ZERO + number // _BASE) + chr(_ZERO + number % _BASE)


def _number(digits: str) -> int:
    return (ord(digits[0]) - _ZERO) * _BASE + ord(digits[1]) - _ZERO


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Neighbouring texts as one, so that words are not cut where two spans meet."""
    joined: list[Span] = []
    for span in spans:
        last = joined[-1] if joined else 0
        if isinstance(span, str) and isinstance(last, str):
            joined[-1] = last + span
        else:
            joined.append(span)
    return joined
