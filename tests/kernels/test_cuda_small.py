"""``embed``, ``pick``, ``copy`` and ``read`` on CUDA: the same bits as ``host``."""

from __future__ import annotations

import numpy as np
import packing
import pytest

from shohin import devices
from shohin.devices import Device, Step
from shohin.formats.tensor import Tensor
from shohin.kernels.copy import copy
from shohin.kernels.embed import embed
from shohin.kernels.pick import pick
from shohin.kernels.read import read

LAYOUTS = (
    *("Q1_0", "PQ2_0", "TQ2_0", "Q2_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K", "F32", "F16", "BF16"),
)
POISON = np.float32(-7.0e33)


@pytest.mark.row("M.2", "S0.14")
@pytest.mark.parametrize("fmt", LAYOUTS)
def test_embedding_rows_are_the_decoded_rows(cuda: Device, rng: np.random.Generator, fmt: str) -> None:
    values = rng.standard_normal((37, 768)) * np.exp(rng.standard_normal((37, 1)))
    made = packing.tensor("table", fmt, values)
    if fmt in packing.CODE_BYTES:
        blocks = made.data.reshape(-1, made.format.block_bytes)[:, packing.CODE_BYTES[fmt]]
        blocks[:] = rng.integers(0, 256, blocks.shape, np.uint8)
    want = made.decode()
    table = cuda.pack(Tensor("table", made.shape, made.format, made.data.copy()))
    out = cuda.buffer("out", (6, 768))
    cuda.write(out, np.full((6, 768), POISON))
    tape = cuda.recorder("test", 6)
    embed(tape, table, out)
    tape.output("out", out, "all")
    tokens = np.array([36, 0, 7, 8, 15, 16])
    played = tape.finish()
    got = played.play(Step.of(tokens[:5]), ("out",))["out"]
    np.testing.assert_array_equal(got[:5], want[tokens[:5]])
    assert (got[5] == POISON).all()
    assert (want[tokens[:5]] != want[tokens[1:]]).any(axis=1).all(), "every row is another"


def picked(device: Device, logits: np.ndarray, vocabulary: int, wanted: int) -> tuple[np.ndarray, np.ndarray]:
    rows, width = logits.shape
    buffer = device.buffer("logits", (rows, width))
    device.write(buffer, logits)
    ids, status = (device.buffer(name, (rows,), np.int32) for name in ("ids", "status"))
    for b in (ids, status):
        device.write(b, np.full(rows, -99, np.int32))
    tape = device.recorder("test", rows)
    pick(tape, buffer, ids, status, vocabulary=vocabulary)
    tape.output("ids", ids, "all")
    tape.output("status", status, "all")
    played = tape.finish()
    step = Step.of(np.zeros(rows, int), wanted=np.arange(wanted))
    first = played.play(step, ("ids", "status"))
    again = played.play(step, ("ids", "status"))  # counters were left at zero
    np.testing.assert_array_equal(first["ids"], again["ids"])
    return again["ids"], again["status"]


@pytest.mark.row("M.12", "H.20")
@pytest.mark.parametrize("vocabulary", [1, 31, 257, 2048, 2049, 5000])
def test_pick_is_the_host(cuda: Device, rng: np.random.Generator, vocabulary: int) -> None:
    logits = np.round(rng.standard_normal((5, 5003)) * 4).astype(np.float32)  # many ties
    logits[:, vocabulary:] = 100
    logits[3, vocabulary // 2] = rng.choice(np.array([np.nan, np.inf, -np.inf]))
    ids, status = picked(cuda, logits, vocabulary, 4)
    want, broken = picked(devices.device("host"), logits, vocabulary, 4)
    np.testing.assert_array_equal(ids, want)
    np.testing.assert_array_equal(status, broken)
    assert ids[4] == status[4] == -99


@pytest.mark.row("M.12")
def test_pick_takes_the_lowest_of_equals(cuda: Device) -> None:
    for a, b in ((1, 2), (3, 1025), (255, 256), (2047, 2048), (100, 4900)):
        logits = np.full((1, 5000), -1, np.float32)
        logits[0, [a, b]] = 2
        assert picked(cuda, logits, 5000, 1)[0][0] == a
    zeros = np.full((1, 3000), -1, np.float32)
    zeros[0, 5], zeros[0, 2500] = -0.0, 0.0
    assert picked(cuda, zeros, 3000, 1)[0][0] == 5, "-0 and +0 are equal"
    low = np.full((1, 3000), -3.0e38, np.float32)
    assert picked(cuda, low, 3000, 1)[0][0] == 0


def test_pick_over_a_real_vocabulary(cuda: Device, rng: np.random.Generator) -> None:
    logits = rng.standard_normal((2, 151669)).astype(np.float32)
    logits[1, 151668] = 50
    ids, status = picked(cuda, logits, 151669, 2)
    np.testing.assert_array_equal(ids, logits.argmax(axis=1))
    assert not status.any()


@pytest.mark.parametrize("width", [1, 63, 1030, 2049])
def test_copy_takes_live_rows_only(cuda: Device, rng: np.random.Generator, width: int) -> None:
    x = rng.standard_normal((5, width)).astype(np.float32)
    source, out = cuda.buffer("x", x.shape), cuda.buffer("out", x.shape)
    cuda.write(source, x)
    cuda.write(out, np.full(x.shape, POISON))
    tape = cuda.recorder("test", 5)
    copy(tape, source, out)
    tape.output("out", out, "all")
    got = tape.finish().play(Step.rows_only(4), ("out",))["out"]
    np.testing.assert_array_equal(got[:4], x[:4])
    assert (got[4] == POISON).all()


@pytest.mark.parametrize(("chunks", "n"), [(1, 1), (3, 63), (7, 65), (2, 16384), (3, 16388), (2, 40001)])
def test_read_sums_every_word(cuda: Device, rng: np.random.Generator, chunks: int, n: int) -> None:
    words = rng.integers(-(2**31), 2**31, (chunks, n)).astype(np.int32)
    source, out = cuda.buffer("words", words.shape, np.int32), cuda.buffer("out", (chunks, 1), np.int32)
    cuda.write(source, words)
    cuda.write(out, np.full((chunks, 1), 12345, np.int32))
    tape = cuda.recorder("bench", 1)
    read(tape, source, out)
    tape.output("sums", out, "all")
    played = tape.finish()
    for _ in range(2):  # the running sums were left at zero
        got = played.play(Step.rows_only(1), ("sums",))["sums"][:, 0]
        np.testing.assert_array_equal(got, words.sum(axis=1, dtype=np.int32))
    assert (words[:, :-1].sum(axis=1, dtype=np.int32) != got).any(), "a word forgotten would show"
