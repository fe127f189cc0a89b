"""Turning ids into text as they come, without showing half a character."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class StreamDecoder:
    """Text of a growing list of ids. The chunks, flush included, join to the decoded whole.

    Only the bytes of an unfinished character are held back. Bytes that can't become UTF-8 turn into U+FFFD as in
    ``bytes.decode("utf-8", "replace")``: one for each maximal ill-formed part.
    """

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that this id completes, which may be empty."""
        return self._decoder.decode(self._bytes_of(token))

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that was cut off, else nothing. The decoder starts anew."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
