"""GGUF metadata in memory: a read-only mapping that remembers the kind of every value, and its two kinds of arrays."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from shohin.errors import BadRequest
from shohin.formats.gguf.kinds import KINDS, SCALARS, item_of

Number = bool | int | float


class Strings(Sequence[str]):
    """An array of strings, decoded one at a time when asked for.

    A vocabulary has hundreds of thousands of pieces and most commands never look at them. raw: the array's bytes,
    length prefixes included. starts: where each string begins in raw. Bounds and UTF-8 were checked by whoever made it.
    """

    kind = "[str]"

    def __init__(self, raw: bytes, starts: array[int]) -> None:
        self._raw = raw
        self._starts = starts

    def __len__(self) -> int:
        return len(self._starts)

    def _at(self, index: int) -> str:
        last = index + 1 == len(self._starts)
        end = len(self._raw) if last else self._starts[index + 1] - 8
        return str(self._raw[self._starts[index] : end], "utf-8")

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        """One string, or a list of them for a slice."""
        if isinstance(index, slice):
            return [self._at(i) for i in range(*index.indices(len(self)))]
        return self._at(range(len(self))[index])

    def __iter__(self) -> Iterator[str]:
        return map(self._at, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return _same(self, other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return _shown(self)


class Numbers(Sequence[Number]):
    """An array of numbers or booleans of one kind; indexing gives Python numbers, ``values`` the numpy array."""

    def __init__(self, values: NDArray[Any], item: str) -> None:
        self.values = values
        self.values.flags.writeable = False
        self.kind = f"[{item}]"

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> Number: ...
    @overload
    def __getitem__(self, index: slice) -> list[Number]: ...
    def __getitem__(self, index: int | slice) -> Number | list[Number]:
        """One Python number, or a list of them for a slice."""
        found: Number | list[Number] = self.values[index].tolist()
        return found

    def __iter__(self) -> Iterator[Number]:
        return iter(self.values.tolist())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.values, dtype=dtype, copy=True) if copy else np.asarray(self.values, dtype=dtype)

    def __eq__(self, other: object) -> bool:
        return _same(self, other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return _shown(self)


def _same(one: Sequence[object], other: object) -> bool:
    if not isinstance(other, Sequence) or isinstance(other, str | bytes):
        return False
    return len(one) == len(other) and all(a == b for a, b in zip(one, other, strict=True))


def _shown(items: Sequence[object]) -> str:
    head = ", ".join(repr(x) for x in items[:8])
    return f"[{head}]" if len(items) <= 8 else f"[{head}, ... {len(items)} in all]"


@dataclass(frozen=True)
class Value:
    """A metadata value with its kind said outright, for the writer: ``Value("u32", 7)``, ``Value("[i32]", [1, 3])``."""

    kind: str
    value: object

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadRequest(f"{self.kind!r} is no kind of GGUF value; one of {', '.join(sorted(KINDS))}", param="kind")


class Metadata(Mapping[str, object]):
    """key -> value as read, with ``kinds``: key -> kind, so that writing a file again changes no kind."""

    def __init__(self, pairs: Iterable[tuple[str, str, object]] = ()) -> None:
        self._values: dict[str, object] = {}
        self._kinds: dict[str, str] = {}
        for key, kind, value in pairs:
            self._values[key] = value
            self._kinds[key] = kind

    @property
    def kinds(self) -> Mapping[str, str]:
        """key -> kind, such as ``u32`` or ``[str]``."""
        return self._kinds

    def __getitem__(self, key: str) -> object:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Metadata({self._values!r})"

    def changed(self, changes: Mapping[str, object], drop: Iterable[str] = ()) -> Metadata:
        """A copy with some values set and some keys left out.

        A plain value takes over the kind that its key had; a ``Value`` brings its own; a new key's kind is inferred.
        """
        left_out = frozenset(drop)
        pairs = {key: (self._kinds[key], value) for key, value in self._values.items() if key not in left_out}
        for key, value in changes.items():
            if isinstance(value, Value):
                pairs[key] = (value.kind, value.value)
            else:
                pairs[key] = (self._kinds.get(key) or kind_of(key, value), value)
        return Metadata((key, kind, value) for key, (kind, value) in pairs.items())


def typed(metadata: Mapping[str, object]) -> Metadata:
    """Any mapping as ``Metadata``: kinds known from a file are kept, ``Value`` is obeyed, the rest is inferred."""
    return metadata if isinstance(metadata, Metadata) else Metadata().changed(metadata)


def kind_of(key: str, value: object) -> str:
    """The kind that a plain Python or numpy value is written as.

    bool -> bool; int -> u32 where it fits, else u64 (negative: i32, i64); float -> f32; str -> str; a sequence ->
    an array, of i32 where all integers fit, since that is what converters write for token types. BadRequest else.
    """
    if isinstance(value, Strings | Numbers):
        return value.kind
    if isinstance(value, np.ndarray):
        return f"[{_kind_of_dtype(key, value)}]"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return f"[{_kind_of_items(key, value)}]"
    kind = _kind_of_scalar([value], ("u32", "u64", "i32", "i64"))
    if kind is None:
        raise BadRequest(f"{key}: a {type(value).__name__} has no GGUF kind; give Value(kind, value)", param=key)
    return kind


def _kind_of_items(key: str, items: Sequence[object]) -> str:
    kind = _kind_of_scalar(items, ("i32", "u32", "i64", "u64")) if len(items) else None
    if kind is None:
        raise BadRequest(
            f"{key}: the kind of {_shown(items)} is not clear; give Value(kind, value)",
            param=key,
        )
    return kind


def _kind_of_scalar(items: Sequence[object], integers: tuple[str, ...]) -> str | None:
    if all(isinstance(x, bool | np.bool_) for x in items):
        return "bool"
    if all(isinstance(x, str) for x in items):
        return "str"
    if any(isinstance(x, bool | np.bool_) for x in items):
        return None
    whole = [int(x) for x in items if isinstance(x, int | np.integer)]
    if len(whole) == len(items):
        low, high = min(whole), max(whole)
        return next((n for n in integers if SCALARS[n].low <= low and high <= SCALARS[n].high), None)
    return "f32" if all(isinstance(x, int | float | np.integer | np.floating) for x in items) else None


def _kind_of_dtype(key: str, values: NDArray[Any]) -> str:
    name = "bool" if values.dtype == np.bool_ else f"{values.dtype.kind}{8 * values.dtype.itemsize}"
    if name not in SCALARS or values.ndim != 1:
        raise BadRequest(f"{key}: an array of {values.dtype} and shape {values.shape} has no GGUF kind", param=key)
    return name


def item_kind(kind: str) -> str:
    """The item kind of an array kind, or the kind itself."""
    return item_of(kind) or kind
