"""Reading numbers and text out of untrusted bytes: every length is compared with what is left before it is used."""

from __future__ import annotations

from array import array
from mmap import mmap
from struct import Struct

import numpy as np

from shohin.errors import BadFile
from shohin.formats.gguf.kinds import Scalar
from shohin.formats.gguf.metadata import Numbers, Strings

_U32 = Struct("<I")
_U64 = Struct("<Q")

# No real file comes near these: the longest text is a chat template, the longest array a vocabulary's merges.
# Without them a damaged length inside a file of many gigabytes would copy gigabytes.
LONGEST_TEXT = 1 << 26
LONGEST_NAME = (1 << 16) - 1
MOST_ITEMS = 1 << 26


class Cursor:
    """A position in ``buffer``. ``source`` names the file; ``what`` in every method names the field for its errors."""

    def __init__(self, buffer: bytes | mmap, source: str) -> None:
        self.buffer = buffer
        self.size = len(buffer)
        self.position = 0
        self.source = source

    @property
    def left(self) -> int:
        """Bytes between the position and the end of the file."""
        return self.size - self.position

    def bad(self, message: str) -> BadFile:
        """An error that names the file."""
        return BadFile(f"{self.source}: {message}")

    def need(self, n: int, what: str) -> None:
        """BadFile unless ``n`` more bytes are there."""
        if n > self.left:
            raise self.bad(
                f"{what} at byte {self.position} needs {n} bytes and {self.left} are left; the file is cut or damaged"
            )

    def u32(self, what: str) -> int:
        """A little-endian 32-bit number."""
        self.need(4, what)
        (value,) = _U32.unpack_from(self.buffer, self.position)
        self.position += 4
        return int(value)

    def u64(self, what: str) -> int:
        """A little-endian 64-bit number."""
        self.need(8, what)
        (value,) = _U64.unpack_from(self.buffer, self.position)
        self.position += 8
        return int(value)

    def count(self, what: str, smallest: int) -> int:
        """A 64-bit count of things of at least ``smallest`` bytes each; BadFile when so many cannot be there."""
        n = self.u64(what)
        if n * smallest > self.left:
            raise self.bad(
                f"{what} is {n}, which needs {n * smallest} bytes or more, and {self.left} are left; "
                f"the file is cut or damaged"
            )
        return n

    def text(self, what: str, longest: int = LONGEST_TEXT) -> str:
        """A length-prefixed UTF-8 string of at most ``longest`` bytes."""
        n = self.count(f"the length of {what}", 1)
        if n > longest:
            raise self.bad(f"{what} is {n} bytes long, the limit is {longest}")
        raw = self.buffer[self.position : self.position + n]
        try:
            value = str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise self.bad(f"{what} is not UTF-8: {raw[:32]!r} (byte {error.start})") from None
        self.position += n
        return value

    def scalar(self, scalar: Scalar, what: str) -> bool | int | float:
        """One number; a boolean must be 0 or 1."""
        self.need(scalar.size, what)
        (value,) = Struct("<" + scalar.code).unpack_from(self.buffer, self.position)
        self.position += scalar.size
        if scalar.name == "bool":
            if value > 1:
                raise self.bad(f"{what} is a boolean with the value {value}; 0 or 1 was expected")
            return bool(value)
        return value  # type: ignore[no-any-return]

    def items(self, what: str, smallest: int) -> int:
        """The count of an array."""
        n = self.count(f"the length of {what}", smallest)
        if n > MOST_ITEMS:
            raise self.bad(f"{what} has {n} items, the limit is {MOST_ITEMS}")
        return n

    def numbers(self, scalar: Scalar, what: str) -> Numbers:
        """A counted array of numbers."""
        n = self.items(what, scalar.size)
        raw = self.buffer[self.position : self.position + n * scalar.size]
        values = np.frombuffer(raw, scalar.dtype)
        self.position += n * scalar.size
        if scalar.name == "bool":
            wrong = np.flatnonzero(values > 1)
            if len(wrong):
                at = int(wrong[0])
                raise self.bad(f"{what}[{at}] is a boolean with the value {values[at]}; 0 or 1 was expected")
            values = values.astype(np.bool_)
        return Numbers(values, scalar.name)

    def strings(self, what: str) -> Strings:
        """A counted array of strings: one walk over the lengths, one check of all the text."""
        n = self.items(what, 8)
        first = position = self.position
        buffer, size, unpack = self.buffer, self.size, _U64.unpack_from
        starts = array("Q")
        for index in range(n):
            if size - position < 8:
                self.position = position
                self.need(8, f"the length of {what}[{index}]")
            (length,) = unpack(buffer, position)
            position += 8
            if length > size - position:
                self.position = position
                self.need(length, f"{what}[{index}]")
            starts.append(position - first)
            position += length
        raw = buffer[first:position]
        self.position = position
        self._check_utf8(raw, starts, what)
        return Strings(raw, starts)

    def _check_utf8(self, raw: bytes, starts: array[int], what: str) -> None:
        # Length prefixes become NULs, so that one decode checks all the strings and no character spans two of them.
        plain = np.frombuffer(raw, np.uint8).copy()
        at = np.frombuffer(starts, np.uint64).astype(np.int64) if len(starts) else np.empty(0, np.int64)
        for byte in range(1, 9):
            plain[at - byte] = 0
        try:
            str(plain.data, "utf-8")
        except UnicodeDecodeError as error:
            index = int(np.searchsorted(at, error.start, side="right")) - 1
            begin = starts[index] if index >= 0 else 0
            raise self.bad(f"{what}[{index}] is not UTF-8: {raw[begin : begin + 32]!r}") from None
