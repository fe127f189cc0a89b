"""``read`` on a GPU: many small blocks, so that no multiprocessor waits for another at the end."""

from __future__ import annotations

from typing import cast

from shohin.devices import Buffer, Call
from shohin.devices.cuda.launch import Launch, Target

THREADS, LOADS = 256, 16
# Words of a block: 16 loads of 16 bytes a thread.
SHARE = THREADS * LOADS * 4


def launches(call: Call, target: Target) -> list[Launch]:
    """One launch over all chunks."""
    words, out = (cast(Buffer, operand) for operand in call.operands)
    chunks, length = words.shape
    shares = -(-length // SHARE)
    constants = {"THREADS": THREADS, "LOADS": LOADS}
    arguments = (words, out, target.zeroed(8 * chunks), length, shares)
    return [Launch("read/read.cu", "read_words", constants, (chunks * shares, 1, 1), THREADS, arguments)]
