"""What holds for every block format: the table, lengths, refusals, extremes, and codes that multiply back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shohin.errors import BadFile, BadShape, UnsupportedFormat
from shohin.formats.blocks import DIALECTS_OF_42, FORMATS, ScaledFormat, by_name, by_type_id, type_name

QUANTISED = [name for name, fmt in FORMATS.items() if fmt.quantised]
SCALED = [name for name, fmt in FORMATS.items() if isinstance(fmt, ScaledFormat)]
IDS = {
    "F32": 0, "F16": 1, "BF16": 30, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11,
    "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "Q8_K": 15, "TQ1_0": 34, "TQ2_0": 35, "Q1_0": 41, "Q2_0": 42,
    "Q2_0_G128": 42, "TQ2_0_G128": 42, "PQ2_0": 142, "PTQ1_0": 143,
}  # fmt: skip


# ---- the table


def test_table() -> None:
    assert {name: fmt.type_id for name, fmt in FORMATS.items()} == IDS
    assert [fmt.name for fmt in DIALECTS_OF_42] == ["Q2_0", "Q2_0_G128", "TQ2_0_G128"]
    for name, fmt in FORMATS.items():
        assert fmt.block % fmt.group == 0
        assert by_name(name.lower()) is fmt
        if fmt.type_id != 42:
            assert by_type_id(fmt.type_id) is fmt


def test_unknown_types_are_named() -> None:
    with pytest.raises(UnsupportedFormat, match=r"3 layouts: Q2_0, Q2_0_G128, TQ2_0_G128"):
        by_type_id(42)
    with pytest.raises(UnsupportedFormat, match=r"NVFP4 \(40\)"):
        by_type_id(40)
    with pytest.raises(UnsupportedFormat, match=r"77 \(unknown\).*PQ2_0 \(142\)"):
        by_type_id(77)
    with pytest.raises(UnsupportedFormat, match=r"'iq2_xs' is a type that shohin does not run.*Q1_0"):
        by_name("iq2_xs")
    with pytest.raises(UnsupportedFormat, match=r"'Q9' is no format.*Q1_0.*Q8_K"):
        by_name("Q9")
    assert [type_name(i) for i in (42, 41, 31, -1)] == ["Q2_0 (42)", "Q1_0 (41)", "Q4_0_4_4 (31)", "-1 (unknown)"]


# ---- lengths


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.row("C12")
def test_ragged_rows_and_lengths_are_refused(name: str) -> None:
    fmt = FORMATS[name]
    if fmt.block > 1:
        with pytest.raises(BadShape, match=rf"{name}.*{fmt.block + 4}"):
            fmt.encode(np.zeros((2, fmt.block + 4), np.float32))
        with pytest.raises(BadShape, match=rf"{name}: {fmt.block - 1} weights"):
            fmt.nbytes(fmt.block - 1)
    for call in (fmt.decode, fmt.unpack) if fmt.quantised else (fmt.decode,):
        with pytest.raises(BadFile, match=rf"{name}: {fmt.block_bytes + 1} bytes.*{fmt.block_bytes}"):
            call(np.zeros((2, fmt.block_bytes + 1), np.uint8))
    with pytest.raises(BadShape, match="float32"):
        fmt.decode(np.zeros(fmt.block_bytes, np.float32))  # type: ignore[arg-type]
    assert fmt.nbytes(3 * fmt.block) == 3 * fmt.block_bytes


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.row("SC.4", "SC.5")
def test_planes(name: str) -> None:
    fmt = FORMATS[name]
    assert isinstance(fmt, ScaledFormat)
    raw = np.random.default_rng(5).integers(0, 256, (3, 4 * fmt.block_bytes), np.uint8)
    scales, codes = fmt.planes(raw)
    assert scales.shape == (3, 4) and scales.dtype == np.float16
    assert codes.shape == (3, 4, fmt.block_bytes - 2) and codes.dtype == np.uint8
    at = 0 if fmt.scale_first else fmt.block_bytes - 2
    block = raw[2, 3 * fmt.block_bytes :]
    assert scales[2, 3].tobytes() == block[at : at + 2].tobytes()
    assert codes[2, 3].tobytes() == np.delete(block, [at, at + 1]).tobytes()
    for length in (0, 1, fmt.block_bytes - 1, fmt.block_bytes + 1):
        with pytest.raises(BadFile, match=rf"\b{length} bytes"):
            fmt.planes(np.zeros(length, np.uint8))


def test_the_scale_stands_where_the_format_says() -> None:
    last = {name for name in SCALED if not FORMATS[name].scale_first}  # type: ignore[attr-defined]
    assert last == {"TQ1_0", "TQ2_0", "PTQ1_0", "TQ2_0_G128"}


@pytest.mark.parametrize("name", FORMATS)
def test_shapes_and_pieces(name: str) -> None:
    # Enough rows that the work is done in several pieces; any row alone gives the same.
    fmt = FORMATS[name]
    rng = np.random.default_rng(6)
    values = rng.standard_normal((3, 200, 512), np.float32)
    values[0, 0] = 0
    raw = fmt.encode(values)
    assert raw.shape == (3, 200, fmt.nbytes(512)) and raw.dtype == np.uint8
    decoded = fmt.decode(raw)
    assert decoded.shape == values.shape and decoded.dtype == np.float32
    assert np.array_equal(fmt.encode(values[2, 199]), raw[2, 199])
    assert np.array_equal(fmt.decode(raw[2, 199]), decoded[2, 199])
    assert fmt.decode(raw[:0]).shape == (0, 200, 512)
    assert fmt.lost_scales(values, raw) == 0


# ---- unpacking


@pytest.mark.parametrize("name", QUANTISED)
def test_codes_multiply_back_bit_for_bit(name: str) -> None:
    fmt, seed = FORMATS[name], 7
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (5, fmt.nbytes(512)), np.uint8)
    codes = fmt.unpack(raw)
    groups = 512 // fmt.group
    assert codes.code.shape == (5, groups, fmt.group) and codes.code.dtype == np.int8
    assert codes.scale.shape == (5, groups) and codes.scale.dtype == np.float32
    with np.errstate(all="ignore"):
        product = codes.scale[..., None] * codes.code.astype(np.float32)
        if codes.minimum is not None:
            assert codes.minimum.shape == (5, groups)
            product = product + codes.minimum[..., None]
    decoded = fmt.decode(raw)
    flat = product.reshape(5, 512)
    same = (flat.view(np.uint32) == decoded.view(np.uint32)) | (np.isnan(flat) & np.isnan(decoded))
    assert same.all(), f"seed {seed}"


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_plain_numbers_have_no_codes(name: str) -> None:
    with pytest.raises(UnsupportedFormat, match=name):
        FORMATS[name].unpack(np.zeros(4, np.uint8))


# ---- extremes


def blocks_of_c13(cases: Path) -> dict[str, np.ndarray]:
    data = (cases / "safetensors" / "blocks.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    out = {}
    for name, entry in header.items():
        start, stop = entry["data_offsets"]
        out[name] = np.frombuffer(data[8 + size + start : 8 + size + stop], "<f4").reshape(entry["shape"])
    return out


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.row("C13")
def test_extreme_blocks(name: str, cases: Path) -> None:
    fmt = FORMATS[name]
    blocks = {key: np.tile(value, (1, 2)) for key, value in blocks_of_c13(cases).items()}
    for key in ("zeros", "negative_zeros"):
        raw = fmt.encode(blocks[key])
        assert not fmt.decode(raw).any() and fmt.lost_scales(blocks[key], raw) == 0
    for key in ("subnormal", "below_fp16"):
        raw = fmt.encode(blocks[key])
        assert np.isfinite(fmt.decode(raw)).all()
        if name != "Q8_K":
            assert fmt.lost_scales(blocks[key], raw) == blocks[key].size // fmt.block
    refused = {"nan": "row 1, columns", "inf": "row 0, columns"}
    if isinstance(fmt, ScaledFormat) and name not in ("Q4_0", "Q5_0", "Q8_0"):
        refused |= {"over_fp16": "row 0, columns 0 to", "huge": "row 0, columns 0 to"}
        for key in ("constant", "fp16_edge"):
            assert np.array_equal(fmt.decode(fmt.encode(blocks[key])), blocks[key]), key
    elif name != "Q8_K":
        refused["huge"] = "row 0, columns 0 to"
    for key, where in refused.items():
        with pytest.raises(BadFile, match=rf"{name}: {where}"):
            fmt.encode(blocks[key])


@pytest.mark.row("C13")
@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_plain_formats_refuse_what_they_cannot_hold(name: str) -> None:
    fmt = FORMATS[name]
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(BadFile, match="row 1, columns 2 to 2: the block holds NaN or Inf"):
            fmt.encode(np.array([[0, 0, 0], [0, 0, bad]], np.float32))
    over = {"F16": 65520.0, "BF16": 3.4e38}.get(name)
    if over is not None:
        with pytest.raises(BadFile, match=r"row 0, columns 1 to 1.*more than the format stores"):
            fmt.encode(np.array([[0, over]], np.float32))
    assert np.array_equal(fmt.decode(fmt.encode(np.array([-0.0, 1, -2.5], np.float32))), np.array([0, 1, -2.5]))


def test_the_row_at_fault_is_named_beyond_the_first_piece() -> None:
    values = np.ones((3000, 128), np.float32)
    values[2500, 3] = 65520
    with pytest.raises(BadFile, match="PQ2_0: row 2500, columns 0 to 127: the block needs 65520"):
        by_name("PQ2_0").encode(values)


def test_lost_scales_wants_the_encoding_of_the_same_weights() -> None:
    with pytest.raises(BadShape, match="Q1_0: 1 blocks"):
        by_name("Q1_0").lost_scales(np.zeros(256, np.float32), np.zeros(18, np.uint8))


# ---- any bytes, any weights on the grid


@settings(deadline=None)
@given(st.sampled_from(sorted(FORMATS)), st.binary(min_size=0, max_size=700))
def test_any_bytes_decode_or_are_refused(name: str, data: bytes) -> None:
    fmt = FORMATS[name]
    whole = data[: len(data) // fmt.block_bytes * fmt.block_bytes]
    if whole:
        assert fmt.decode(np.frombuffer(whole, np.uint8)).shape == (len(whole) // fmt.block_bytes * fmt.block,)
    if len(data) % fmt.block_bytes:
        with pytest.raises(BadFile):
            fmt.decode(np.frombuffer(data, np.uint8))


# Lowest and highest code of the grid, and the codes that must occur so that the encoder finds the same scale.
GRIDS = {
    "Q1_0": (0, 1, ()), "Q2_0": (-1, 1, (-1,)), "Q2_0_G128": (-1, 1, (1,)), "TQ2_0_G128": (-1, 1, (1,)),
    "PQ2_0": (-1, 1, (-1,)), "PTQ1_0": (-1, 1, (1,)), "TQ1_0": (-1, 1, (-1,)), "TQ2_0": (-1, 1, (1,)),
    "Q4_0": (-8, 7, (-8,)), "Q5_0": (-16, 15, (-16,)), "Q8_0": (-127, 127, (127,)),
}  # fmt: skip


@settings(deadline=None)
@given(st.sampled_from(sorted(GRIDS)), st.integers(1, 0x7BFF), st.integers(0, 2**32 - 1))
def test_weights_on_the_grid_come_back(name: str, scale_bits: int, seed: int) -> None:
    fmt, (low, high, needed) = FORMATS[name], GRIDS[name]
    scale = np.array(scale_bits, "<u2").view("<f2").astype(np.float32)
    codes = np.random.default_rng(seed).integers(low, high + 1, fmt.block).astype(np.float32)
    codes[: len(needed)] = needed
    values = scale * (codes * 2 - 1 if name == "Q1_0" else codes)
    raw = fmt.encode(values)
    assert np.array_equal(fmt.decode(raw), values)
    assert np.array_equal(fmt.encode(fmt.decode(raw)), raw)


@settings(deadline=None)
@given(st.sampled_from(["Q4_1", "Q5_1"]), st.integers(0x0400, 0x6000), st.integers(0, 8), st.integers(0, 2**32 - 1))
def test_weights_above_a_minimum_come_back(name: str, scale_bits: int, depth: int, seed: int) -> None:
    fmt, top = FORMATS[name], 15 if name == "Q4_1" else 31
    # A scale of few bits, so that scale times depth is exact in f16.
    scale = np.array(scale_bits & 0xFF80, "<u2").view("<f2").astype(np.float32)
    codes = np.random.default_rng(seed).integers(0, top + 1, 32).astype(np.float32)
    codes[:2] = 0, top
    values = scale * (codes - depth)
    assert np.array_equal(fmt.decode(fmt.encode(values)), values)
