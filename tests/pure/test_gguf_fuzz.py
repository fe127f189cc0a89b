"""Damaged GGUF files, many of them: only shohin's own errors come out. By hand and longer: tests/fuzz/fuzz_gguf.py."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.fuzz_gguf import DIALECTS, read, seeds
from shohin.formats import read_gguf

# Numbers that have broken readers: around the widths of integers, and what small counts turn into.
NUMBERS = [
    0,
    1,
    2,
    7,
    13,
    31,
    33,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**60,
    2**63 - 1,
    2**63,
    2**64 - 64,
    2**64 - 1,
]

cut = st.tuples(st.just("cut"), st.integers(0, 2**16), st.just(0))
flip = st.tuples(st.just("flip"), st.integers(0, 2**16), st.integers(0, 7))
byte = st.tuples(st.just("byte"), st.integers(0, 2**16), st.integers(0, 255))
word = st.tuples(st.just("word"), st.integers(0, 2**16), st.sampled_from(NUMBERS))
wide = st.tuples(st.just("wide"), st.integers(0, 2**16), st.sampled_from(NUMBERS))
drop = st.tuples(st.just("drop"), st.integers(0, 2**16), st.integers(1, 64))
again = st.tuples(st.just("again"), st.integers(0, 2**16), st.integers(1, 64))
changes = st.lists(st.one_of(flip, byte, word, wide, cut, drop, again), min_size=1, max_size=4)


def damaged(raw: bytes, steps: list[tuple[str, int, int]], header: int) -> bytes:
    """Apply the changes, most of them in the header, where every byte means something."""
    data = bytearray(raw)
    for kind, place, value in steps:
        at = place % max(1, min(len(data), header if place % 8 else len(data)))
        if kind == "cut":
            del data[at:]
        elif kind == "flip" and data:
            data[at] ^= 1 << value
        elif kind == "byte" and data:
            data[at] = value
        elif kind == "word":
            data[at : at + 4] = struct.pack("<I", value % 2**32)
        elif kind == "wide":
            data[at : at + 8] = struct.pack("<Q", value)
        elif kind == "drop":
            del data[at : at + value]
        elif kind == "again":
            data[at:at] = data[at : at + value]
    return bytes(data)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[bytes, int]]:
    """Valid files, each with the length of its header."""
    folder = tmp_path_factory.mktemp("seeds")
    paths = list(seeds(folder))
    assert all(read(path) for path in paths)
    found = []
    for path in paths:
        size = sum(t.data.nbytes for t in read_gguf(path).tensors.values())
        found.append((path.read_bytes(), path.stat().st_size - size))
    return found


@pytest.mark.row("C03", "C04", "C05", "C06", "C07", "C08")
@settings(
    max_examples=2000,
    deadline=2000,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(which=st.integers(0, 5), steps=changes, dialect=st.sampled_from(DIALECTS))
def test_damaged_files(
    files: list[tuple[bytes, int]], tmp_path: Path, which: int, steps: list[tuple[str, int, int]], dialect: str | None
) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damaged(files[which][0], steps, header=files[which][1]))
    read(path, dialect)


@settings(max_examples=200, deadline=2000, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.binary(max_size=400), version=st.sampled_from([2, 3]), tensors=st.integers(0, 3), pairs=st.integers(0, 3)
)
def test_noise_behind_a_header(tmp_path: Path, data: bytes, version: int, tensors: int, pairs: int) -> None:
    path = tmp_path / "noise.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, tensors, pairs) + data)
    read(path)
