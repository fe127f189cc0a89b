"""Scratch of tapes: GPU buffers of their own, shared by what is never alive at the same time.

WebGPU judges a whole buffer: one that a dispatch reads may not be written by it anywhere, so there is no arena.
"""

from __future__ import annotations

from collections.abc import Sequence

from shohin.devices.buffer import Buffer
from shohin.devices.plan import lifetimes
from shohin.devices.tape import Call

__all__ = ["assign_slots"]


def assign_slots(calls: Sequence[Call], kept: set[int]) -> list[list[Buffer]]:
    """The scratch buffers of a tape, those of one list in one slot, largest first: a slot is as large as its first."""
    slots: list[list[tuple[Buffer, int, int]]] = []
    for buffer, first, last in sorted(lifetimes(calls, kept), key=lambda s: -s[0].nbytes):
        for slot in slots:
            if all(last < other_first or other_last < first for _, other_first, other_last in slot):
                slot.append((buffer, first, last))
                break
        else:
            slots.append([(buffer, first, last)])
    return [[buffer for buffer, _, _ in slot] for slot in slots]
