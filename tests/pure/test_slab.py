"""Packed weights lie one after the other, apart, and at lines of the cache."""

from __future__ import annotations

import numpy as np

from shohin.devices.slab import Slab


def test_arrays_are_apart_aligned_and_in_order() -> None:
    slab = Slab(1 << 12)
    sizes = [1, 63, 64, 65, 1000, 3000, 10_000, 5]
    taken = [slab.take(n) for n in sizes]
    for i, array in enumerate(taken):
        assert array.nbytes == sizes[i] and array.ctypes.data % 64 == 0
        array[:] = i
    assert all(np.all(array == i) for i, array in enumerate(taken))
    assert 0 < taken[1].ctypes.data - taken[0].ctypes.data <= 128, "neighbours in time are neighbours in memory"
