"""An opened model file: metadata and tensors, nothing decoded yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from shohin.errors import BadFile
from shohin.formats.tensor import Tensor


@dataclass(frozen=True, eq=False)
class Weights:
    """paths: the file, the parts of a split file in order, or nothing for a model made in memory.
    metadata: key -> bool, int, float, str, or a sequence.

    tensors: name -> Tensor, in file order. notes: choices the reader made that a user should see (the id-42 layout).
    stored: bytes of all files together when they were opened; they may be gone since.
    """

    paths: tuple[Path, ...]
    metadata: Mapping[str, object]
    tensors: Mapping[str, Tensor]
    notes: tuple[str, ...] = field(default=())
    stored: int = 0

    @property
    def source(self) -> str:
        """The first file's path, for messages; a model made in memory has none."""
        return str(self.paths[0]) if self.paths else "(in memory)"

    @property
    def architecture(self) -> str:
        """``general.architecture``; BadFile when absent or not text."""
        value = self.metadata.get("general.architecture")
        if not isinstance(value, str) or not value:
            raise BadFile(f"{self.source}: general.architecture is {value!r}, a name was expected")
        return value

    @property
    def file_bytes(self) -> int:
        """Size of all files together when they were opened; of the tensors alone for a model made in memory."""
        return self.stored if self.paths else sum(t.data.nbytes for t in self.tensors.values())

    @property
    def parameters(self) -> int:
        """Number of weights in all tensors."""
        return sum(prod(t.shape) for t in self.tensors.values())

    @property
    def types(self) -> dict[str, int]:
        """Number of tensors by format name, most frequent first."""
        return dict(Counter(t.format.name for t in self.tensors.values()).most_common())

    @property
    def format(self) -> str:
        """The format that holds most weights."""
        sizes: Counter[str] = Counter()
        for t in self.tensors.values():
            sizes[t.format.name] += prod(t.shape)
        return sizes.most_common(1)[0][0] if sizes else "none"
