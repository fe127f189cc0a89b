"""Attention on a GPU: a row has its own bits, whichever kernel computes it and whatever rows are beside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from shohin.devices import Device, Step
from shohin.kernels.attend import Heads, LayerCache, attend

PAGE = 64


@dataclass
class Rig:
    """One layer's cache with shuffled pages, holding NaN until it is written."""

    device: Device
    heads: Heads
    kind: str
    pages: NDArray[np.int32]

    def __post_init__(self) -> None:
        count = int(self.pages.max()) + 1
        shape = (count, self.heads.kv, PAGE, self.heads.dim)
        self.cache = LayerCache.allocate(self.device, "c", self.kind, shape)
        for buffer in (self.cache.keys, self.cache.values):
            stale = np.full(buffer.shape, np.nan if buffer.dtype.kind == "f" else -77, buffer.dtype)
            self.device.write(buffer, stale)
        positions = self.pages.shape[1] * PAGE
        angles = np.arange(positions)[:, None] * 0.01 ** (np.arange(self.heads.dim // 2) / self.heads.dim)
        self.rope = self.device.buffer("rope", (positions, self.heads.dim))
        self.device.write(self.rope, np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32))

    def play(
        self, qkv: NDArray[np.float32], positions: NDArray[np.int64], sequences: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        rows = len(qkv)
        tape = self.device.recorder("attend", rows)
        source = self.device.buffer("qkv", qkv.shape)
        out = self.device.buffer("out", (rows, self.heads.query * self.heads.dim))
        self.device.write(source, qkv)
        self.device.write(out, np.full(out.shape, np.nan, np.float32))
        attend(tape, source, self.cache, self.rope, out, heads=self.heads)
        tape.output("out", out, "rows")
        step = Step.of(np.zeros(rows, int), positions=positions, sequences=sequences, pages=self.pages)
        return tape.finish().play(step, ("out",))["out"]


@pytest.mark.row("M.16", "E.5", "E.7", "S3.45")
@pytest.mark.parametrize("kind", ["f16", "int8"])
@pytest.mark.parametrize(("query", "kv", "dim"), [(4, 1, 64), (3, 1, 32)])
def test_one_row_few_rows_and_a_prompt_have_the_same_bits(
    cuda: Device, rng: np.random.Generator, kind: str, query: int, kv: int, dim: int
) -> None:
    """143 positions cross a page and a chunk of 128 keys; 130 rows and more are a prompt's kernel."""
    heads, length = Heads(query, kv, dim), 143
    qkv = rng.standard_normal((length, heads.width)).astype(np.float32)
    pages = rng.permutation(6).astype(np.int32).reshape(2, 3)
    where = np.arange(length)
    zeros = np.zeros(length, int)
    whole = Rig(cuda, heads, kind, pages).play(qkv, where, zeros)
    assert np.isfinite(whole).all()
    rig = Rig(cuda, heads, kind, pages)
    parts = [rig.play(qkv[:131], where[:131], zeros[:131]), rig.play(qkv[131:138], where[131:138], zeros[131:138])]
    parts += [rig.play(qkv[i : i + 1], where[i : i + 1], zeros[:1]) for i in range(138, length)]
    assert np.array_equal(np.concatenate(parts), whole)


@pytest.mark.row("H.10", "M.16")
def test_sequences_beside_each_other_do_not_mix(cuda: Device, rng: np.random.Generator) -> None:
    """Rows of two sequences, dealt like cards, in the prompt's kernel and the few rows' one."""
    heads = Heads(4, 2, 32)
    qkv = rng.standard_normal((140, heads.width)).astype(np.float32)
    pages = rng.permutation(4).astype(np.int32).reshape(2, 2)
    sequences = np.arange(140) % 2
    positions = np.arange(140) // 2
    mixed = Rig(cuda, heads, "f16", pages).play(qkv, positions, sequences)
    rig = Rig(cuda, heads, "f16", pages)
    for sequence in (0, 1):
        mine = sequences == sequence
        alone = rig.play(qkv[mine], positions[mine], sequences[mine])
        assert np.array_equal(alone, mixed[mine])


def test_a_broken_row_breaks_no_other_sequence(cuda: Device, rng: np.random.Generator) -> None:
    heads = Heads(4, 2, 32)
    qkv = rng.standard_normal((6, heads.width)).astype(np.float32)
    pages = np.arange(2, dtype=np.int32)[:, None]
    positions, sequences = np.array([0, 1, 2, 0, 1, 2]), np.array([0, 0, 0, 1, 1, 1])
    good = Rig(cuda, heads, "f16", pages).play(qkv, positions, sequences)
    qkv[4, 3] = np.nan
    bad = Rig(cuda, heads, "f16", pages).play(qkv, positions, sequences)
    assert np.array_equal(bad[:3], good[:3]) and np.isnan(bad[4]).any()
