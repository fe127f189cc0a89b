"""A tensor that was copied elsewhere gives up the file's pages; who reads it again still gets its bytes."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from shohin.devices import device
from shohin.formats import open as open_model
from shohin.formats import write_synthetic
from shohin.formats.blocks import FORMATS
from shohin.formats.synthetic import ModelShape
from shohin.formats.tensor import Tensor
from shohin.models import build

SHAPE = ModelShape("small", 1024, 2, 8, 4, 4096, head=128, vocabulary=8192)


def resident(path: Path) -> int:
    """Bytes of the file that lie in this process's memory."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    found = [i for i, line in enumerate(lines) if line.endswith(str(path))]
    return sum(int(next(x for x in lines[i:] if x.startswith("Rss:")).split()[1]) * 1024 for i in found)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    if not Path("/proc/self/smaps").exists() or not hasattr(mmap, "MADV_DONTNEED"):
        pytest.skip("the system does not tell what lies in memory")
    return write_synthetic(tmp_path / "m.gguf", SHAPE, "q1_0")


def test_released_bytes_come_back_from_the_file(file: Path) -> None:
    tensor = open_model(file).tensors["token_embd.weight"]
    before = tensor.data.copy()
    held = resident(file)
    tensor.release()
    assert held - resident(file) >= before.nbytes - 2 * mmap.PAGESIZE
    np.testing.assert_array_equal(tensor.data, before)


def test_data_in_memory_stays() -> None:
    data = np.arange(64, dtype=np.uint8)
    Tensor("t", (16,), FORMATS["F32"], data[::1]).release()
    np.testing.assert_array_equal(data, np.arange(64))


def test_packing_into_tiles_leaves_the_file_s_pages(file: Path) -> None:
    place = device("cpu", threads=1)
    if place.kernels.startswith("generic"):
        pytest.skip("the generic tier reads the file's own blocks")
    weights = open_model(file)
    size = sum(int(t.data[:].sum() >= 0) * t.data.nbytes for t in weights.tensors.values())  # read every byte
    held = resident(file)
    assert held > size
    model = build(weights, place)
    # A fault brings in pages around the one it is for, so some of a neighbour released before come back.
    assert held - resident(file) > 0.8 * size
    assert model.weight_bytes > 0.9 * size
