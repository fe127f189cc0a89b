"""``pick`` on a GPU: blocks share a row of logits, the last to end compares what they found."""

from __future__ import annotations

from typing import cast

from shohin.devices import Buffer, Call
from shohin.devices.cuda.launch import STEP, Launch, Target
from shohin.kernels.pick.op import Pick

THREADS = 256
# Logits of a block: every thread has its loads in flight at once.
SHARE = 8 * THREADS


def launches(call: Call, target: Target) -> list[Launch]:
    """One launch over the capacity of wanted rows."""
    logits, ids, status = (cast(Buffer, operand) for operand in call.operands)
    vocabulary, rows = cast(Pick, call.op).vocabulary, logits.shape[0]
    blocks = -(-vocabulary // SHARE)
    found, arrived = target.scratch(8 * rows * blocks), target.zeroed(4 * rows)
    arguments = (logits, ids, status, found, arrived, STEP, vocabulary, logits.shape[1])
    return [Launch("pick/pick.cu", "pick", {"SHARE": SHARE}, (blocks, rows, 1), THREADS, arguments)]
