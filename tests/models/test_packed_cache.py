"""Packed weights kept in a file: mapped by the next start, and never trusted."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shohin
from shohin.devices import device as open_device
from shohin.devices.cpu import Cpu
from shohin.devices.packed_file import LINE, MAGIC, PAGE, PackedFile
from shohin.errors import BadFile, BadRequest
from shohin.formats.content import PIECE, content_key
from shohin.serve.packed_folder import kept_files, remove_kept

SHIPPED = Path(shohin.__file__).parent / "data" / "shohin-stage-ternary.gguf"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of packed weights; whatever reads the environment finds it."""
    place = tmp_path / "packed"
    monkeypatch.setenv("SHOHIN_PACKED_CACHE", str(place))
    return place


def ids_of(model: shohin.Model) -> list[int]:
    return [t.id for t in shohin.generate(model, [5, 6, 7], shohin.SamplingParams(max_tokens=12))]


def load(path: Path = SHIPPED, **options: object) -> shohin.Model:
    return shohin.load(path, context=64, **options)[0]  # type: ignore[arg-type]


def only(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def mapped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a load packs nothing but vectors."""
    packed: list[str] = []
    pack = Cpu._tile

    def tile(self: Cpu, rows: np.ndarray, fmt: object) -> np.ndarray:
        if len(rows) > 33:  # the layout's own probe is smaller
            packed.append(str(fmt))
        return pack(self, rows, fmt)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(Cpu, "_tile", tile)
        load()
    return not packed


def test_a_second_start_maps_what_the_first_has_packed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ids_of(load(packed_cache=False))
    assert not folder.exists()
    assert ids_of(load()) == wanted
    kept = only(folder)
    before = kept.stat()
    assert mapped(folder, monkeypatch)
    model = load()
    assert ids_of(model) == wanted
    assert only(folder).stat().st_mtime_ns == before.st_mtime_ns
    # Every byte of it is what pack makes.
    found = PackedFile(kept)
    fresh = {tensor.name: tensor for tensor in shohin.open(SHIPPED).tensors.values() if len(tensor.shape) > 1}
    where = open_device("cpu")
    for name in found.entries:
        packed = where.pack(fresh[name])
        assert np.array_equal(found.bytes_of(name), packed.storage.reshape(-1)), name
    assert set(found.entries) == set(fresh)


def start_of(raw: bytes) -> int:
    """Where the tensors begin."""
    return PAGE * -(-(len(MAGIC) + 8 + int.from_bytes(raw[8:16], "little")) // PAGE)


def flipped(raw: bytes) -> bytes:
    at = start_of(raw) + len(raw) // 2
    return raw[:at] + bytes([raw[at] ^ 16]) + raw[at + 1 :]


BYTES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda raw: raw[:-LINE],
    "truncated list": lambda raw: raw[:100],
    "empty": lambda _: b"",
    "a flipped bit": flipped,
    "zeros": lambda raw: raw[:-PAGE] + bytes(PAGE),
    "foreign": lambda raw: b"GGUF\3\0\0\0" + raw[8:],
    "a huge list": lambda raw: raw[:8] + (1 << 63).to_bytes(8, "little") + raw[16:],
    "no list": lambda raw: raw[:16] + b"[[[[" + raw[20:],
    "a deep list": lambda raw: raw[:16] + b"[" * int.from_bytes(raw[8:16], "little") + raw[start_of(raw) :],
}
HEADS: dict[str, dict[str, Any]] = {
    "of another model": {"content": "0" * 64},
    "of another layout": {"layout": "cpu 0"},
    "of another version": {"version": "0.0.0"},
    "of nobody knows": {"source": None},
    "no tensors": {"tensors": None},
    "no entries": {"tensors": [None]},
}
FIRST: dict[str, dict[str, Any]] = {
    "of another format": {"format": "Q8_0"},
    "from another format": {"source_format": "Q8_0"},
    "a negative size": {"nbytes": -64},
    "an absurd size": {"nbytes": 10**400},
    "a size of text": {"nbytes": "64"},
    "a size too small": {"nbytes": 64},
    "another sum": {"total": 5},
}


def damaged(kind: str, raw: bytes) -> bytes:
    if kind in BYTES:
        return BYTES[kind](raw)
    head = json.loads(raw[16 : 16 + int.from_bytes(raw[8:16], "little")])
    first = head["tensors"][0]
    if kind == "an entry twice":
        head["tensors"].append(first)
    first.update(FIRST.get(kind, {}))
    head.update(HEADS.get(kind, {}))
    listed = json.dumps(head).encode()
    return (MAGIC + len(listed).to_bytes(8, "little") + listed).ljust(start_of(raw), b"\0") + raw[start_of(raw) :]


KINDS = [*BYTES, *HEADS, *FIRST, "an entry twice"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_not_sound_is_ignored_with_a_remark_and_written_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    wanted = ids_of(load())
    kept = only(folder)
    sound = kept.read_bytes()
    kept.write_bytes(damaged(kind, sound))
    assert kept.read_bytes() != sound
    with caplog.at_level(logging.WARNING, "shohin"):
        assert ids_of(load()) == wanted
    assert [r for r in caplog.records if "ignored" in r.message and kept.name in r.message], caplog.text
    assert only(folder).read_bytes() == sound
    assert mapped(folder, monkeypatch)


def test_random_damage_never_does_more_than_cost_a_packing(folder: Path) -> None:
    """Whatever bytes the list holds, the reader answers with BadFile or with entries that it has checked."""
    load()
    kept = only(folder)
    sound = kept.read_bytes()
    seed = time.time_ns() % (1 << 32)
    random = np.random.default_rng(seed)
    for round_ in range(300):
        raw = bytearray(sound)
        for at in random.integers(0, 3000, random.integers(1, 4)):
            raw[at] = random.integers(0, 256)
        kept.write_bytes(raw)
        try:
            found = PackedFile(kept)
            for name in found.entries:
                assert found.bytes_of(name).nbytes == found.entries[name].nbytes
        except BadFile as error:
            remark = str(error)
        else:
            remark = str(kept)
        assert str(kept) in remark, f"seed {seed}, round {round_}"


def test_a_folder_that_cannot_be_written_costs_a_remark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SHOHIN_PACKED_CACHE", str(tmp_path / "file" / "packed"))
    with caplog.at_level(logging.WARNING, "shohin"):
        load()
    assert "packed weights are not kept" in caplog.text


def test_the_key_is_of_the_contents(folder: Path, tmp_path: Path) -> None:
    """The same bytes under another name and date share a file; one other byte, of the same size and date, does not."""
    moved, other = tmp_path / "moved.gguf", tmp_path / "other.gguf"
    shutil.copyfile(SHIPPED, moved)
    raw = bytearray(SHIPPED.read_bytes())
    raw[-1] ^= 1
    other.write_bytes(raw)
    for path in (moved, other):
        os.utime(path, ns=(1, 1))
    load(SHIPPED)
    load(moved)
    only(folder)
    load(other)
    assert len(list(folder.iterdir())) == 2


def test_a_blob_of_the_hub_is_not_read_to_be_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blob = tmp_path / "blobs" / ("ab" * 32)
    blob.parent.mkdir()
    shutil.copyfile(SHIPPED, blob)
    link = tmp_path / "model.gguf"
    link.symlink_to(blob)
    weights = shohin.open(link)
    plain = content_key(shohin.open(SHIPPED))
    monkeypatch.setattr("shohin.formats.content._digest", lambda path: pytest.fail(f"{path} was read"))
    key = content_key(weights)
    assert key != plain
    os.utime(blob, ns=(1, 1))
    assert content_key(weights) != key


def test_long_files_are_hashed_piece_by_piece(tmp_path: Path) -> None:
    """A change in any piece, and an exchange of two, change the key."""
    from shohin.formats.content import _digest

    path = tmp_path / "long"
    pieces = [bytes([i]) * PIECE for i in range(2)] + [b"end"]
    found = set()
    for order in (pieces, [pieces[1], pieces[0], pieces[2]], pieces[:2], [pieces[0], pieces[1], b"enD"]):
        path.write_bytes(b"".join(order))
        found.add(_digest(path))
    assert len(found) == 4


def test_what_has_no_effect_is_refused(folder: Path) -> None:
    with pytest.raises(BadRequest, match="host keeps no packed weights"):
        load(device="host", packed_cache=True)
    with pytest.raises(BadRequest, match="packed_cache is 'yes'"):
        load(packed_cache="yes")
    # From the environment it is a default only.
    load(device="host")
    assert not folder.exists()


def test_another_tier_with_the_same_layout_shares_the_file(folder: Path) -> None:
    """The layout is told by what packing does; tiers that deal rows alike read each other's files."""
    tiers = open_device("cpu").tiers
    layouts = {tier: Cpu(1, tier).layout for tier in tiers}
    assert layouts["generic"] == Cpu(2, "generic").layout
    if "avx2" in tiers and "avx512" in tiers:
        assert len({layouts["generic"], layouts["avx2"], layouts["avx512"]}) == 3
    wanted = ids_of(load(device=Cpu(1, tiers[-1])))
    for tier in tiers:
        assert ids_of(load(device=Cpu(1, tier))) == wanted
        assert ids_of(load(device=Cpu(1, tier))) == wanted
    assert len(list(folder.iterdir())) == len({layouts[t] for t in tiers if t != "generic"})


def test_files_are_listed_and_removed(folder: Path) -> None:
    load()
    (kept,) = kept_files()
    assert (kept.source, kept.version, kept.fault) == (str(SHIPPED), shohin.__version__, None)
    (folder / "broken.packed").write_bytes(b"?")
    assert [file.fault is None for file in kept_files()] == [file.name == kept.name for file in kept_files()]
    with pytest.raises(BadRequest, match="no 'nothing'"):
        remove_kept([kept.name, "nothing"])
    assert len(kept_files()) == 2
    remove_kept([kept.name])
    assert [file.name for file in kept_files()] == ["broken.packed"]
