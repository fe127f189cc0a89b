"""The meaning of ``attend``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shohin.devices import Step
from shohin.devices.host import HostWeight
from shohin.kernels.attend.softmax import weighted_sum
from shohin.kernels.linear.reference import rms_factor

if TYPE_CHECKING:
    from shohin.kernels.attend.op import Attend


def attend(op: Attend, operands: Sequence[Any], step: Step) -> None:
    """Norm and rotate q and k, store every row's k and v, then let every row attend to keys 0 to its own position."""
    qkv, q_norm, k_norm, rope, keys, values, key_scales, value_scales, out = operands
    heads, rows = op.heads, step.rows
    parts = qkv[:rows].reshape(rows, heads.query + 2 * heads.kv, heads.dim)
    q, k, v = np.split(parts, (heads.query, heads.query + heads.kv), axis=1)
    angles = rope[step.positions]
    q = rotate(head_norm(q, q_norm, op.eps), angles, heads.pairing)
    k = rotate(head_norm(k, k_norm, op.eps), angles, heads.pairing)
    where = places(step, keys.shape[2])
    store(keys, key_scales, where, k)
    store(values, value_scales, where, v)
    for m in range(rows):
        length = int(step.positions[m]) + 1
        table = step.pages[step.sequences[m], : -(-length // keys.shape[2])]
        grouped = q[m].reshape(heads.kv, -1, heads.dim)  # query head h reads KV head h // (nq / nkv) (M.10)
        seen = (load(c, s, table, length, q.dtype) for c, s in ((keys, key_scales), (values, value_scales)))
        out[m] = weighted_sum(grouped, *seen).reshape(-1)


def head_norm(x: NDArray[Any], weight: HostWeight | None, eps: float) -> NDArray[Any]:
    """RMSNorm of each head of x [rows, heads, hd] with one shared weight [hd] (M.4); x itself without a weight."""
    return x if weight is None else (x * rms_factor(x, eps)) * weight.dense


def rotate(x: NDArray[Any], angles: NDArray[Any], pairing: str) -> NDArray[Any]:
    """RoPE of x [rows, heads, hd] by angles [rows, hd]: cos of every pair, then sin (M.5)."""
    cos, sin = np.split(angles[:, None, :], 2, axis=2)
    half = x.shape[2] // 2
    first, second = (slice(0, half), slice(half, None)) if pairing == "half" else (slice(0, None, 2), slice(1, None, 2))
    out = np.empty_like(x)
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def places(step: Step, page: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The page and the slot within it of each row's own key."""
    return step.pages[step.sequences, step.positions // page], step.positions % page


def store(
    cache: NDArray[Any],
    scales: NDArray[np.float16] | None,
    where: tuple[NDArray[np.int32], NDArray[np.int32]],
    x: NDArray[Any],
) -> None:
    """Round x [rows, nkv, hd] once to the cache's type (M.1); int8 with an f16 scale per row and head."""
    page, slot = where
    if scales is None:
        cache[page, :, slot] = x.astype(cache.dtype)
        return
    top = np.abs(x).max(axis=2)
    scale = np.where(np.isfinite(top), top / x.dtype.type(127), np.nan).astype(np.float16)
    wide = scale.astype(x.dtype)[..., None]
    usable = np.isfinite(wide) & (wide > 0)
    codes = np.rint(np.divide(x, wide, out=np.zeros_like(x), where=usable))
    cache[page, :, slot] = np.clip(codes, -127, 127).astype(np.int8)
    scales[page, :, slot] = scale


def load(
    cache: NDArray[Any],
    scales: NDArray[np.float16] | None,
    table: NDArray[np.int32],
    length: int,
    float_type: np.dtype[Any],
) -> NDArray[Any]:
    """The first ``length`` keys or values of a sequence, in order, as floats [nkv, length, hd]."""
    paged = cache[table].astype(float_type)
    if scales is not None:
        paged *= scales[table].astype(float_type)[..., None]
    nkv, hd = cache.shape[1], cache.shape[3]
    return np.swapaxes(paged, 0, 1).reshape(nkv, -1, hd)[:, :length]
