"""A decoder layer in plain float64, written without any of the package's kernels."""

from __future__ import annotations

import numpy as np

from shohin.kernels.attend import Heads

EPS = 1e-6
THETA = 10000.0


def rope_table(positions: int, dim: int) -> np.ndarray:
    angles = np.arange(positions)[:, None] * THETA ** (-np.arange(dim // 2) * 2 / dim)
    return np.concatenate((np.cos(angles), np.sin(angles)), axis=1)


def parts(heads: Heads, qkv: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    shaped = qkv.astype(np.float64).reshape(len(qkv), -1, heads.dim)
    return tuple(np.split(shaped, (heads.query, heads.query + heads.kv), axis=1))


def rotated(x: np.ndarray, positions: np.ndarray, pairing: str = "half", *, backwards: bool = False) -> np.ndarray:
    """RoPE as a complex product, an independent statement of M.5."""
    dim = x.shape[-1]
    turn = np.exp((-1j if backwards else 1j) * positions[:, None] * THETA ** (-np.arange(dim // 2) * 2 / dim))[:, None]
    if pairing == "half":
        z = (x[..., : dim // 2] + 1j * x[..., dim // 2 :]) * turn
        return np.concatenate((z.real, z.imag), axis=-1)
    z = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
    return np.stack((z.real, z.imag), axis=-1).reshape(x.shape)


def normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPS) * weight


def softmax_rows(q: np.ndarray, k: np.ndarray, v: np.ndarray, lengths: np.ndarray, **broken: bool) -> np.ndarray:
    """Plain attention, one query and head at a time: q [M, nq, hd], k and v [T, nkv, hd] -> [M, nq * hd]."""
    group = q.shape[1] // k.shape[1]
    out = np.zeros(q.shape)
    for m in range(len(q)):
        for h in range(q.shape[1]):
            n = lengths[m]
            kv = h % k.shape[1] if broken.get("interleaved") else h // group
            s = k[:n, kv] @ q[m, h]
            s = s if broken.get("unscaled") else s / np.sqrt(q.shape[2])
            p = np.exp(s - s.max())
            out[m, h] = (p / p.sum()) @ v[:n, kv]
    return out.reshape(len(q), -1)
