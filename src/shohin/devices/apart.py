"""Devices whose memory the host can't address: every value is copied there and back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shohin.devices.buffer import Buffer
from shohin.devices.device import Device

__all__ = ["Apart"]


class Apart(Device):
    """``storage`` of a buffer is the device's own handle; the first values of one are a handle's beginning.

    progress(done, total): told of every kernel that is compiled.
    """

    progress: Callable[[int, int], None] | None = None

    @contextmanager
    def telling(self, progress: Callable[[int, int], None]) -> Iterator[None]:
        """Tell ``progress`` of the kernels that are compiled meanwhile."""
        before, self.progress = self.progress, progress
        try:
            yield
        finally:
            self.progress = before

    @property
    def runs_ahead(self) -> bool:
        """Steps follow each other on the device."""
        return True

    @abstractmethod
    def _upload(self, storage: Any, offset: int, raw: NDArray[np.uint8]) -> None:
        """Copy bytes to a handle, from byte ``offset`` on."""

    @abstractmethod
    def _download(self, storage: Any, raw: NDArray[np.uint8]) -> None:
        """Copy the first bytes of a handle into ``raw``, once everything submitted is done."""

    def _first(self, buffer: Buffer, shape: tuple[int, ...]) -> Any:
        return buffer.storage

    def write(self, buffer: Buffer, values: NDArray[Any], first: int = 0) -> None:
        """Copy host values into rows ``first`` and on; BadShape unless they fit and have the buffer's row shape."""
        self._check_rows(buffer, values, first)
        if values.size == 0:
            return
        with np.errstate(over="ignore"):
            raw = np.ascontiguousarray(values, buffer.dtype).reshape(-1).view(np.uint8)
        with self.lock:
            self._upload(buffer.storage, first * prod(buffer.shape[1:]) * buffer.dtype.itemsize, raw)

    def read(self, buffer: Buffer, rows: int | None = None) -> NDArray[Any]:
        """A copy of the first ``rows`` rows, or of all."""
        count = buffer.shape[0] if rows is None else min(rows, buffer.shape[0])
        values = np.empty((count, *buffer.shape[1:]), buffer.dtype)
        if values.size:
            with self.lock:
                self._download(buffer.storage, values.reshape(-1).view(np.uint8))
        return values
