"""A named tensor as it lies in a file: shape, block format and raw bytes."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shohin.errors import BadShape
from shohin.formats.blocks.base import BlockFormat


@dataclass(frozen=True, eq=False)
class Tensor:
    """name; shape with the contiguous dimension last (a GGUF ``K, N`` matrix is ``(N, K)``); format; data.

    data is a uint8 array of exactly ``format.nbytes(prod(shape))`` bytes, usually a read-only view of the mapped file.
    ``source`` names the file for error messages.
    """

    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    data: NDArray[np.uint8]
    source: str = ""

    @property
    def rows(self) -> int:
        """Number of rows; a vector is one row."""
        return 1 if len(self.shape) == 1 else int(np.prod(self.shape[:-1], dtype=object))

    @property
    def columns(self) -> int:
        """Length of the contiguous dimension."""
        return self.shape[-1]

    def raw(self) -> NDArray[np.uint8]:
        """The bytes as [rows, bytes a row]; BadShape unless there are exactly as many as shape and format need."""
        row = self.format.nbytes(self.columns)
        if self.data.size != self.rows * row:
            where = f"{self.source}: " if self.source else ""
            raise BadShape(
                f"{where}tensor {self.name!r} has {self.data.size} bytes, {list(self.shape)} in {self.format.name} "
                f"needs {self.rows * row}"
            )
        return self.data.reshape(self.rows, row)

    def decode(self, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
        """Rows ``start`` to ``stop`` as float32; the whole tensor comes back in its own shape."""
        stop = self.rows if stop is None else stop
        if not 0 <= start <= stop <= self.rows:
            raise BadShape(f"{self.name}: rows {start}:{stop} asked of a tensor of {self.rows}")
        values = self.format.decode(self.raw()[start:stop])
        return values.reshape(self.shape) if stop - start == self.rows else values

    def release(self) -> None:
        """Give up the memory that holds the mapped file's bytes; who reads them again gets them from the file.

        For a tensor that was copied elsewhere. Whole pages only, so neighbours lose at most what they share a page
        with; without effect for data that is no mapped file, and where the system does not offer it.
        """
        owner: object = self.data
        while isinstance(owner, np.ndarray):
            owner = owner.base
        if isinstance(owner, memoryview):
            owner = owner.obj
        if not isinstance(owner, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
            return
        first = self.data.ctypes.data - np.frombuffer(owner, np.uint8, 1).ctypes.data
        start = first // mmap.PAGESIZE * mmap.PAGESIZE
        owner.madvise(mmap.MADV_DONTNEED, start, first + self.data.nbytes - start)
