"""Which layout stands behind tensor type 42: sizes, content, marks, and refusals where nothing decides."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from shohin.errors import BadFile, BadRequest
from shohin.formats import NewTensor, Tensor, Value, read_gguf, write_gguf
from shohin.formats.blocks import by_name

FIRST, LAST, UPSTREAM = "Q2_0_G128", "TQ2_0_G128", "Q2_0"
# The same 128 ternary weights, 0.5 times the trits, in the three layouts.
CODES = bytes.fromhex("1485a6892050149a26824051689a080245a169220814 85a6892050149a268240".replace(" ", ""))
SCALE = struct.pack("<e", 0.5)
BLOCK = {FIRST: SCALE + CODES, LAST: CODES + SCALE, UPSTREAM: SCALE + CODES[:16] + SCALE + CODES[16:]}


def tensor(name: str, weights: int, layout: str, block: bytes | None = None, columns: int = 0) -> Tensor:
    raw = np.frombuffer((block or BLOCK[layout]) * (weights // 128), np.uint8)
    shape = (weights // columns, columns) if columns else (weights,)
    return Tensor(name, shape, by_name(layout), raw)


def written(path: Path, tensors: list[Tensor], **metadata: object) -> Path:
    return write_gguf(path, {"general.architecture": "qwen3", **metadata}, tensors)


def layouts(path: Path, dialect: str | None = None) -> set[str]:
    weights = read_gguf(path, dialect=dialect)
    assert weights.notes and "type 42" in weights.notes[0]
    return {t.format.name for t in weights.tensors.values() if t.format.type_id == 42}


@pytest.mark.row("C01")
@pytest.mark.parametrize("alignment", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("layout", [FIRST, LAST, UPSTREAM])
def test_each_layout_is_found_at_each_alignment(tmp_path: Path, layout: str, alignment: int) -> None:
    f32 = NewTensor.encoded("norm", np.ones(5, np.float32), by_name("F32"))
    plan = [tensor("tiny", 128, layout), tensor("a", 8192, layout, columns=256), f32, tensor("z", 256, layout)]
    path = write_gguf(tmp_path / "m.gguf", {"general.alignment": alignment}, plan)
    assert layouts(path) == {layout}
    values = read_gguf(path).tensors["a"].decode().reshape(-1, 128)
    trits = np.array([(e * e + e // 7) % 3 - 1 for e in range(128)])
    assert np.array_equal(values, np.broadcast_to(0.5 * trits, values.shape))


@pytest.mark.row("C01")
@pytest.mark.parametrize("layout", [FIRST, LAST, UPSTREAM])
def test_content_decides_where_every_size_is_ambiguous(tmp_path: Path, layout: str) -> None:
    path = written(tmp_path / "m.gguf", [tensor(f"t{n}", 1024, layout) for n in range(8)])
    assert layouts(path) == {layout}
    assert "content of 64 blocks" in read_gguf(path).notes[0] or layout == UPSTREAM


@pytest.mark.row("C01")
def test_sizes_decide_exactly_up_to_the_bound_of_the_alignment(tmp_path: Path) -> None:
    """At alignment 32, 1024 weights fit both sizes and 1152 do not."""
    for weights, decided_by in ((128, "content"), (1024, "content"), (1152, "offsets"), (2048, "offsets")):
        path = written(tmp_path / "m.gguf", [tensor("a", weights, UPSTREAM)])
        assert layouts(path) == {UPSTREAM}
        assert decided_by in read_gguf(path).notes[0]
    # A row of 192 cannot be made of blocks of 128, whatever its size.
    raw = np.frombuffer(b"\x55" * 18 * 3, np.uint8)
    path = written(tmp_path / "m.gguf", [Tensor("a", (1, 192), by_name(UPSTREAM), raw)])
    assert layouts(path) == {UPSTREAM}
    assert "offsets" in read_gguf(path).notes[0]


@pytest.mark.row("C01")
def test_undecidable_is_refused_and_the_override_decides(tmp_path: Path) -> None:
    # 0x5555 is a finite positive f16, so blocks of nothing but zeros with it at both ends fit first and last.
    path = written(tmp_path / "m.gguf", [tensor("a", 4096, FIRST, b"\x55" * 34)])
    with pytest.raises(BadFile, match=r"fit Q2_0_G128 and TQ2_0_G128.*dialect="):
        read_gguf(path)
    for layout in (FIRST, LAST):
        assert layouts(path, layout.lower()) == {layout}
    with pytest.raises(BadFile, match="'a'"):
        read_gguf(path, dialect="q2_0")
    with pytest.raises(BadRequest, match="q2_0, q2_0_g128, tq2_0_g128"):
        read_gguf(path, dialect="q4_0")


@pytest.mark.row("C01")
def test_marks_of_the_exporter_decide_what_content_leaves_open(tmp_path: Path) -> None:
    zeros = tensor("a", 4096, FIRST, b"\x55" * 34)
    mark = {"general.quantization_version": "TQ2_0_G128"}
    assert layouts(written(tmp_path / "m.gguf", [zeros], **mark)) == {LAST}
    other = write_gguf(tmp_path / "n.gguf", {"llm.block_count": 2}, [zeros])
    assert layouts(other) == {LAST}
    with pytest.raises(BadFile, match="marks of an exporter"):
        read_gguf(written(tmp_path / "m.gguf", [tensor("a", 4096, FIRST)], **mark))
    with pytest.raises(BadFile, match="marks of an exporter"):
        read_gguf(written(tmp_path / "m.gguf", [tensor("a", 4096, UPSTREAM)], **mark))


@pytest.mark.row("C01")
@pytest.mark.parametrize(
    "block",
    [
        b"\xff" * 34,
        struct.pack("<e", -0.5) + b"\xaa" * 30 + struct.pack("<e", -0.5),
        struct.pack("<e", float("inf")) + b"\x11" * 30 + struct.pack("<e", float("nan")),
        bytes(2) + b"\x11" * 30 + bytes(2),
    ],
    ids=["code 11", "negative", "not finite", "codes under a scale of 0"],
)
def test_impossible_content_is_refused(tmp_path: Path, block: bytes) -> None:
    path = written(tmp_path / "m.gguf", [tensor("a", 4096, FIRST, block)])
    with pytest.raises(BadFile, match="impossible scale or the unused code"):
        read_gguf(path)
    assert layouts(path, "q2_0_g128") == {FIRST}


@pytest.mark.row("C01")
def test_one_bad_block_among_many_is_enough(tmp_path: Path) -> None:
    """The rarest tell: 255 blocks fit first and last, one fits only one; sampling all of them must see it."""
    raw = np.frombuffer(b"\x55" * 34 * 255 + BLOCK[LAST], np.uint8)
    path = written(tmp_path / "m.gguf", [Tensor("a", (256, 128), by_name(LAST), raw)])
    assert layouts(path) == {LAST}


@pytest.mark.row("C01")
def test_two_layouts_in_one_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="both are type 42"):
        written(tmp_path / "m.gguf", [tensor("a", 4096, FIRST), tensor("b", 4096, UPSTREAM)])
    assert not list(tmp_path.iterdir())
    path = written(tmp_path / "m.gguf", [tensor("a", 4096, FIRST), tensor("b", 4096, FIRST)])
    raw = path.read_bytes()
    path.write_bytes(raw + bytes(1152 - 1088))
    with pytest.raises(BadFile, match="a file holds one layout"):
        read_gguf(path)


def test_an_override_without_type_42_is_said(cases: Path) -> None:
    assert "no tensor has type 42" in read_gguf(cases / "gguf/tiny_q1.gguf", dialect="q2_0").notes[0]


@pytest.mark.row("C01")
def test_split_sets_are_decided_as_one(tmp_path: Path) -> None:
    """The first part alone is open; the second decides for both."""
    parts = [[tensor("a", 4096, FIRST, b"\x55" * 34)], [tensor("b", 4096, FIRST)]]
    for number, plan in enumerate(parts):
        meta = {
            "split.no": Value("u16", number),
            "split.count": Value("u16", 2),
            "split.tensors.count": Value("i32", 2),
        }
        write_gguf(tmp_path / f"m-{number + 1:05d}-of-00002.gguf", meta, plan)
    assert layouts(tmp_path / "m-00001-of-00002.gguf") == {FIRST}
