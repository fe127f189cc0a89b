"""Scratch planning: buffers whose lives don't overlap share memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shohin.devices.buffer import Buffer

if TYPE_CHECKING:
    from shohin.devices.tape import Call

ALIGNMENT = 64


def lifetimes(calls: Sequence[Call], kept: set[int]) -> list[tuple[Buffer, int, int]]:
    """(buffer, first call, last call) of every buffer without storage; ``kept`` ids live to the end of the tape."""
    spans: dict[int, tuple[Buffer, int, int]] = {}
    for i, call in enumerate(calls):
        for operand in call.operands:
            if isinstance(operand, Buffer) and operand.storage is None:
                _, first, _ = spans.get(id(operand), (operand, i, i))
                spans[id(operand)] = (operand, first, len(calls) if id(operand) in kept else i)
    return list(spans.values())


def plan_scratch(calls: Sequence[Call], kept: set[int]) -> tuple[list[tuple[Buffer, int]], int]:
    """Offsets for all scratch buffers of a tape, and the bytes needed.

    Largest first, each at the lowest offset free during its whole life: the greedy rule of Pisarchyk and Lee,
    "Efficient Memory Management for Deep Neural Net Inference" (2020).
    """
    placed: list[tuple[Buffer, int, int, int]] = []
    for buffer, first, last in sorted(lifetimes(calls, kept), key=lambda s: -s[0].nbytes):
        offset = 0
        for other, start, other_first, other_last in sorted(placed, key=lambda p: p[1]):
            if other_first > last or other_last < first:
                continue
            if offset + buffer.nbytes <= start:
                break
            offset = max(offset, -(-(start + other.nbytes) // ALIGNMENT) * ALIGNMENT)
        placed.append((buffer, offset, first, last))
    total = max((offset + buffer.nbytes for buffer, offset, _, _ in placed), default=0)
    return [(buffer, offset) for buffer, offset, _, _ in placed], total
