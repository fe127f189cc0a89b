"""Sums of the rows of a buffer: every byte is loaded once and almost nothing is computed, so its speed is memory's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shohin.devices import Buffer, Operand, Recorder, Step
from shohin.errors import BadShape
from shohin.kernels.read import reference as plain


@dataclass(frozen=True)
class Read:
    """Operands: words int32 [chunks, n], out int32 [chunks, 1]. Parameters: none. The step's rows don't matter."""

    name: ClassVar[str] = "read"

    def parameters(self) -> tuple[Sequence[int], Sequence[float]]:
        """None."""
        return (), ()

    def check(self, operands: Sequence[Operand], step: Step) -> None:
        """Any step will do."""

    def reference(self, operands: Sequence[Any], step: Step) -> None:
        """See ``reference.py``."""
        words, out = operands
        plain.read(words, out)


def read(tape: Recorder, words: Buffer, out: Buffer) -> None:
    """Record: out[c, 0] = sum of words[c], modulo 2^32. Chunks are dealt to the device's threads."""
    for what, buffer in (("words", words), ("out", out)):
        if buffer.dtype != "int32" or len(buffer.shape) != 2:
            raise BadShape(
                f"read: {what} is {buffer.dtype} {list(buffer.shape)}; a matrix of 32-bit integers was expected"
            )
    words.expect("read", words.shape, tape.device)
    out.expect("read: out", (words.shape[0], 1), tape.device)
    tape.add(Read(), (words, out), writes=(1,))
