"""Finding whole pieces in text: control tokens and user-defined markers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_ID = ""  # a trie node's own id lies under the empty key, which no character can be


class Markers:
    """Pieces that are cut out of text before it is split any further; the longest at a place wins, leftmost first."""

    def __init__(self, pieces: Mapping[str, int]) -> None:
        self._trie: dict[str, Any] = {}
        for piece, token in pieces.items():
            node = self._trie
            for character in piece:
                node = node.setdefault(character, {})
            node[_ID] = token
        self._first = re.compile("[" + re.escape("".join(self._trie)) + "]") if self._trie else None

    def split(self, text: str) -> list[str | int]:
        """Text and ids in order; joined again (ids as their pieces) it is the text. No empty text among them."""
        parts: list[str | int] = []
        kept = 0
        for start, end, token in self._matches(text):
            if start > kept:
                parts.append(text[kept:start])
            parts.append(token)
            kept = end
        if kept < len(text):
            parts.append(text[kept:])
        return parts

    def _matches(self, text: str) -> list[tuple[int, int, int]]:
        found: list[tuple[int, int, int]] = []
        at = 0
        while self._first is not None and (hit := self._first.search(text, at)):
            at = hit.start() + 1
            if (longest := self._longest(text, hit.start())) is not None:
                found.append((hit.start(), *longest))
                at = longest[0]
        return found

    def _longest(self, text: str, start: int) -> tuple[int, int] | None:
        """(end, id) of the longest piece that starts here."""
        node, best = self._trie, None
        for at in range(start, len(text)):
            child = node.get(text[at])
            if child is None:
                break
            node = child
            if _ID in node:
                best = (at + 1, node[_ID])
        return best
