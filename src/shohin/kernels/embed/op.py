"""Token ids to rows of the embedding table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shohin.devices import Buffer, Operand, Recorder, Step, Weight
from shohin.errors import BadShape
from shohin.kernels.embed import reference as plain


@dataclass(frozen=True)
class Embed:
    """Operands: table Weight [V, h], out [rows, h]. Parameters: none. The step's tokens choose the rows."""

    name: ClassVar[str] = "embed"

    def parameters(self) -> tuple[Sequence[int], Sequence[float]]:
        """None."""
        return (), ()

    def check(self, operands: Sequence[Operand], step: Step) -> None:
        """BadShape for a token id without a row."""
        table = operands[0]
        assert isinstance(table, Weight)
        top = int(step.tokens.max())
        if top >= table.shape[0]:
            raise BadShape(f"embed: token {top} has no row in {table.name!r} of {table.shape[0]} rows")

    def reference(self, operands: Sequence[Any], step: Step) -> None:
        """Decode the chosen rows."""
        table, out = operands
        plain.embed(table, out, step)


def embed(tape: Recorder, table: Weight, out: Buffer) -> None:
    """Record: out[m] = table[token of row m], decoded to float (M.2)."""
    if len(table.shape) != 2:
        raise BadShape(f"embed: table {table.name!r} has shape {list(table.shape)}, a matrix was expected")
    table.expect("embed", table.shape, tape.device)
    out.expect("embed", (tape.rows, table.shape[1]), tape.device)
    tape.add(Embed(), (table, out), writes=(1,))
