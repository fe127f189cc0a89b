"""The best token of each wanted row, and whether its logits were finite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from shohin.devices import Buffer, Operand, Recorder, Step
from shohin.errors import BadShape
from shohin.kernels.pick import reference as plain


@dataclass(frozen=True)
class Pick:
    """Operands: logits [wanted, V], ids int32 [wanted], status int32 [wanted]. ints = (live vocabulary,), no floats."""

    name: ClassVar[str] = "pick"
    vocabulary: int

    def parameters(self) -> tuple[Sequence[int], Sequence[float]]:
        """(vocabulary,), ()."""
        return (self.vocabulary,), ()

    def check(self, operands: Sequence[Operand], step: Step) -> None:
        """Any step that fits the tape fits this op."""

    def reference(self, operands: Sequence[Any], step: Step) -> None:
        """See ``reference.py``."""
        logits, ids, status = operands
        plain.pick(self, logits, ids, status, step)


def pick(tape: Recorder, logits: Buffer, ids: Buffer, status: Buffer, *, vocabulary: int) -> None:
    """Record: ids[i] = lowest index of the largest of the first ``vocabulary`` logits of wanted row i (M.12).

    status[i] is 0, or 1 when any of those logits is NaN or infinite; ids[i] is -1 then (H.20).
    """
    rows, width = logits.shape
    logits.expect("pick", (tape.wanted, width), tape.device)
    if not 1 <= vocabulary <= width:
        raise BadShape(f"pick: a vocabulary of {vocabulary} asked of logits {width} wide")
    for buffer in (ids, status):
        buffer.expect("pick", (rows,), tape.device)
        if buffer.dtype != np.int32:
            raise BadShape(f"pick: buffer {buffer.name!r} is {buffer.dtype}, int32 was expected")
    tape.add(Pick(vocabulary), (logits, ids, status), writes=(1, 2))
