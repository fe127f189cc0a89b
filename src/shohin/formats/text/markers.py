"""Finding whole pieces in text: control tokens and user-defined markers."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping

# Characters of a piece that is looked for whole. Published ones have some 30, runs of white space up to 128; and how
# long a search can take grows with it.
LONGEST = 512


class Markers:
    """Pieces that are cut out of text before it is split any further; the longest at a place wins, leftmost first.

    Memory is a few words a piece: a file chooses how many there are and how long.
    """

    def __init__(self, pieces: Mapping[str, int]) -> None:
        """pieces: text of at most ``LONGEST`` characters -> id."""
        self._ids = pieces
        self._sorted = sorted(pieces)
        self._shorter = _prefixes(self._sorted)
        self._longest = max(map(len, pieces), default=0)
        firsts = "".join(sorted({piece[0] for piece in pieces}))
        self._first = re.compile("[" + re.escape(firsts) + "]") if firsts else None

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
            start = hit.start()
            at = start + 1
            if (piece := self._longest_at(text[start : start + self._longest])) is not None:
                at = start + len(piece)
                found.append((start, at, self._ids[piece]))
        return found

    def _longest_at(self, text: str) -> str | None:
        """The longest piece that ``text`` begins with.

        In sorted order every piece that begins the text comes before it, and the last one before it is that piece or
        begins like it: the others are found by going from piece to the longest piece that it begins with.
        """
        place = bisect_right(self._sorted, text) - 1
        if place < 0:
            return None
        common = _common(self._sorted[place], text)
        while place >= 0 and len(self._sorted[place]) > common:
            place = self._shorter[place]
        return self._sorted[place] if place >= 0 else None


def _prefixes(pieces: list[str]) -> list[int]:
    """For each sorted piece the place of the longest other piece that it begins with, -1 for none."""
    found: list[int] = []
    for index, piece in enumerate(pieces):
        place = index - 1
        while place >= 0 and not piece.startswith(pieces[place]):
            place = found[place]
        found.append(place)
    return found


def _common(left: str, right: str) -> int:
    """How many characters two texts have in common at their beginning."""
    if right.startswith(left):
        return len(left)
    differing = (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b)
    return next(differing, min(len(left), len(right)))
