"""The block formats against what ggml's own C was recorded to do, bit for bit, and against the gguf package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from shohin.formats.blocks import FORMATS

RECORDED = Path(__file__).parents[1] / "fixtures" / "ggml_blocks" / "blocks.npz"
GGML = [
    "Q1_0", "Q2_0", "TQ1_0", "TQ2_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K", "F16", "BF16",
]  # fmt: skip


@pytest.fixture(scope="module")
def recorded() -> Mapping[str, np.ndarray]:
    with np.load(RECORDED) as file:
        return {key: file[key] for key in file.files}


def bits_differ(ours: np.ndarray, theirs: np.ndarray) -> int:
    """Weights whose bits differ; a NaN equals any NaN."""
    both_nan = np.isnan(ours) & np.isnan(theirs)
    return int(((ours.view(np.uint32) != theirs.view(np.uint32)) & ~both_nan).sum())


@pytest.mark.parametrize("name", GGML)
def test_decode_is_ggmls(name: str, recorded: Mapping[str, np.ndarray]) -> None:
    theirs = recorded[f"{name}.decoded"].view(np.float32)
    assert bits_differ(FORMATS[name].decode(recorded[f"{name}.random"]), theirs) == 0


@pytest.mark.parametrize("name", GGML)
def test_encode_is_ggmls(name: str, recorded: Mapping[str, np.ndarray]) -> None:
    values, theirs = recorded["values"], recorded[f"{name}.encoded"]
    ours = FORMATS[name].encode(values)
    wrong = [str(note) for note, a, b in zip(recorded["notes"], ours, theirs, strict=True) if (a != b).any()]
    assert not wrong


def test_one_row_alone_encodes_as_among_others(recorded: Mapping[str, np.ndarray]) -> None:
    # The sums inside the fits have one order, whatever the number of groups beside them.
    for name in GGML:
        for row in (0, 6, 10):
            alone = FORMATS[name].encode(recorded["values"][row])
            assert np.array_equal(alone, recorded[f"{name}.encoded"][row]), name


@pytest.mark.parametrize("name", ["PQ2_0", "Q2_0_G128", "PTQ1_0"])
def test_formats_ggml_does_not_know_round_like_those_it_does(name: str, recorded: Mapping[str, np.ndarray]) -> None:
    # A block of 256 that repeats 128 weights has the scale and the codes of a block of 128.
    fmt, known = FORMATS[name], FORMATS["TQ2_0"]
    halves = recorded["values"].reshape(-1, 128)
    twice = known.encode(np.concatenate([halves, halves], axis=1))
    assert np.array_equal(fmt.decode(fmt.encode(halves)), known.decode(twice)[:, :128])


def test_oxibonsai_compares_with_half_the_largest() -> None:
    fmt = FORMATS["TQ2_0_G128"]
    below = np.nextafter(np.float32(0.35), np.float32(0))
    values = np.resize(np.array([0.7, 0.35, -0.35, below, -below, 0, -0.0, -0.7], np.float32), 128)
    d = float(np.float16(0.7))
    assert fmt.decode(fmt.encode(values))[:8].tolist() == [d, d, -d, 0, 0, 0, 0, -d]
    assert fmt.encode(np.zeros(128, np.float32)).tobytes() == b"\x55" * 32 + b"\0\0"


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "BF16"])
def test_gguf_package_agrees(name: str) -> None:
    gguf = pytest.importorskip("gguf", reason="the gguf package is an optional oracle")
    seed = 41
    values = np.random.default_rng(seed).standard_normal((64, 512), np.float32)
    kind = gguf.GGMLQuantizationType[name]
    theirs = gguf.quants.quantize(values, kind)
    assert np.array_equal(FORMATS[name].encode(values), theirs.view(np.uint8).reshape(64, -1)), f"seed {seed}"
    assert bits_differ(FORMATS[name].decode(theirs), gguf.quants.dequantize(theirs, kind)) == 0, f"seed {seed}"


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_gguf_package_decodes_alike(name: str) -> None:
    gguf = pytest.importorskip("gguf", reason="the gguf package is an optional oracle")
    seed = 42
    values = np.random.default_rng(seed).standard_normal((64, 512), np.float32)
    raw = FORMATS[name].encode(values)
    theirs = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
    assert bits_differ(FORMATS[name].decode(raw), theirs) == 0, f"seed {seed}"


def test_gguf_package_has_the_same_sizes() -> None:
    gguf = pytest.importorskip("gguf", reason="the gguf package is an optional oracle")
    compared = 0
    for name, fmt in FORMATS.items():
        kind = gguf.GGMLQuantizationType.__members__.get(name)
        if kind is not None and kind in gguf.GGML_QUANT_SIZES and int(kind) == fmt.type_id:
            assert gguf.GGML_QUANT_SIZES[kind] == (fmt.block, fmt.block_bytes), name
            compared += 1
    assert compared >= 16
