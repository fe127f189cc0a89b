"""A file of packed weights: what it is of, a list of tensors, and their bytes.

Layout: the magic, the length of the list (8 bytes, little-endian), the list (JSON), zeros up to a multiple of 4096,
then the tensors in the order of the list, each followed by zeros up to a multiple of 64. Whoever opens one trusts
nothing in it: sizes must add up to the file's, and each tensor's words to the sum in the list. The sum finds what a
disk or a killed copy does to a file. It is no proof against somebody who writes such files; their folder is the user's
own.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shohin.errors import BadFile
from shohin.formats.new_file import new_file

__all__ = ["SUFFIX", "Entry", "Identity", "PackedFile", "write_packed"]

SUFFIX = ".packed"
MAGIC = b"SHOHINPK"
PAGE, LINE = 4096, 64
LONGEST_LIST = 64 << 20

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Identity:
    """content: key of the model's files. layout: of the device's packed bytes. version: shohin's. source: the model's
    path, for people.
    """

    content: str
    layout: str
    version: str
    source: str


@dataclass(frozen=True)
class Entry:
    """A packed tensor: name, format in the model's file, format of the packed rows, bytes, and sum of its words."""

    name: str
    source_format: str
    format: str
    nbytes: int
    total: int


class PackedFile:
    """An opened file of packed weights. identity; entries by name; BadFile says what is wrong with the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                self._map = _mapped(path, file.fileno())
        except OSError as error:
            raise BadFile(f"{path}: could not be opened: {error.strerror or error}") from error
        self._raw: Bytes = np.frombuffer(self._map, np.uint8)
        head, start = self._head()
        self.identity = self._identity(head)
        self.entries: dict[str, Entry] = {}
        self._starts: dict[str, int] = {}
        listed = head.get("tensors")
        for item in listed if isinstance(listed, list) else []:
            entry = self._entry(item)
            self.entries[entry.name] = entry
            self._starts[entry.name] = start
            start += _padded(entry.nbytes, LINE)
        if start != len(self._raw):
            raise BadFile(f"{path}: holds {len(self._raw)} bytes, its list of tensors says {start}")

    def bytes_of(self, name: str) -> Bytes:
        """The packed bytes of a tensor, a view of the mapped file; BadFile where they are not what was written."""
        entry, start = self.entries[name], self._starts[name]
        found = _total(self._raw[start : start + _padded(entry.nbytes, LINE)])
        if found != entry.total:
            raise BadFile(f"{self.path}: tensor {name!r} is damaged: its words add up to {found}, not {entry.total}")
        return self._raw[start : start + entry.nbytes]

    def _head(self) -> tuple[dict[str, Any], int]:
        first = self._raw[: len(MAGIC) + 8].tobytes()
        if len(first) < len(MAGIC) + 8 or not first.startswith(MAGIC):
            raise BadFile(f"{self.path}: is no file of packed weights")
        length = int.from_bytes(first[len(MAGIC) :], "little")
        start = _padded(len(first) + length, PAGE)
        if length > LONGEST_LIST or start > len(self._raw):
            raise BadFile(f"{self.path}: a list of {length} bytes does not fit the file of {len(self._raw)}")
        try:
            head = json.loads(self._raw[len(first) : len(first) + length].tobytes())
        except (ValueError, RecursionError):
            head = None
        if not isinstance(head, dict):
            raise BadFile(f"{self.path}: the list of tensors can't be read")
        return head, start

    def _identity(self, head: Mapping[str, Any]) -> Identity:
        values = [head.get(field.name) for field in fields(Identity)]
        if not all(isinstance(value, str) for value in values):
            raise BadFile(f"{self.path}: does not say what it was packed from")
        return Identity(*(str(value) for value in values))

    def _entry(self, item: Any) -> Entry:
        values = [item.get(field.name) for field in fields(Entry)] if isinstance(item, dict) else []
        texts: list[Any] = values[:3]
        numbers: list[Any] = values[3:]
        sound = all(isinstance(v, str) for v in texts) and all(type(v) is int and 0 <= v < 1 << 64 for v in numbers)
        if not values or not sound or values[0] in self.entries:
            raise BadFile(f"{self.path}: the list of tensors has a wrong entry: {str(item)[:200]!r}")
        return Entry(*texts, *numbers)


def write_packed(path: Path, identity: Identity, tensors: Iterable[tuple[str, str, str, Bytes]]) -> None:
    """Write a file whole or not at all; tensors are (name, format in the model's file, packed format, packed bytes).

    BadFile as ``new_file``.
    """
    parts = [(name, source, fmt, np.ascontiguousarray(raw).reshape(-1)) for name, source, fmt, raw in tensors]
    entries = [Entry(name, source, fmt, raw.nbytes, _total(_filled(raw))) for name, source, fmt, raw in parts]
    listed = json.dumps(asdict(identity) | {"tensors": [asdict(entry) for entry in entries]}).encode()
    head = MAGIC + len(listed).to_bytes(8, "little") + listed
    size = _padded(len(head), PAGE) + sum(_padded(entry.nbytes, LINE) for entry in entries)
    with new_file(path, size) as file:
        file.write(head.ljust(_padded(len(head), PAGE), b"\0"))
        for *_, raw in parts:
            file.write(raw.data)
            file.write(bytes(-raw.nbytes % LINE))


def _mapped(path: Path, descriptor: int) -> mmap.mmap:
    if os.fstat(descriptor).st_size == 0:
        raise BadFile(f"{path}: is empty")
    return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)


def _padded(n: int, to: int) -> int:
    return -(-n // to) * to


def _filled(raw: Bytes) -> Bytes:
    """With the zeros that follow it in the file; a copy only where there are any."""
    missing = -raw.nbytes % LINE
    return np.concatenate([raw, np.zeros(missing, np.uint8)]) if missing else raw


def _total(raw: Bytes) -> int:
    """The sum of 64-bit words, modulo 2^64: as fast as memory."""
    return int(raw.view("<u8").sum(dtype=np.uint64))
