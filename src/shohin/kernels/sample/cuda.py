"""``sample`` on a GPU: five launches over all logits, in each of which the last block to end draws the conclusion."""

from __future__ import annotations

from typing import cast

from shohin.devices import Buffer, Call
from shohin.devices.cuda.launch import STEP, Launch, Target
from shohin.kernels.sample.op import Sample
from shohin.kernels.sample.settings import BIASES

THREADS, PER_THREAD, BINS = 256, 8, 2048
# Candidates of one bin that are listed; of a fuller bin all logits are looked at again.
LISTED = 4096
STATE_BYTES = 64


def launches(call: Call, target: Target) -> list[Launch]:
    """Peak, bins, the border of top_k, the border of top_p, the draw; rows that need none of it end at once."""
    logits, settings, biases, history, ids, status = (cast(Buffer, operand) for operand in call.operands)
    vocabulary = cast(Sample, call.op).vocabulary
    rows, width = logits.shape
    blocks = -(-vocabulary // (THREADS * PER_THREAD))
    constants = {
        "BINS": BINS,
        "LISTED": LISTED,
        "BIASES": BIASES,
        # The shares of all ids together stay below 2^63.
        "SHARE_BITS": 63 - vocabulary.bit_length(),
    }
    found, state = target.scratch(16 * rows * blocks), target.scratch(STATE_BYTES * rows)
    listed = target.scratch(4 * LISTED * rows)
    counters = target.zeroed(rows * (12 * BINS + 8))
    tables = (logits, settings, biases, history, ids, status)
    arguments = (*tables, found, state, listed, counters, STEP, vocabulary, width)

    def launch(entry: str, *more: int) -> Launch:
        return Launch("sample/sample.cu", entry, constants, (blocks, rows, 1), THREADS, (*arguments, *more))

    return [launch("peak"), launch("bins"), launch("border", 0), launch("border", 1), launch("draw")]
