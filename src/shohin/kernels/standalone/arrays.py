"""Checks of the arrays that callers of the standalone functions bring."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shohin.devices import Device
from shohin.errors import BadShape

MAX_DIMENSION = 2**32 - 1
MAX_BYTES = 2**63 - 1


def values(what: str, array: NDArray[Any], needed: int, device: Device, *, exact: bool = False) -> NDArray[Any]:
    """The first ``needed`` values of an array in row-major order, without a copy.

    BadShape unless it is a C-contiguous NumPy array of float32 (or of the device's float type) that holds at least
    ``needed`` values, or exactly that many (H.22: nothing is copied or converted in silence).
    """
    if not isinstance(array, np.ndarray):
        raise BadShape(f"{what}: a NumPy array was expected, got {type(array).__name__}")
    if array.dtype not in (np.dtype(np.float32), device.float_type):
        raise BadShape(f"{what}: float32 was expected, got {array.dtype}")
    if not array.flags.c_contiguous:
        raise BadShape(f"{what}: the array of shape {list(array.shape)} is not C-contiguous")
    if array.size < needed or (exact and array.size != needed):
        raise BadShape(f"{what}: {'exactly' if exact else 'at least'} {needed} values are needed, got {array.size}")
    return array.reshape(-1)[:needed]


def target(
    what: str, array: NDArray[Any] | None, shape: tuple[int, ...], device: Device, *, exact: bool = False
) -> NDArray[Any]:
    """Where to put a result of ``shape``: the caller's array, checked as in ``values``, or a new one."""
    if array is None:
        return np.empty(shape, device.float_type)
    values(what, array, product(what, *shape), device, exact=exact)
    if not array.flags.writeable:
        raise BadShape(f"{what}: the array is read-only")
    return array


def fill(array: NDArray[Any], result: NDArray[Any]) -> NDArray[Any]:
    """Write a result over the first values of a target and return the target."""
    array.reshape(-1)[: result.size] = result.reshape(-1)
    return array


def product(what: str, *sizes: int) -> int:
    """The number of values of a shape; BadShape for a dimension or a byte count that no device can index (H.12)."""
    n = 1
    for size in sizes:
        n *= size
    if max(sizes) > MAX_DIMENSION or n * 8 > MAX_BYTES:
        raise BadShape(f"{what}: a shape of {' x '.join(map(str, sizes))} is more than can be indexed")
    return n
