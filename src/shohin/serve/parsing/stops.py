"""Stop strings in text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence

from shohin.errors import BadRequest


class StopMatcher:
    """Passes text on up to the first stop string, whatever way the text is cut into pieces.

    The stop that is completed first ends the text; among those completed by the same character, the one that started
    first. Only a tail that may still become a stop is held back. Feed it generated text only: what was never pushed
    (the prompt) can't match.
    """

    def __init__(self, stops: str | Sequence[str] | None) -> None:
        """BadRequest for an empty stop string, or anything but text."""
        listed = [stops] if isinstance(stops, str) else list(stops or ())
        for stop in listed:
            if not isinstance(stop, str) or not stop:
                raise BadRequest(f"stop is {stop!r}; each stop must be text of at least one character", param="stop")
        # Longest first: of two that end at one place the longer started earlier.
        self._words = [_Word(stop) for stop in sorted(set(listed), key=len, reverse=True)]
        self._held = ""
        self.stopped: str | None = None

    def push(self, text: str) -> str:
        """The text that can be sent now. After a stop nothing more comes; ``stopped`` names it."""
        if self.stopped is not None:
            return ""
        start = len(self._held)
        self._held += text
        for end, character in enumerate(text, start + 1):
            found = [word for word in self._words if word.advance(character)]
            if found:
                self.stopped = found[0].text
                return self._release(end - len(found[0].text), drop_rest=True)
        return self._release(len(self._held) - max((word.matched for word in self._words), default=0))

    def flush(self) -> str:
        """What was held back, at the end of the text."""
        return self._release(len(self._held))

    def _release(self, length: int, drop_rest: bool = False) -> str:
        sent, self._held = self._held[:length], "" if drop_rest else self._held[length:]
        return sent


class _Word:
    """One stop string with its Knuth-Morris-Pratt table: how much of it the text so far ends with."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._border = [0]  # for each prefix but the empty one: its longest proper border
        for character in text[1:]:
            self._border.append(self._step(self._border[-1], character))

    def advance(self, character: str) -> bool:
        """Take one character; True when it completes the string."""
        self.matched = self._step(self.matched, character)
        return self.matched == len(self.text)

    def _step(self, matched: int, character: str) -> int:
        while matched and self.text[matched] != character:
            matched = self._border[matched - 1]
        return matched + 1 if self.text[matched] == character else 0
