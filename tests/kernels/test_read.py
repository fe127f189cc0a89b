"""``read``: row sums of 32-bit words, which is what the measured memory floor consists of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from shohin.devices import Device, Step
from shohin.errors import BadShape
from shohin.kernels.read import read


def sums(device: Device, words: NDArray[np.int32]) -> NDArray[np.int32]:
    buffer = device.buffer("words", words.shape, np.int32)
    device.write(buffer, words)
    out = device.buffer("out", (len(words), 1), np.int32)
    tape = device.recorder("bench", 1)
    read(tape, buffer, out)
    tape.output("sums", out, "all")
    return np.asarray(tape.finish().play(Step.rows_only(1), fetch=("sums",))["sums"][:, 0])


def expected(words: NDArray[np.int32]) -> NDArray[np.int32]:
    return (words.astype(object).sum(axis=1) % 2**32).astype(np.uint32).view(np.int32)


@pytest.mark.parametrize(("chunks", "n"), [(1, 1), (3, 63), (5, 64), (7, 65), (33, 1000)])
def test_every_word_is_read_once(device: Device, chunks: int, n: int, rng: np.random.Generator) -> None:
    words = rng.integers(-(2**31), 2**31, (chunks, n)).astype(np.int32)
    assert sums(device, words).tolist() == expected(words).tolist()


@pytest.mark.parametrize(
    "skips",
    [lambda w: w[:, :-1], lambda w: w[:, : w.shape[1] // 64 * 64], lambda w: np.concatenate([w, w[:, :1]], axis=1)],
)
def test_a_skipped_or_repeated_word_would_show(
    skips: Callable[[NDArray[np.int32]], NDArray[np.int32]], rng: np.random.Generator
) -> None:
    words = rng.integers(1, 1000, (5, 100)).astype(np.int32)
    assert expected(skips(words)).tolist() != expected(words).tolist()


def test_shapes_and_types_are_checked(host: Device) -> None:
    tape = host.recorder("bench", 1)
    words = host.buffer("words", (4, 8), np.int32)
    with pytest.raises(BadShape, match=r"out.*\[4, 1\]"):
        read(tape, words, host.buffer("out", (8, 1), np.int32))
    with pytest.raises(BadShape, match="words is float"):
        read(tape, host.buffer("words", (4, 8)), host.buffer("out", (4, 1), np.int32))
