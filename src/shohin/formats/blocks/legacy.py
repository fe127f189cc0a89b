"""ggml's blocks of 32: Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shohin.formats.blocks.base import BlockFormat, Bytes, Codes, Floats, bits, halves, merge, read_halves
from shohin.formats.blocks.scaled import ScaledFormat, largest, rounded, signed_largest


def _join_nibbles(low: Bytes) -> Bytes:
    """Codes below 16, [n, 32] -> [n, 16]: byte j holds weight j below and weight j + 16 above."""
    return merge([low[:, :16], low[:, 16:]], 4)


def _split_nibbles(field: Bytes) -> Bytes:
    return np.concatenate([bits(field, 0, 4), bits(field, 4, 4)], axis=1)


def _fifth_bits(field: Bytes) -> Bytes:
    """Four bytes [n, 4] -> the fifth bit of each weight, 0 or 16, [n, 32]."""
    return np.unpackbits(field, axis=1, bitorder="little") * np.uint8(16)


def _join_fifth_bits(codes: Bytes) -> Bytes:
    return np.packbits(bits(codes, 4, 1), axis=1, bitorder="little")


def _floor(ratio: Floats, top: int) -> Bytes:
    """Cut towards zero like a C cast, then limit to ``top``; a ratio that overflowed (the scale is lost) becomes 0."""
    safe = np.where(np.isfinite(ratio), ratio, np.float32(0))
    return np.clip(safe, 0, top).astype(np.uint8)


class Q4_0(ScaledFormat):  # noqa: N801
    """18 bytes: f16 d, 16 bytes of nibbles; ``weight = d (nibble - 8)`` (ggml)."""

    name = "Q4_0"
    type_id = 2
    block = group = 32
    block_bytes = 18

    def _codes(self, field: Bytes) -> NDArray[np.int8]:
        return _split_nibbles(field).view(np.int8) - np.int8(8)

    def _scale(self, values: Floats) -> Floats:
        return signed_largest(values) / np.float32(-8)

    def _field(self, ratio: Floats) -> Bytes:
        return _join_nibbles(_floor(ratio + np.float32(8.5), 15))


class Q5_0(ScaledFormat):  # noqa: N801
    """22 bytes: f16 d, 4 bytes of fifth bits, 16 bytes of nibbles; ``weight = d (code - 16)`` (ggml)."""

    name = "Q5_0"
    type_id = 6
    block = group = 32
    block_bytes = 22

    def _codes(self, field: Bytes) -> NDArray[np.int8]:
        codes = _split_nibbles(field[:, 4:]) | _fifth_bits(field[:, :4])
        return codes.view(np.int8) - np.int8(16)

    def _scale(self, values: Floats) -> Floats:
        return signed_largest(values) / np.float32(-16)

    def _field(self, ratio: Floats) -> Bytes:
        codes = _floor(ratio + np.float32(16.5), 31)
        return np.concatenate([_join_fifth_bits(codes), _join_nibbles(bits(codes, 0, 4))], axis=1)


class Q8_0(ScaledFormat):  # noqa: N801
    """34 bytes: f16 d, 32 signed bytes; ``weight = d byte`` (ggml)."""

    name = "Q8_0"
    type_id = 8
    block = group = 32
    block_bytes = 34

    def _codes(self, field: Bytes) -> NDArray[np.int8]:
        return field.view(np.int8)

    def _scale(self, values: Floats) -> Floats:
        return largest(values) / np.float32(127)

    def _field(self, ratio: Floats) -> Bytes:
        return np.clip(rounded(ratio), -128, 127).astype(np.int8).view(np.uint8)


class _Affine(BlockFormat):
    """f16 d, f16 m, then codes; ``weight = d code + m``."""

    def _read(self, blocks: Bytes, code: Bytes) -> Codes:
        scale, least = read_halves(blocks[:, :2]), read_halves(blocks[:, 2:4])
        return Codes(code.view(np.int8)[:, None, :], scale[:, None], least[:, None])

    def _fit(self, values: Floats, top: int) -> tuple[Bytes, Bytes]:
        """The four bytes of d and m, and codes 0 ... top."""
        # argmin, not min: of +0 and -0 ggml stores the one it sees first.
        least = np.take_along_axis(values, values.argmin(axis=1)[:, None], axis=1)[:, 0]
        # Adding +0: the difference of -0 and +0 is -0, where ggml subtracts the one zero it kept from itself.
        scale = (values.max(axis=1) - least + np.float32(0)) / np.float32(top)
        head = np.concatenate([halves(scale), halves(least)], axis=1)
        inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
        return head, _floor((values - least[:, None]) * inverse[:, None] + np.float32(0.5), top)


class Q4_1(_Affine):  # noqa: N801
    """20 bytes: f16 d, f16 m, 16 bytes of nibbles (ggml)."""

    name = "Q4_1"
    type_id = 3
    block = group = 32
    block_bytes = 20

    def _unpack(self, blocks: Bytes) -> Codes:
        return self._read(blocks, _split_nibbles(blocks[:, 4:]))

    def _pack(self, values: Floats) -> Bytes:
        head, codes = self._fit(values, 15)
        return np.concatenate([head, _join_nibbles(codes)], axis=1)


class Q5_1(_Affine):  # noqa: N801
    """24 bytes: f16 d, f16 m, 4 bytes of fifth bits, 16 bytes of nibbles (ggml)."""

    name = "Q5_1"
    type_id = 7
    block = group = 32
    block_bytes = 24

    def _unpack(self, blocks: Bytes) -> Codes:
        return self._read(blocks, _split_nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8]))

    def _pack(self, values: Floats) -> Bytes:
        head, codes = self._fit(values, 31)
        return np.concatenate([head, _join_fifth_bits(codes), _join_nibbles(bits(codes, 0, 4))], axis=1)
