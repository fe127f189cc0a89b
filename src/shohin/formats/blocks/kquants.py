"""ggml's blocks of 256 with scales inside: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, and Q8_K.

A block has groups of 16 or 32 weights; each group's scale (and minimum) is a small integer times an f16 of the block,
multiplied out in float32. Layouts and the order of operations are ggml's.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from shohin.formats.blocks.base import BlockFormat, Bytes, Codes, Floats, bits, halves, merge, read_halves
from shohin.formats.blocks.fits import Ints, Search, fit_affine, fit_descent, fit_symmetric, nearest

_F = np.float32
_BIT_SHIFTS = np.arange(8, dtype=np.uint8)[:, None]
_PAIR_SHIFTS = np.array([0, 2, 4, 6], np.uint8)[:, None]


def _unpack_pairs(field: Bytes) -> Bytes:
    """64 bytes -> 256 codes of two bits: pair s of byte l in half h is weight ``128 h + 32 s + l``."""
    return bits(field.reshape(-1, 2, 1, 32), _PAIR_SHIFTS, 2).reshape(-1, 256)


def _pack_pairs(codes: Bytes) -> Bytes:
    quads = codes.reshape(-1, 2, 4, 32)
    return merge([quads[:, :, i] for i in range(4)], 2).reshape(-1, 64)


def _by_group(values: Floats, group: int) -> Floats:
    """[n, 256] -> [group, n * 256 / group], as the fits want it."""
    return np.ascontiguousarray(values.reshape(-1, group).T)


def _requantise(values: Floats, codes: Codes, fitted: Ints, limits: tuple[int, int]) -> Ints:
    """Codes against the scales as stored; groups whose stored scale is 0 keep the fitted code. [n, groups, group]."""
    grouped = values.reshape(codes.code.shape)
    scale = codes.scale[..., None]
    raised = grouped if codes.minimum is None else grouped - codes.minimum[..., None]
    code = np.clip(nearest(raised / scale), *limits) - limits[0]
    kept = fitted.T.reshape(codes.code.shape)
    return np.where(scale != 0, code, kept)


class _KQuant(BlockFormat):
    block = 256

    def _stored(self, scales: tuple[Floats, Floats | None], shape: tuple[int, int]) -> Codes:
        groups = (shape[0], shape[1], self.group)
        return Codes(np.broadcast_to(np.int8(0), groups), *scales)


class _Affine(_KQuant):
    """f16 d and m for the block, an integer scale and minimum for each group: ``weight = (d s) code - (m t)``."""

    _search: ClassVar[Search]
    _levels: ClassVar[int]

    def _multiply_out(self, head: Bytes, small: tuple[Bytes, Bytes]) -> tuple[Floats, Floats]:
        """Four bytes of d and m, and the groups' integers -> scale and (negative) minimum of each group."""
        scale, depth = read_halves(head[:, :2])[:, None], read_halves(head[:, 2:])[:, None]
        return scale * small[0].astype(_F), -(depth * small[1].astype(_F))

    def _quantise(self, values: Floats) -> tuple[Bytes, tuple[Bytes, Bytes], Bytes]:
        """The bytes of d and m, the groups' integers [n, groups], and the codes [n, 256]."""
        x = _by_group(values, self.group)
        scale, depth, fitted = fit_affine(x, self._weight(x), self._search)
        scale, depth = scale.reshape(len(values), -1), depth.reshape(len(values), -1)
        top_scale, top_depth = scale.max(axis=1).clip(0), depth.max(axis=1).clip(0)
        head = np.concatenate([halves(top_scale / _F(self._levels)), halves(top_depth / _F(self._levels))], axis=1)
        small = self._shares(scale, top_scale), self._shares(depth, top_depth)
        codes = self._stored(self._multiply_out(head, self._as_read(*small)), scale.shape)
        code = _requantise(values, codes, fitted, (0, self._search.top))
        return head, small, code.astype(np.uint8).reshape(-1, 256)

    def _shares(self, part: Floats, top: Floats) -> Bytes:
        inverse = np.divide(_F(self._levels), top, out=np.zeros_like(top), where=top > 0)
        # A negative share wraps, as ggml's cast to a byte does.
        return nearest(inverse[:, None] * part).astype(np.uint8)

    def _as_read(self, scale: Bytes, depth: Bytes) -> tuple[Bytes, Bytes]:
        return scale, depth

    @abstractmethod
    def _weight(self, x: Floats) -> Floats:
        """How much the error of each weight counts, [group, n]."""


class Q2_K(_Affine):  # noqa: N801
    """84 bytes: 16 of scale (low nibble) and minimum (high), 64 of pairs, f16 d, f16 m."""

    name = "Q2_K"
    type_id = 10
    block_bytes = 84
    group = 16
    _search = Search(top=3, start=-0.5, steps=15, absolute=True)
    _levels = 15

    def _weight(self, x: Floats) -> Floats:
        weight: Floats = np.abs(x)
        return weight

    def _unpack(self, blocks: Bytes) -> Codes:
        small = blocks[:, :16]
        code = _unpack_pairs(blocks[:, 16:80]).view(np.int8).reshape(-1, 16, 16)
        return Codes(code, *self._multiply_out(blocks[:, 80:], (bits(small, 0, 4), bits(small, 4, 4))))

    def _as_read(self, scale: Bytes, depth: Bytes) -> tuple[Bytes, Bytes]:
        both = merge([scale, depth], 4)
        return bits(both, 0, 4), bits(both, 4, 4)

    def _pack(self, values: Floats) -> Bytes:
        head, (scale, depth), code = self._quantise(values)
        return np.concatenate([merge([scale, depth], 4), _pack_pairs(code), head], axis=1)


class _Affine32(_Affine):
    """Eight groups of 32 whose six-bit scales and minimums share twelve bytes."""

    group = 32
    _levels = 63

    def _weight(self, x: Floats) -> Floats:
        total = np.zeros(x.shape[1], _F)
        for row in x:
            total += row * row
        weight: Floats = np.sqrt(total / _F(32)) + np.abs(x)
        return weight

    def _read_small(self, field: Bytes) -> tuple[Bytes, Bytes]:
        first, second, third = field[:, :4], field[:, 4:8], field[:, 8:]
        scale = np.concatenate([bits(first, 0, 6), merge([bits(third, 0, 4), bits(first, 6, 2)], 4)], axis=1)
        depth = np.concatenate([bits(second, 0, 6), merge([bits(third, 4, 4), bits(second, 6, 2)], 4)], axis=1)
        return scale, depth

    def _write_small(self, scale: Bytes, depth: Bytes) -> Bytes:
        first = merge([scale[:, :4], bits(scale[:, 4:], 4, 2)], 6)
        second = merge([depth[:, :4], bits(depth[:, 4:], 4, 2)], 6)
        return np.concatenate([first, second, merge([bits(scale[:, 4:], 0, 4), bits(depth[:, 4:], 0, 4)], 4)], axis=1)

    def _shares(self, part: Floats, top: Floats) -> Bytes:
        return np.minimum(super()._shares(part, top), 63)


class Q4_K(_Affine32):  # noqa: N801
    """144 bytes: f16 d, f16 m, 12 of scales, 128 of nibbles (groups 2 i below and 2 i + 1 above share 32 bytes)."""

    name = "Q4_K"
    type_id = 12
    block_bytes = 144
    _search = Search(top=15, start=-1.0, steps=20)

    def _unpack(self, blocks: Bytes) -> Codes:
        field = blocks[:, 16:].reshape(-1, 4, 1, 32)
        code = np.concatenate([bits(field, 0, 4), bits(field, 4, 4)], axis=2).view(np.int8).reshape(-1, 8, 32)
        return Codes(code, *self._multiply_out(blocks[:, :4], self._read_small(blocks[:, 4:16])))

    def _pack(self, values: Floats) -> Bytes:
        head, small, code = self._quantise(values)
        pairs = code.reshape(-1, 4, 2, 32)
        nibbles = merge([pairs[:, :, 0], pairs[:, :, 1]], 4).reshape(-1, 128)
        return np.concatenate([head, self._write_small(*small), nibbles], axis=1)


class Q5_K(_Affine32):  # noqa: N801
    """176 bytes: f16 d, f16 m, 12 of scales, 32 of fifth bits (bit g for group g), 128 of nibbles as in Q4_K."""

    name = "Q5_K"
    type_id = 13
    block_bytes = 176
    _search = Search(top=31, start=-0.5, steps=15)

    def _unpack(self, blocks: Bytes) -> Codes:
        field = blocks[:, 48:].reshape(-1, 4, 1, 32)
        low = np.concatenate([bits(field, 0, 4), bits(field, 4, 4)], axis=2).reshape(-1, 8, 32)
        fifth = bits(blocks[:, None, 16:48], _BIT_SHIFTS, 1)
        code = merge([low, fifth], 4).view(np.int8)
        return Codes(code, *self._multiply_out(blocks[:, :4], self._read_small(blocks[:, 4:16])))

    def _pack(self, values: Floats) -> Bytes:
        head, small, code = self._quantise(values)
        fifth = np.packbits(bits(code.reshape(-1, 8, 32), 4, 1), axis=1, bitorder="little").reshape(-1, 32)
        pairs = bits(code, 0, 4).reshape(-1, 4, 2, 32)
        nibbles = merge([pairs[:, :, 0], pairs[:, :, 1]], 4).reshape(-1, 128)
        return np.concatenate([head, self._write_small(*small), fifth, nibbles], axis=1)


class _Symmetric(_KQuant):
    """f16 d for the block and a signed integer scale for each group of 16: ``weight = (d s) code``."""

    group = 16

    def _choose(self, scale: Floats, levels: int) -> tuple[Floats, NDArray[np.int8]]:
        """Scales [n, 16] -> the block's scale [n] and the groups' integers [n, 16], the largest at ``-levels``."""
        where = np.abs(scale).argmax(axis=1)[:, None]
        inverse = _F(-levels) / np.take_along_axis(scale, where, axis=1)
        small = np.clip(nearest(inverse * scale), -levels, levels - 1).astype(np.int8)
        return (_F(1) / inverse)[:, 0], small


class Q3_K(_Symmetric):  # noqa: N801
    """110 bytes: 32 of high bits, 64 of pairs, 12 of six-bit scales (minus 32), f16 d; codes -4 ... 3."""

    name = "Q3_K"
    type_id = 11
    block_bytes = 110

    def _unpack(self, blocks: Bytes) -> Codes:
        high = bits(blocks[:, None, :32], _BIT_SHIFTS, 1)
        code = merge([_unpack_pairs(blocks[:, 32:96]), high.reshape(-1, 256)], 2).view(np.int8) - np.int8(4)
        field = blocks[:, 96:108]
        low = np.concatenate([bits(field[:, :8], 0, 4), bits(field[:, :8], 4, 4)], axis=1)
        upper = bits(field[:, None, 8:], _PAIR_SHIFTS, 2).reshape(-1, 16)
        small = merge([low, upper], 4).view(np.int8) - np.int8(32)
        return Codes(code.reshape(-1, 16, 16), read_halves(blocks[:, 108:])[:, None] * small.astype(_F))

    def _pack(self, values: Floats) -> Bytes:
        scale, fitted = fit_descent(_by_group(values, 16), 4)
        block_scale, small = self._choose(scale.reshape(-1, 16), 32)
        empty = ~scale.reshape(-1, 16).any(axis=1)
        block_scale[empty] = 0
        stored = (small + np.int8(32)).view(np.uint8)
        stored[empty] = 0
        low = bits(stored, 0, 4)
        upper = bits(stored, 4, 2).reshape(-1, 4, 4)
        shifted = merge([upper[:, i] for i in range(4)], 2)
        half = halves(block_scale)
        as_read = read_halves(half)[:, None] * (stored.view(np.int8) - np.int8(32)).astype(_F)
        code = _requantise(values, self._stored((as_read, None), small.shape), fitted, (-4, 3))
        flat = code.astype(np.uint8).reshape(-1, 256)
        high = np.packbits(bits(flat, 2, 1).reshape(-1, 8, 32), axis=1, bitorder="little").reshape(-1, 32)
        return np.concatenate(
            [high, _pack_pairs(bits(flat, 0, 2)), merge([low[:, :8], low[:, 8:]], 4), shifted, half], axis=1
        )


class Q6_K(_Symmetric):  # noqa: N801
    """210 bytes: 128 of low nibbles, 64 of high pairs, 16 signed scales, f16 d; codes -32 ... 31."""

    name = "Q6_K"
    type_id = 14
    block_bytes = 210

    def _unpack(self, blocks: Bytes) -> Codes:
        field = blocks[:, :128].reshape(-1, 2, 1, 64)
        low = np.concatenate([bits(field, 0, 4), bits(field, 4, 4)], axis=2).reshape(-1, 256)
        code = merge([low, _unpack_pairs(blocks[:, 128:192])], 4).view(np.int8) - np.int8(32)
        small = blocks[:, 192:208].view(np.int8).astype(_F)
        return Codes(code.reshape(-1, 16, 16), read_halves(blocks[:, 208:])[:, None] * small)

    def _pack(self, values: Floats) -> Bytes:
        scale, fitted = fit_symmetric(_by_group(values, 16), 32)
        block_scale, small = self._choose(scale.reshape(-1, 16), 128)
        empty = np.abs(scale).reshape(-1, 16).max(axis=1) < _F(1e-15)
        block_scale[empty] = 0
        half = halves(block_scale)
        as_read = read_halves(half)[:, None] * small.astype(_F)
        code = _requantise(values, self._stored((as_read, None), small.shape), fitted, (-32, 31))
        flat = code.astype(np.uint8).reshape(-1, 256)
        pairs = bits(flat, 0, 4).reshape(-1, 2, 2, 64)
        nibbles = merge([pairs[:, :, 0], pairs[:, :, 1]], 4).reshape(-1, 128)
        out = np.concatenate([nibbles, _pack_pairs(bits(flat, 4, 2)), small.view(np.uint8), half], axis=1)
        out[empty] = 0
        return out


class Q8_K(_KQuant):  # noqa: N801
    """292 bytes: f32 d, 256 signed bytes, the sum of each 16 as int16. ggml's activations; never seen in a file."""

    name = "Q8_K"
    type_id = 15
    block_bytes = 292
    group = 256

    def _unpack(self, blocks: Bytes) -> Codes:
        scale = blocks[:, :4].view("<f4").astype(_F)
        return Codes(blocks[:, None, 4:260].view(np.int8), scale)

    def _pack(self, values: Floats) -> Bytes:
        where = np.abs(values).argmax(axis=1)[:, None]
        peak = np.take_along_axis(values, where, axis=1)
        inverse = _F(-127) / peak
        code = np.minimum(nearest(inverse * values), 127).astype(np.int8)
        scale = (_F(1) / inverse).astype("<f4")
        code[peak[:, 0] == 0] = 0
        scale[peak == 0] = 0
        sums = code.reshape(-1, 16, 16).sum(axis=2, dtype="<i2")
        return np.concatenate([scale.view(np.uint8), code.view(np.uint8), sums.view(np.uint8)], axis=1)
