"""``copy`` on a GPU."""

from __future__ import annotations

from math import prod
from typing import cast

from shohin.devices import Buffer, Call
from shohin.devices.cuda.launch import STEP, Launch, Target

THREADS, PER_THREAD = 256, 4


def launches(call: Call, target: Target) -> list[Launch]:
    """One launch over the row capacity."""
    x, out = (cast(Buffer, operand) for operand in call.operands)
    width = prod(x.shape[1:])
    blocks = -(-width // (THREADS * PER_THREAD))
    return [Launch("copy/copy.cu", "copy", {}, (blocks, target.rows, 1), THREADS, (x, out, STEP, width))]
