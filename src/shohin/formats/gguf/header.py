"""The front of a GGUF file: version, metadata and the tensor table, checked as far as the table alone allows.

Source: ggml-org/ggml, docs/gguf.md, versions 2 and 3 (which differ only in that version 3 may be big-endian; those
files are refused). Stricter than that text: names must be unique, non-empty UTF-8, booleans 0 or 1, metadata strings
UTF-8, and arrays must not nest.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from shohin.errors import BadFile, UnsupportedFormat
from shohin.formats.gguf.cursor import LONGEST_NAME, Cursor
from shohin.formats.gguf.kinds import ARRAY_ID, SCALAR_BY_ID, STRING_ID
from shohin.formats.gguf.metadata import Metadata

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
LARGEST_ALIGNMENT = 1 << 20
MOST_DIMS = 4
# Smallest encodings: an entry of the metadata is a length, one byte of key, a kind and one byte of value; an entry of
# the tensor table is a length, one byte of name, a dimension count, one dimension, a type and an offset.
SMALLEST_PAIR = 8 + 1 + 4 + 1
SMALLEST_ENTRY = 8 + 1 + 4 + 8 + 4 + 8


@dataclass(frozen=True)
class Entry:
    """A row of the tensor table. dims as stored: the contiguous dimension first. offset: from the start of the data."""

    name: str
    dims: tuple[int, ...]
    type_id: int
    offset: int

    @property
    def elements(self) -> int:
        """Number of weights, as an exact integer."""
        return prod(self.dims)


@dataclass(frozen=True, eq=False)
class Header:
    """version; metadata; the tensor table in file order; alignment of the data; where the data starts in the file."""

    version: int
    metadata: Metadata
    entries: tuple[Entry, ...]
    alignment: int
    data_start: int


def padded(n: int, alignment: int) -> int:
    """``n`` rounded up to a multiple of ``alignment``."""
    return -(-n // alignment) * alignment


def read_header(cursor: Cursor) -> Header:
    """Parse from the first byte; BadFile or UnsupportedFormat name the file, the field and the values."""
    version = _version(cursor)
    n_tensors = cursor.count("the tensor count", SMALLEST_ENTRY)
    n_pairs = cursor.count("the metadata count", SMALLEST_PAIR)
    metadata = _metadata(cursor, n_pairs)
    alignment = _alignment(cursor, metadata)
    entries = _entries(cursor, n_tensors)
    data_start = padded(cursor.position, alignment)
    if entries and data_start > cursor.size:
        raise cursor.bad(
            f"the tensor data should start at byte {data_start} (general.alignment {alignment}) and the file ends at "
            f"{cursor.size}; it is cut or damaged"
        )
    return Header(version, metadata, entries, alignment, data_start)


def _version(cursor: Cursor) -> int:
    magic = cursor.buffer[:4]
    if magic != MAGIC:
        raise cursor.bad(f"starts with {magic!r}, a GGUF file starts with {MAGIC!r}")
    cursor.position = 4
    version = cursor.u32("the version")
    if version in VERSIONS:
        return version
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if swapped in VERSIONS:
        raise UnsupportedFormat(
            f"{cursor.source}: GGUF version {swapped} in the other byte order (big-endian); "
            f"only little-endian files are read, convert it on the machine that wrote it"
        )
    raise UnsupportedFormat(f"{cursor.source}: GGUF version {version}; versions 2 and 3 are read")


def _metadata(cursor: Cursor, count: int) -> Metadata:
    pairs: dict[str, tuple[str, object]] = {}
    for index in range(count):
        key = cursor.text(f"metadata key {index}", LONGEST_NAME)
        if not key:
            raise cursor.bad(f"metadata key {index} is empty")
        if key in pairs:
            raise cursor.bad(f"metadata key {key!r} stands twice")
        pairs[key] = _value(cursor, key)
    return Metadata((key, kind, value) for key, (kind, value) in pairs.items())


def _value(cursor: Cursor, key: str) -> tuple[str, object]:
    kind = cursor.u32(f"the type of {key!r}")
    if kind == STRING_ID:
        return "str", cursor.text(repr(key))
    if kind in SCALAR_BY_ID:
        scalar = SCALAR_BY_ID[kind]
        return scalar.name, cursor.scalar(scalar, repr(key))
    if kind != ARRAY_ID:
        raise cursor.bad(f"{key!r} has the value type {kind}; 0 to 12 were expected")
    item = cursor.u32(f"the item type of {key!r}")
    if item == STRING_ID:
        return "[str]", cursor.strings(repr(key))
    if item in SCALAR_BY_ID:
        numbers = cursor.numbers(SCALAR_BY_ID[item], repr(key))
        return numbers.kind, numbers
    if item == ARRAY_ID:
        raise cursor.bad(f"{key!r} is an array of arrays; no known model has one and they are refused")
    raise cursor.bad(f"{key!r} is an array of the value type {item}; 0 to 12 without 9 were expected")


def _alignment(cursor: Cursor, metadata: Metadata) -> int:
    value = metadata.get("general.alignment", ALIGNMENT)
    kind = metadata.kinds.get("general.alignment", "u32")
    try:
        return checked_alignment(value if kind == "u32" else None)
    except BadFile as error:
        raise cursor.bad(f"general.alignment is {value!r} ({kind}); {error}") from None


def checked_alignment(value: object) -> int:
    """``value`` if it is a usable alignment, else BadFile with what was expected."""
    right = isinstance(value, int) and 8 <= value <= LARGEST_ALIGNMENT and value & (value - 1) == 0
    if not right:
        raise BadFile(f"a u32 that is a power of two from 8 to {LARGEST_ALIGNMENT} was expected")
    return int(value)  # type: ignore[call-overload, no-any-return]


def _entries(cursor: Cursor, count: int) -> tuple[Entry, ...]:
    entries: dict[str, Entry] = {}
    for index in range(count):
        name = cursor.text(f"the name of tensor {index}", LONGEST_NAME)
        if not name:
            raise cursor.bad(f"the name of tensor {index} is empty")
        if name in entries:
            raise cursor.bad(f"tensor {name!r} stands twice")
        entries[name] = _entry(cursor, name)
    return tuple(entries.values())


def _entry(cursor: Cursor, name: str) -> Entry:
    n_dims = cursor.u32(f"the dimension count of tensor {name!r}")
    if not 1 <= n_dims <= MOST_DIMS:
        raise cursor.bad(f"tensor {name!r} has {n_dims} dimensions; 1 to {MOST_DIMS} were expected")
    dims = tuple(cursor.u64(f"dimension {d} of tensor {name!r}") for d in range(n_dims))
    type_id = cursor.u32(f"the type of tensor {name!r}")
    entry = Entry(name, dims, type_id, cursor.u64(f"the offset of tensor {name!r}"))
    if not 0 < entry.elements < 2**63:
        raise cursor.bad(f"tensor {name!r} has the dimensions {list(dims)}: {entry.elements} weights")
    return entry
