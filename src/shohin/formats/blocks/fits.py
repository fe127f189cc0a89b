"""The least-squares fits behind ggml's K-quants, for many groups at once and with its float32 order of operations.

Groups are columns: weights come as float32 [group, n], so that "the next weight of every group" is one contiguous row.
Every sum runs over the rows in order, since another order gives other bits. Source: ggml's reference quantisers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shohin.formats.blocks.base import Floats

Ints = NDArray[np.int32]
_F = np.float32
_TINY = _F(1e-15)


def nearest(value: Floats) -> Ints:
    """Half to even by adding 1.5 * 2^23 and reading the mantissa; far out of range it wraps exactly as ggml's does."""
    shifted = np.ascontiguousarray(value + _F(12582912))
    return (shifted.view(np.int32) & 0x7FFFFF) - 0x400000


def _sum(rows: Floats) -> Floats:
    total = np.zeros(rows.shape[1], _F)
    for row in rows:
        total += row
    return total


def _first_largest(x: Floats) -> Floats:
    where = np.abs(x).argmax(axis=0)[None]
    found: Floats = np.take_along_axis(x, where, axis=0)[0]
    return found


def fit_symmetric(x: Floats, top: int) -> tuple[Floats, Ints]:
    """Scale [n] and codes 0 ... 2 top - 1 [group, n] with ``x = scale (code - top)``, errors weighted by x^2.

    Tries 19 scales around the one that maps the largest weight to -top. All-zero groups get scale 0 and code 0.
    """
    peak = _first_largest(x)
    alive = np.abs(peak) >= _TINY
    weighted = x * x
    squares = weighted * x

    def trial(steps: float) -> tuple[Ints, Floats, Floats]:
        inverse = -(_F(top) + _F(0.1) * _F(steps)) / peak
        code = np.clip(nearest(inverse * x), -top, top - 1)
        level = code.astype(_F)
        return code, _sum(squares * level), _sum(weighted * level * level)

    best_code, sum_lx, sum_l2 = trial(0)
    scale = np.where(sum_l2 != 0, sum_lx / sum_l2, _F(0))
    best = scale * sum_lx
    for steps in (*range(-9, 0), *range(1, 10)):
        code, sum_lx, sum_l2 = trial(steps)
        better = (sum_l2 > 0) & (sum_lx * sum_lx > best * sum_l2)
        np.copyto(best_code, code, where=better)
        np.copyto(scale, sum_lx / sum_l2, where=better)
        np.copyto(best, scale * sum_lx, where=better)
    return np.where(alive, scale, _F(0)), np.where(alive, best_code + top, 0)


def fit_descent(x: Floats, top: int) -> tuple[Floats, Ints]:
    """As ``fit_symmetric``, found by moving one code at a time, five rounds, while the weighted error falls."""
    peak = _first_largest(x)
    alive = np.abs(peak) >= _TINY
    code = np.clip(nearest(_F(-top) / peak * x), -top, top - 1)
    weighted = x * x
    squares = weighted * x
    sum_lx = _sum(squares * code.astype(_F))
    sum_l2 = _sum(weighted * code.astype(_F) * code.astype(_F))
    for _ in range(5):
        before = code.copy()
        for i, row in enumerate(x):
            level = code[i].astype(_F)
            rest_lx = sum_lx - squares[i] * level
            rest_l2 = sum_l2 - weighted[i] * level * level
            moved = np.clip(nearest(row * rest_l2 / rest_lx), -top, top - 1)
            level = moved.astype(_F)
            new_lx = rest_lx + squares[i] * level
            new_l2 = rest_l2 + weighted[i] * level * level
            take = (rest_lx > 0) & (moved != code[i]) & (new_l2 > 0)
            take &= new_lx * new_lx * sum_l2 > sum_lx * sum_lx * new_l2
            np.copyto(code[i], moved, where=take)
            np.copyto(sum_lx, new_lx, where=take)
            np.copyto(sum_l2, new_l2, where=take)
        if (before == code).all():
            break
    scale = np.where(alive & (sum_l2 > 0), sum_lx / sum_l2, _F(0))
    return scale, np.where(alive, code + top, 0)


@dataclass(frozen=True)
class Search:
    """Codes 0 ... top; ``steps`` + 1 trial scales with ``top + start + 0.1 step`` levels; error absolute or squared."""

    top: int
    start: float
    steps: int
    absolute: bool = False


def fit_affine(x: Floats, weight: Floats, search: Search) -> tuple[Floats, Floats, Ints]:
    """Scale [n], depth [n] (>= 0) and codes [group, n] with ``x = scale code - depth``; ``weight`` weighs errors."""
    top = search.top
    low, high = np.minimum(x.min(axis=0), _F(0)), x.max(axis=0)
    flat = high == low
    sum_w, sum_x = _sum(weight), _sum(weight * x)
    # Best so far. Its offset is also the point from which the next trial measures: ggml's order of work.
    scale, offset = _F(1) / (_F(top) / (high - low)), low.copy()

    def codes(levels: np.float32) -> Ints:
        return np.clip(nearest(levels / (high - offset) * (x - offset)), 0, top)

    def error(level: Floats, scale: Floats, offset: Floats) -> Floats:
        miss = scale * level + offset - x
        return _sum(weight * (np.abs(miss) if search.absolute else miss * miss))

    code = codes(_F(top))
    best = error(code.astype(_F), scale, offset)
    for step in range(search.steps + 1):
        trial = codes(_F(search.start) + _F(0.1) * _F(step) + _F(top))
        level = trial.astype(_F)
        part = weight * level
        sum_l, sum_l2, sum_xl = _sum(part), _sum(part * level), _sum(part * x)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        new_offset: Floats = np.divide(sum_l2 * sum_x - sum_l * sum_xl, determinant)
        above = new_offset > 0
        new_scale: Floats = np.divide(sum_w * sum_xl - sum_x * sum_l, determinant)
        np.copyto(new_scale, sum_xl / sum_l2, where=above)
        new_offset[above] = 0
        new_error = error(level, new_scale, new_offset)
        better = (determinant > 0) & (new_error < best)
        for kept, new in ((code, trial), (scale, new_scale), (offset, new_offset), (best, new_error)):
            np.copyto(kept, new, where=better)
    return np.where(flat, _F(0), scale), -np.where(flat, low, offset), np.where(flat, 0, code)
