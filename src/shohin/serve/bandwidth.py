"""How fast this machine reads memory, measured in the same run as what is compared with it."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from shohin.devices import Device, Step
from shohin.kernels.read import read
from shohin.models.memory import available_memory

__all__ = ["read_bandwidth"]

# More than any cache, so that nothing is read twice from one.
SIZE = 1 << 30
# One chunk is one thread's share of work at a time.
CHUNK = 1 << 20
ROUNDS = 5
# Where submitting costs part of a reading's time, several readings share one submission.
READINGS_APART = 8


def read_bandwidth(device: Device, size: int = SIZE, rounds: int = ROUNDS) -> float:
    """Bytes a second that a device's own threads read from memory with its widest loads: the best of ``rounds``.

    size: bytes to read, at most half of what is free, in whole chunks of 1 MiB. OutOfMemory where not even one fits.
    """
    size = min(size, device.largest_buffer or size)
    own = device.free_memory()
    free = available_memory() if own is None else own
    bytes_read = max(CHUNK, min(size, size if free is None else free // 2) // CHUNK * CHUNK)
    words = device.buffer("bandwidth", (bytes_read // CHUNK, CHUNK // 4), np.int32)
    # Pages that were never written may all be one page of zeros, which a cache holds.
    device.write(words, np.broadcast_to(np.int32(1), words.shape))
    out = device.buffer("bandwidth.out", (words.shape[0], 1), np.int32)
    recorder = device.recorder("bandwidth", 1)
    readings = READINGS_APART if device.runs_ahead else 1
    for _ in range(readings):
        read(recorder, words, out)
    tape, step = recorder.finish(), Step.rows_only(1)
    best = float("inf")
    for _ in range(max(1, rounds)):
        begin = perf_counter()
        tape.play(step)
        best = min(best, perf_counter() - begin)
    return readings * bytes_read / best
