"""Write a GGUF file of version 3: the header from a plan, then every tensor streamed, all of it or nothing."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from shohin.errors import BadFile, BadRequest, BadShape
from shohin.formats.blocks import BlockFormat
from shohin.formats.gguf.header import ALIGNMENT, MAGIC, MOST_DIMS, checked_alignment, padded
from shohin.formats.gguf.kinds import ARRAY_ID, SCALARS, STRING_ID, item_of
from shohin.formats.gguf.metadata import Metadata, Numbers, typed
from shohin.formats.new_file import NewFile, new_file
from shohin.formats.tensor import Tensor

VERSION = 3
# llama.cpp keeps names in 64 bytes with a NUL at the end.
LONGEST_TENSOR_NAME = 63
LONGEST_KEY = (1 << 16) - 1
CHUNK_WEIGHTS = 1 << 22

_U32 = Struct("<I")
_U64 = Struct("<Q")

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class NewTensor:
    """A tensor to write: name, shape with the contiguous dimension last, format, and where its bytes come from.

    chunks is called when the tensor's turn comes, and yields uint8 arrays (or bytes) that together are exactly
    ``format.nbytes(prod(shape))`` long, so that no more than a chunk of a model need be in memory.
    """

    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    chunks: Callable[[], Iterable[Bytes | bytes]]

    @property
    def size(self) -> int:
        """Bytes the tensor takes, without padding."""
        return prod(self.shape[:-1]) * self.format.nbytes(self.shape[-1])

    @staticmethod
    def copy(tensor: Tensor) -> NewTensor:
        """The same bytes as an opened tensor."""
        return NewTensor(tensor.name, tensor.shape, tensor.format, lambda: (tensor.data,))

    @staticmethod
    def encoded(name: str, values: Floats, format: BlockFormat) -> NewTensor:
        """Float values in their own shape, encoded a few million at a time; BadFile names tensor and row."""
        rows = values.reshape(-1, values.shape[-1]) if values.ndim else values.reshape(1, 1)
        step = max(1, CHUNK_WEIGHTS // max(1, rows.shape[-1]))
        starts = range(0, len(rows), step)
        return NewTensor.encoded_rows(name, values.shape, format, lambda: (rows[at : at + step] for at in starts))

    @staticmethod
    def encoded_rows(
        name: str, shape: tuple[int, ...], format: BlockFormat, rows: Callable[[], Iterable[Floats]]
    ) -> NewTensor:
        """Float rows [some, columns] that arrive in pieces, each encoded when it comes."""

        def chunks() -> Iterator[Bytes]:
            done = 0
            for piece in rows():
                try:
                    yield format.encode(np.ascontiguousarray(piece, np.float32))
                except (BadFile, BadShape) as error:
                    raise type(error)(f"tensor {name!r}, from row {done}: {error}") from error
                done += len(piece)

        return NewTensor(name, shape, format, chunks)

    @staticmethod
    def converted(tensor: Tensor, format: BlockFormat) -> NewTensor:
        """An opened tensor in another format, decoded and encoded a few million weights at a time."""
        step = max(1, CHUNK_WEIGHTS // tensor.columns)
        starts = range(0, tensor.rows, step)

        def rows() -> Iterator[Floats]:
            for start in starts:
                yield tensor.decode(start, min(start + step, tensor.rows)).reshape(-1, tensor.columns)

        return NewTensor.encoded_rows(tensor.name, tensor.shape, format, rows)


def write_gguf(
    path: str | os.PathLike[str], metadata: Mapping[str, object], tensors: Iterable[NewTensor | Tensor]
) -> Path:
    """Write ``metadata`` and ``tensors`` to ``path``, which appears only when everything is on the disk.

    metadata: a ``Metadata`` as read keeps the kinds of its source; in any other mapping a ``Value`` says its kind and
    plain values get one by ``metadata.kind_of``. ``general.alignment``, if there, is used for the data.

    BadFile with the path for everything that keeps the file from being written (an older file stays untouched),
    BadRequest for metadata or names that a GGUF file cannot hold, BadShape for shapes that do not fill blocks.
    """
    plan = [t if isinstance(t, NewTensor) else NewTensor.copy(t) for t in tensors]
    pairs = typed(metadata)
    alignment = _alignment(pairs)
    _check_plan(plan)
    head = encode_header(pairs, plan, alignment)
    size = len(head) + sum(padded(t.size, alignment) for t in plan)
    with new_file(path, size) as file:
        file.write(head)
        for tensor in plan:
            _write_tensor(file, tensor)
            file.write(bytes(padded(tensor.size, alignment) - tensor.size))
    return Path(path)


def _alignment(metadata: Metadata) -> int:
    value = metadata.get("general.alignment", ALIGNMENT)
    kind = metadata.kinds.get("general.alignment", "u32")
    try:
        return checked_alignment(value if kind == "u32" else None)
    except BadFile as error:
        raise BadRequest(f"general.alignment is {value!r} ({kind}); {error}", param="general.alignment") from None


def _check_plan(plan: Sequence[NewTensor]) -> None:
    seen: set[str] = set()
    formats: dict[int, NewTensor] = {}
    for t in plan:
        length = len(t.name.encode("utf-8", "replace"))
        if not 1 <= length <= LONGEST_TENSOR_NAME:
            raise BadRequest(
                f"tensor name {t.name!r} is {length} bytes long; 1 to {LONGEST_TENSOR_NAME} can be written",
                param="name",
            )
        if t.name in seen:
            raise BadRequest(f"tensor {t.name!r} was given twice", param="name")
        seen.add(t.name)
        if not 1 <= len(t.shape) <= MOST_DIMS or min(t.shape) < 1:
            raise BadShape(f"tensor {t.name!r} has the shape {t.shape}; 1 to {MOST_DIMS} dimensions were expected")
        if t.shape[-1] % t.format.block:
            raise BadShape(
                f"tensor {t.name!r} has rows of {t.shape[-1]} weights, which do not fill whole {t.format.name} blocks "
                f"of {t.format.block}"
            )
        other = formats.setdefault(t.format.type_id, t)
        if other.format.name != t.format.name:
            raise BadRequest(
                f"tensor {other.name!r} is {other.format.name} and {t.name!r} is {t.format.name}: both are type "
                f"{t.format.type_id} in the file, and a file can hold one of them",
                param="format",
            )


def _write_tensor(file: NewFile, tensor: NewTensor) -> None:
    before = file.written
    for chunk in tensor.chunks():
        data = chunk if isinstance(chunk, bytes) else np.ascontiguousarray(chunk, np.uint8).reshape(-1).data
        if file.written - before + len(data) > tensor.size:
            raise BadShape(f"tensor {tensor.name!r} takes {tensor.size} bytes and its source gave more")
        file.write(data)
    if file.written - before != tensor.size:
        raise BadShape(f"tensor {tensor.name!r} takes {tensor.size} bytes and its source gave {file.written - before}")


def encode_header(metadata: Metadata, plan: Sequence[NewTensor], alignment: int = ALIGNMENT) -> bytes:
    """Everything before the tensor data, padded to ``alignment``."""
    head = bytearray(MAGIC + _U32.pack(VERSION) + _U64.pack(len(plan)) + _U64.pack(len(metadata)))
    for key, value in metadata.items():
        if not 1 <= len(key.encode("utf-8", "replace")) <= LONGEST_KEY:
            raise BadRequest(f"metadata key {key[:64]!r} is empty or longer than {LONGEST_KEY} bytes", param="metadata")
        head += _text(key, key)
        head += _value(key, metadata.kinds[key], value)
    offset = 0
    for tensor in plan:
        head += _text(tensor.name, tensor.name)
        dims = tensor.shape[::-1]
        head += _U32.pack(len(dims)) + b"".join(_U64.pack(d) for d in dims)
        head += _U32.pack(tensor.format.type_id) + _U64.pack(offset)
        offset += padded(tensor.size, alignment)
    head += bytes(padded(len(head), alignment) - len(head))
    return bytes(head)


def _text(key: str, value: object) -> bytes:
    if not isinstance(value, str):
        raise BadRequest(f"{key}: {value!r} is no text", param=key)
    try:
        raw = value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadRequest(f"{key}: {value[:64]!r} cannot be written as UTF-8 ({error.reason})", param=key) from None
    return _U64.pack(len(raw)) + raw


def _value(key: str, kind: str, value: object) -> bytes:
    item = item_of(kind)
    if item is None:
        type_id = STRING_ID if kind == "str" else SCALARS[kind].id
        return _U32.pack(type_id) + (_text(key, value) if kind == "str" else _scalars(key, kind, [value]))
    if not isinstance(value, Sequence | np.ndarray | array) or isinstance(value, str | bytes):
        raise BadRequest(f"{key}: {value!r} is no sequence, and its kind is {kind}", param=key)
    type_id = STRING_ID if item == "str" else SCALARS[item].id
    body = b"".join(_text(key, x) for x in value) if item == "str" else _scalars(key, item, value)
    return _U32.pack(ARRAY_ID) + _U32.pack(type_id) + _U64.pack(len(value)) + body


def _scalars(key: str, kind: str, values: Sequence[object] | NDArray[np.generic] | array[int]) -> bytes:
    scalar = SCALARS[kind]
    if isinstance(values, Numbers) and values.kind == f"[{kind}]":
        return values.values.tobytes()
    plain = list(values)
    wrong = next((x for x in plain if not _holds(kind, x)), None)
    if wrong is not None or any(x is None for x in plain):
        raise BadRequest(f"{key}: {wrong!r} cannot be written as {kind}", param=key)
    return np.array(plain, scalar.dtype).tobytes()


def _holds(kind: str, value: object) -> bool:
    truth = isinstance(value, bool | np.bool_)
    if kind == "bool":
        return bool(truth)
    if SCALARS[kind].integer:
        whole = not truth and isinstance(value, int | np.integer)
        return whole and SCALARS[kind].low <= int(value) <= SCALARS[kind].high  # type: ignore[call-overload]
    return not truth and isinstance(value, int | float | np.integer | np.floating) and _finite_in(kind, value)


def _finite_in(kind: str, value: int | float | np.integer | np.floating) -> bool:
    """Whether a number stays finite in ``f32`` or ``f64``; NaN and infinities given as such are kept."""
    try:
        number = float(value)
    except OverflowError:
        return False
    return not isfinite(number) or abs(number) <= float(np.finfo(SCALARS[kind].dtype).max)
