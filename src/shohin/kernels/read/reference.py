"""The meaning of ``read``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def read(words: NDArray[np.int32], out: NDArray[np.int32]) -> None:
    """out[c, 0] = sum of words[c] modulo 2^32; 32-bit sums, since wider ones would cost more than the reading."""
    for chunk, total in zip(words, out, strict=True):
        total[0] = np.add.reduce(chunk, dtype=np.int32)
