"""Derived error bounds, and the check that a broken kernel would exceed them.

u is the unit roundoff of the device's float type. The standard result (Higham, Accuracy and Stability of Numerical
Algorithms, 2002, section 3.1) is that a sum of n products computed in any order, with or without fused multiply-adds,
is within gamma(n) * sum |a_i b_i| of the true one, gamma(n) = n u / (1 - n u).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shohin.devices import Device, Weight

Array = NDArray[np.float64]


def unit(device: Device) -> float:
    """u: half the distance from 1 to the next float."""
    return float(np.finfo(device.float_type).eps) / 2


def gamma(device: Device, n: int) -> float:
    """Relative error of n roundings in a row."""
    nu = n * unit(device)
    assert nu < 0.1
    return nu / (1 - nu)


def magnitude(weight: Weight, raw: NDArray[np.uint8]) -> Array:
    """float64 [N, K]: |W|, or |scale * code| + |minimum| where a weight is two terms that may cancel."""
    fmt = weight.source_format
    if not fmt.quantised:
        return np.abs(fmt.decode(raw).astype(np.float64))
    codes = fmt.unpack(raw)
    size = np.abs(codes.code.astype(np.float64)) * np.abs(codes.scale.astype(np.float64))[..., None]
    if codes.minimum is not None:
        size += np.abs(codes.minimum.astype(np.float64))[..., None]
    return size.reshape(len(raw), -1)


def product(device: Device, x: Any, size: Array, extra: int = 0) -> Array:
    """Bound of x . W^T: K products and sums, one rounding of the decoded float32 weight, two of scales, one spare.

    ``extra`` counts relative roundings already in x. The decoded weight itself is rounded to float32 on every device,
    which is one float32 rounding even where the device computes in float64.
    """
    terms = np.abs(np.asarray(x, np.float64)) @ size.T
    return (gamma(device, x.shape[-1] + 4 + extra) + 2.0**-24) * terms + 1e-300


def norm_roundings(k: int) -> int:
    """Roundings of (x * r) * w with r = 1 / sqrt(mean(x^2) + eps): half of the sum's K + 2 (square root), then five."""
    return k // 2 + 6


def within(got: Any, want: Array, bound: Array | float) -> bool:
    """Whether |got - want| <= bound everywhere; NaN is never within."""
    return bool(np.all(np.abs(np.asarray(got, np.float64) - want) <= bound))


def check(got: Any, want: Array, bound: Array | float, mutants: dict[str, Array]) -> None:
    """got is within the bound of the oracle, and every named wrong result is not: the bound can tell them apart."""
    got = np.asarray(got, np.float64)
    assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
    error = np.abs(got - want)
    worst = float(np.max(error / np.maximum(bound, 1e-300)))
    assert within(got, want, bound), f"largest error {np.nanmax(error):.3g} is {worst:.3g} times the bound"
    for name, wrong in mutants.items():
        assert not within(wrong, want, bound), f"the bound would let the mutant {name!r} pass"
