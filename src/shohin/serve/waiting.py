"""What a phase costs before it computes anything, measured in the same run as what is compared with it."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from shohin.devices import Device, Step, Tape
from shohin.errors import KernelBuild
from shohin.kernels.barrier import barrier

__all__ = ["wait_seconds"]

# Lengths of two chains; what one play costs beside its phases is in both, and their difference leaves it out.
SHORT, LONG = 100, 1100
ROUNDS = 5


def wait_seconds(device: Device, *, inside: bool = False) -> float | None:
    """Seconds from one dependent phase that does nothing to the next, over the whole device: the best of ROUNDS.

    inside: phases of one launch, parted by a barrier over all its blocks, instead of launches that wait for each other.
    None for a device that lacks such phases.
    """
    try:
        short, long = (_chain(device, count, inside) for count in (SHORT, LONG))
    except KernelBuild:
        return None
    return max(0.0, _best(long) - _best(short)) / (LONG - SHORT)


def _chain(device: Device, count: int, inside: bool) -> Tape:
    recorder = device.recorder("waiting", 1)
    barrier(recorder, device.buffer("waiting.met", (1, 1), np.int32), count, inside=inside)
    return recorder.finish()


def _best(tape: Tape) -> float:
    step, best = Step.rows_only(1), float("inf")
    tape.play(step)
    for _ in range(ROUNDS):
        begin = perf_counter()
        tape.play(step)
        best = min(best, perf_counter() - begin)
    return best
