"""``barrier`` on a GPU: dependent launches of an empty kernel, or one whose blocks wait for each other."""

from __future__ import annotations

from typing import cast

from shohin.devices import Buffer, Call
from shohin.devices.cuda.launch import Launch, Target
from shohin.kernels.barrier.op import Barrier

THREADS = 256
SOURCE = "barrier/barrier.cu"


def launches(call: Call, target: Target) -> list[Launch]:
    """A block on every multiprocessor; the last launch leaves the count."""
    op, met, grid = cast(Barrier, call.op), cast(Buffer, call.operands[0]), (target.multiprocessors, 1, 1)
    if op.inside:
        return [Launch(SOURCE, "meet", {}, grid, THREADS, (met, target.zeroed(4), op.count))]
    counts = [*[0] * (op.count - 1), op.count]
    return [Launch(SOURCE, "pass", {}, grid, THREADS, (met, count)) for count in counts]
