"""The paged key and value cache of one layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from shohin.devices import Buffer, Device
from shohin.errors import BadRequest, BadShape

PAGE = 64
KINDS = ("f16", "int8", "f32")


@dataclass(frozen=True)
class LayerCache:
    """keys, values: [pages, nkv, page, hd]; key_scales, value_scales: float16 [pages, nkv, page] for int8, else None.

    Kinds: ``f16``; ``int8``, per token and head with an f16 scale = max / 127; ``f32``, the device's own float, for
    comparing with references that keep an unrounded cache.
    """

    keys: Buffer
    values: Buffer
    key_scales: Buffer | None = None
    value_scales: Buffer | None = None

    @classmethod
    def allocate(cls, device: Device, name: str, kind: str, shape: tuple[int, int, int, int]) -> LayerCache:
        """Zeroed pages: shape is (pages, nkv, page, hd); BadRequest for an unknown kind."""
        if kind not in KINDS:
            raise BadRequest(f"kv is {kind!r}, expected one of {', '.join(KINDS)}", param="kv")
        types: dict[str, np.dtype[Any]] = {"f16": np.dtype(np.float16), "int8": np.dtype(np.int8)}
        dtype = types.get(kind, device.float_type)
        keys = device.buffer(f"{name}.keys", shape, dtype)
        values = device.buffer(f"{name}.values", shape, dtype)
        if kind != "int8":
            return cls(keys, values)
        scales = [device.buffer(f"{name}.{part}_scales", shape[:3], np.float16) for part in ("key", "value")]
        return cls(keys, values, *scales)

    @staticmethod
    def bytes_per_token(kind: str, kv_heads: int, head_dim: int, float_bytes: int = 4) -> int:
        """Bytes that one token takes in one layer, K and V together."""
        per_head = {"f16": 2 * head_dim, "int8": head_dim + 2, "f32": float_bytes * head_dim}[kind]
        return 2 * kv_heads * per_head

    def expect(self, what: str, kv_heads: int, head_dim: int, device: Device) -> None:
        """BadShape unless the cache has these heads and lives on ``device``; a mismatch never empties it (H.9)."""
        pages, _, page, _ = self.keys.shape
        for buffer in (self.keys, self.values):
            buffer.expect(f"{what}: cache", (pages, kv_heads, page, head_dim), device)
        quantised = self.keys.dtype == np.int8
        for scales in (self.key_scales, self.value_scales):
            if quantised != (scales is not None):
                raise BadShape(
                    f"{what}: cache {self.keys.name!r} of {self.keys.dtype} and its scales don't belong together"
                )
            if scales is not None:
                scales.expect(f"{what}: cache scales", (pages, kv_heads, page), device)
