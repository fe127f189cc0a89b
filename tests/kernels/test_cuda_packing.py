"""Weights in tiles: the NumPy packing against the definition, and the device's packing against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from shohin.devices.cuda.packing import LAYOUTS, TileShape, pack_tiles
from shohin.formats.blocks import FORMATS

SHAPES = [(1, 128), (16, 512), (17, 640), (40, 1152)]


def random_rows(rng: np.random.Generator, fmt: str, n: int, k: int) -> np.ndarray:
    values = rng.standard_normal((n, k)).astype(np.float32)
    raw = np.array(FORMATS[fmt].encode(values))
    blocks = raw.reshape(-1, FORMATS[fmt].block_bytes)
    blocks[:, 2:] = rng.integers(0, 256, blocks[:, 2:].shape, np.uint8)  # every code occurs
    return raw


@pytest.mark.row("SC.4", "SC.5")
@pytest.mark.parametrize("fmt", sorted(LAYOUTS))
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_every_bit_lies_where_the_layout_says(rng: np.random.Generator, fmt: str, n: int, k: int) -> None:
    raw = random_rows(rng, fmt, n, k)
    codes = FORMATS[fmt].unpack(raw)
    planes = LAYOUTS[fmt][1]
    shape = TileShape(n, k, planes)
    bits, scales = pack_tiles(raw, FORMATS[fmt])
    assert bits.nbytes == shape.bits_bytes and scales.nbytes == shape.scale_bytes
    words = bits.reshape(shape.tiles, shape.chunks, planes, 2, 32, 4)
    pairs = scales.view(np.uint16).reshape(shape.tiles, shape.chunks, 32, 2)
    for _ in range(300):
        row, column = int(rng.integers(n)), int(rng.integers(k))
        group, within = divmod(column, 128)
        lane = (row % 8) * 4 + within // 32
        item = (group % 2) * 2 + row % 16 // 8
        found = [
            int(words[row // 16, group // 4, p, group % 4 // 2, lane, item]) >> within % 32 & 1 for p in range(planes)
        ]
        value = 2 * found[0] - 1 if planes == 1 else 2 * found[0] + found[1] - 1
        assert value == codes.code[row, group, within]
        half = pairs[row // 16, group // 4, (row % 8) * 4 + group % 4, row % 16 // 8]
        assert half.view(np.float16).astype(np.float32) == codes.scale[row, group]


@pytest.mark.parametrize("fmt", sorted(LAYOUTS))
def test_padding_is_zero(rng: np.random.Generator, fmt: str) -> None:
    bits, scales = pack_tiles(random_rows(rng, fmt, 17, 640), FORMATS[fmt])
    shape = TileShape(17, 640, LAYOUTS[fmt][1])
    words = bits.reshape(shape.tiles, shape.chunks, shape.planes, 2, 8, 4, 2, 2)
    pairs = scales.view(np.uint16).reshape(shape.tiles, shape.chunks, 8, 4, 2)
    assert not words[1, :, :, :, 1:].any() and not words[1, :, :, :, :, :, :, 1].any()  # rows 17 to 31
    assert not words[:, 1, :, 1].any() and not words[:, 1, :, 0, :, :, 1].any()  # groups 5 to 7
    assert not pairs[:, 1, :, 1:].any() and not pairs[1, :, 1:].any()
