"""Telling a model's thinking from its answer, by token id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Said:
    """Text that became certain: part of the thinking, part of the answer."""

    reasoning: str = ""
    content: str = ""


class _Place(Enum):
    BEFORE = "no thinking yet"
    INSIDE = "thinking"
    AFTER = "thinking is over"


class ThinkingSplitter:
    """Splits at the ids of ``<think>`` and ``</think>``; text that merely looks like them stays text.

    Thinking happens at most once. It begins at the first opening id (or did in the prompt) and ends at the next
    closing id; later markers are text of the answer. Newlines around the thinking, and before the answer that follows
    it, belong to neither, as in the templates. Joined pieces are the same however the text comes.
    """

    def __init__(self, markers: tuple[int, int] | None, *, prompt_opened: bool = False) -> None:
        """markers: ids of the opening and closing token, None for a model that has none: all is answer.

        prompt_opened: the prompt ended inside the thinking (see ``opens_thinking``).
        """
        self._open: int | None = markers[0] if markers else None
        self._close: int | None = markers[1] if markers else None
        self._place = _Place.INSIDE if prompt_opened else _Place.BEFORE
        self._begun = False  # something other than newlines was said in the place we are in
        self._newlines = ""  # may belong to the thinking, unless it ends here

    def push(self, token: int, text: str) -> Said:
        """One generated id with the text the stream decoder gave for it.

        For a marker that text ends in the marker itself; what stands before it was held back by the decoder and belongs
        to the text before the marker.
        """
        if token == self._open and self._place is _Place.BEFORE:
            return self._turn(_Place.INSIDE, text, "<think>")
        if token == self._close and self._place is _Place.INSIDE:
            return self._turn(_Place.AFTER, text, "</think>")
        if token == self._open and self._place is _Place.INSIDE and not self._begun:
            return self._say(text.removesuffix("<think>"))  # the prompt had opened it already
        return self._say(text)

    def finish(self, rest: str = "") -> Said:
        """The end; ``rest`` is what the stream decoder flushed. Newlines that end the thinking are left out."""
        return self._say(rest)

    @property
    def thinking(self) -> bool:
        """Whether the text so far ends inside the thinking: the answer has not begun."""
        return self._place is _Place.INSIDE

    def _turn(self, place: _Place, text: str, marker: str) -> Said:
        said = self._say(text.removesuffix(marker))
        self._place, self._begun, self._newlines = place, False, ""
        return said

    def _say(self, text: str) -> Said:
        if self._place is _Place.BEFORE:
            return Said(content=text)
        if not self._begun:
            text = text.lstrip("\n")
        self._begun = self._begun or bool(text)
        if self._place is _Place.AFTER:
            return Said(content=text)
        text = self._newlines + text
        said = text.rstrip("\n")
        self._newlines = text[len(said) :]
        return Said(reasoning=said)


def opens_thinking(prompt: Sequence[int], markers: tuple[int, int] | None, bytes_of: Callable[[int], bytes]) -> bool:
    """Whether a prompt ends with the opening marker, blank space after it allowed.

    Only the end counts: an earlier marker may have been quoted by a user. bytes_of: ``Tokenizer.token_bytes``.
    """
    for token in reversed(prompt):
        if markers is not None and token in markers:
            return token == markers[0]
        if bytes_of(token).strip():
            return False
    return False
