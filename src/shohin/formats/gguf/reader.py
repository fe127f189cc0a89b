"""Open a GGUF file, or a set of split files, as ``Weights``: memory-mapped, checked, nothing decoded."""

from __future__ import annotations

import mmap
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from shohin.errors import BadFile, UnsupportedFormat
from shohin.formats.blocks import BlockFormat, by_type_id
from shohin.formats.gguf.cursor import Cursor
from shohin.formats.gguf.dialect import AMBIGUOUS_ID, Part, resolve
from shohin.formats.gguf.header import Entry, padded, read_header
from shohin.formats.tensor import Tensor
from shohin.formats.weights import Weights

SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")
ROTATION = "prism.hadamard."
MOST_PARTS = 99_999

_PART_NAME = re.compile(r"(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def read_gguf(path: str | os.PathLike[str], *, dialect: str | None = None) -> Weights:
    """Open ``path``; the first part of a split set stands for the whole set.

    dialect: ``q2_0``, ``q2_0_g128`` or ``tq2_0_g128`` says what tensor type 42 is; without it the file decides, and a
    file that leaves it open is refused. The choice is in ``Weights.notes``. Tensor shapes come with the contiguous
    dimension last, the data are views of the mapped file. ``Weights.metadata`` is a ``Metadata`` and remembers the kind
    of every value; keys ``split.*`` of a set are left out, since the set is now whole.

    The file must keep its length while weights from it are in use: the system ends a process (SIGBUS) that reads a
    mapped page which a file has lost. Deleting the file, or renaming another over it, is harmless.

    BadFile: missing, damaged, cut, contradictory or undecidable. UnsupportedFormat: a version, byte order, tensor type
    or weight rotation that shohin does not read. BadRequest: an unknown dialect.
    """
    first = Path(path)
    parts = _parts(first)
    for part in parts:
        _refuse_rotation(part)
    layout, note = resolve(parts, dialect)
    tensors: dict[str, Tensor] = {}
    for part in parts:
        for tensor in _tensors(part, layout):
            if tensor.name in tensors:
                raise BadFile(
                    f"{part.path}: tensor {tensor.name!r} is also in {tensors[tensor.name].source}; "
                    f"the parts are not of one model"
                )
            tensors[tensor.name] = tensor
    metadata = parts[0].header.metadata
    if len(parts) > 1:
        _check_total(parts, len(tensors))
        metadata = metadata.changed({}, drop=SPLIT_KEYS)
    notes = () if note is None else (note,)
    return Weights(tuple(p.path for p in parts), metadata, tensors, notes, sum(p.size for p in parts))


def _map(path: Path) -> mmap.mmap | bytes:
    """The file's bytes, read-only; only regular files, so that a pipe or device cannot hang the reader."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise BadFile(f"{path}: is a folder or a device, not a file")
            return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) if status.st_size else b""
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise BadFile(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise BadFile(f"{path}: cannot be opened: {getattr(error, 'strerror', None) or error}") from None


def _part(path: Path) -> Part:
    buffer = _map(path)
    header = read_header(Cursor(buffer, str(path)))
    everything = np.frombuffer(buffer, np.uint8)
    return Part(path, header, everything[header.data_start :], len(everything))


def _parts(first: Path) -> list[Part]:
    part = _part(first)
    named = _PART_NAME.fullmatch(first.name)
    count = _split_number(part, "split.count")
    if count is None:
        if named and int(named["count"]) > 1:
            raise BadFile(f"{first}: the name says part {named['no']} of {named['count']}, and split.count is missing")
        return [part]
    number = _split_number(part, "split.no")
    if number is None or not number < count <= MOST_PARTS:
        raise BadFile(f"{first}: split.no is {number} and split.count {count}; no such part can be")
    if count == 1:
        return [part]
    if named is None or int(named["count"]) != count:
        raise BadFile(
            f"{first}: part {number + 1} of {count} (split.no, split.count) must be named "
            f"...-{number + 1:05d}-of-{count:05d}.gguf, or its partners cannot be found"
        )
    if number != 0 or int(named["no"]) != 1:
        raise BadFile(
            f"{first}: part {number + 1} of {count} by its split.no and part {int(named['no'])} by its name; open the "
            f"first part, {named['stem']}-00001-of-{count:05d}.gguf"
        )
    return [part, *(_later_part(first, named["stem"], index, part) for index in range(1, count))]


def _later_part(first: Path, stem: str, index: int, head: Part) -> Part:
    count = _split_number(head, "split.count")
    path = first.with_name(f"{stem}-{index + 1:05d}-of-{count:05d}.gguf")
    if not path.is_file():
        raise BadFile(f"{path}: no such file; part {index + 1} of the {count} parts that {first} begins is missing")
    part = _part(path)
    own = part.header.metadata
    shared = next(
        (k for k in own if k in head.header.metadata and k not in SPLIT_KEYS and own[k] != head.header.metadata[k]),
        None,
    )
    if shared is not None:
        raise BadFile(
            f"{path}: {shared} is {own[shared]!r} and {head.header.metadata[shared]!r} in {first}; "
            f"the parts are not of one model"
        )
    for key, wanted in (
        ("split.no", index),
        ("split.count", count),
        ("split.tensors.count", _split_number(head, "split.tensors.count")),
    ):
        found = _split_number(part, key)
        if found != wanted:
            raise BadFile(f"{path}: {key} is {found}, and as part {index + 1} of {first} it should be {wanted}")
    return part


def _split_number(part: Part, key: str) -> int | None:
    value = part.header.metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadFile(f"{part.path}: {key} is {value!r}; a number that is not negative was expected")
    return value


def _check_total(parts: Sequence[Part], found: int) -> None:
    wanted = _split_number(parts[0], "split.tensors.count")
    if wanted is not None and wanted != found:
        raise BadFile(
            f"{parts[0].path}: split.tensors.count is {wanted} and the {len(parts)} parts hold {found} tensors; "
            f"a part is missing tensors or belongs to another model"
        )


def _refuse_rotation(part: Part) -> None:
    rotation = next((key for key in part.header.metadata if key.startswith(ROTATION)), None)
    if rotation is not None:
        raise UnsupportedFormat(
            f"{part.path}: the weights are Hadamard-rotated ({rotation} = {part.header.metadata[rotation]!r}); "
            f"rotated models are not supported, and without the rotation their answers would be nonsense"
        )


def _tensors(part: Part, layout: BlockFormat | None) -> list[Tensor]:
    """The part's tensors in file order, each at exactly the place where the padded sizes before it end."""
    alignment, present = part.header.alignment, len(part.data)
    found: dict[str, Tensor] = {}
    expected, before = 0, "the start of the data"
    for entry in sorted(part.header.entries, key=lambda e: e.offset):
        format_ = _format(part, entry, layout)
        size = format_.nbytes(entry.elements)
        if entry.offset != expected:
            raise BadFile(
                f"{part.path}: tensor {entry.name!r} has the offset {entry.offset}, and after {before} "
                f"{expected} was expected (sizes padded to {alignment})"
            )
        end = entry.offset + size
        if end > present:
            raise BadFile(
                f"{part.path}: tensor {entry.name!r} ({format_.name}, {list(_shape(entry))}) needs the bytes "
                f"{entry.offset} to {end} of the tensor data and {present} are present; the file is cut"
            )
        found[entry.name] = Tensor(entry.name, _shape(entry), format_, part.data[entry.offset : end], str(part.path))
        expected, before = padded(end, alignment), f"tensor {entry.name!r}"
    return [found[entry.name] for entry in part.header.entries]


def _format(part: Part, entry: Entry, layout: BlockFormat | None) -> BlockFormat:
    if entry.type_id == AMBIGUOUS_ID and layout is not None:
        found = layout
    else:
        try:
            found = by_type_id(entry.type_id)
        except UnsupportedFormat as error:
            raise UnsupportedFormat(f"{part.path}: tensor {entry.name!r}: {error}") from None
    if entry.dims[0] % found.block:
        raise BadFile(
            f"{part.path}: tensor {entry.name!r} has rows of {entry.dims[0]} weights, which do not fill whole "
            f"{found.name} blocks of {found.block}"
        )
    return found


def _shape(entry: Entry) -> tuple[int, ...]:
    return entry.dims[::-1]
