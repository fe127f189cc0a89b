"""Room for packed weights in reading order, in pieces large enough for the system's large pages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# NumPy asks for large pages from 4 MiB up. Matrices of a layer are smaller: in arrays of their own, each 4 KiB of
# weights would cost a look-up of its page. What is not written is never committed.
SLAB = 64 << 20
LINE = 64


class Slab:
    """Hands out bytes one after the other, each at a line of the cache. A slab is freed with its last array."""

    def __init__(self, size: int = SLAB) -> None:
        self._size = size
        self._room = np.empty(0, np.uint8)
        self._used = 0

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """Uninitialised bytes; a request larger than a slab gets memory of its own size."""
        start = self._used + (-(self._room.ctypes.data + self._used) % LINE)
        if start + nbytes > len(self._room):
            self._room = np.empty(max(self._size, nbytes) + LINE, np.uint8)
            start = -self._room.ctypes.data % LINE
        self._used = start + nbytes
        return self._room[start : start + nbytes]
