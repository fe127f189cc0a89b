"""Softmax-weighted sums over keys in chunks of 256, merged in order: what both attention ops mean."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK = 256


def weighted_sum(q: NDArray[Any], keys: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    """softmax((q . keys^T) * (1 / sqrt(D))) . values; q [..., R, D], keys and values [..., T, D] -> [..., R, D].

    A chunk keeps its own maximum m, sum l of exp(s - m) and weighted sum o; chunks are merged first to last, rescaled
    to the running maximum, and the whole is multiplied once by 1 / sum (M.7 to M.9). The chunks are fixed by the key's
    index alone, so a result does not depend on how many keys follow.
    """
    factor = q.dtype.type(1 / np.sqrt(q.dtype.type(q.shape[-1])))
    top = np.full((*q.shape[:-1], 1), -np.inf, q.dtype)
    total = np.zeros_like(top)
    out = np.zeros(q.shape, q.dtype)
    for start in range(0, keys.shape[-2], CHUNK):
        k, v = (part[..., start : start + CHUNK, :] for part in (keys, values))
        scores = np.matmul(q, np.swapaxes(k, -1, -2)) * factor
        m = scores.max(axis=-1, keepdims=True)
        p = np.exp(scores - m)
        merged = np.maximum(top, m)
        old, new = np.exp(top - merged), np.exp(m - merged)
        total = total * old + p.sum(axis=-1, keepdims=True) * new
        out = out * old + np.matmul(p, v) * new
        top = merged
    return out * (1 / total)
