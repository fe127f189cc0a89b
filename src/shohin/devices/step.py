"""The step table: what varies from one play of a tape to the next."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shohin.errors import BadShape

Int32 = NDArray[np.int32]

# Words before the arrays of a step table.
HEADER = 4
_FIRST = np.zeros(1, np.int32)
_FIRST.flags.writeable = False


def _int32(what: str, values: ArrayLike, ndim: int) -> Int32:
    array = np.asarray(values)
    if array.size == 0:
        array = array.astype(np.int32).reshape((0,) * ndim)
    if array.ndim != ndim or array.dtype.kind not in "iu":
        raise BadShape(f"step: {what} must be {ndim}-dimensional integers, got shape {array.shape} of {array.dtype}")
    if array.size and (array.min() < 0 or array.max() >= 2**31):
        raise BadShape(f"step: {what} holds values from {array.min()} to {array.max()}, 0 to 2^31 - 1 was expected")
    return np.ascontiguousarray(array, dtype=np.int32)


@dataclass(frozen=True, eq=False)
class Step:
    """Live rows of one play, all int32 and never negative.

    tokens, positions, sequences: [rows], where ``sequences`` indexes ``pages``. pages: [sequences, pages per sequence],
    the cache page that holds keys ``P*i`` to ``P*i + P - 1`` of a sequence. wanted: [outputs], the rows whose logits
    are computed, in that order.
    """

    tokens: Int32
    positions: Int32
    sequences: Int32
    pages: Int32
    wanted: Int32

    @classmethod
    def of(
        cls,
        tokens: ArrayLike,
        *,
        positions: ArrayLike | None = None,
        sequences: ArrayLike | None = None,
        pages: ArrayLike | None = None,
        wanted: ArrayLike | None = None,
    ) -> Step:
        """Check and convert; defaults: positions 0.., one sequence, no pages, every row wanted."""
        ids = _int32("tokens", tokens, 1)
        rows = len(ids)
        step = cls(
            ids,
            _int32("positions", np.arange(rows) if positions is None else positions, 1),
            _int32("sequences", np.zeros(rows, np.int32) if sequences is None else sequences, 1),
            _int32("pages", np.zeros((1, 0), np.int32) if pages is None else pages, 2),
            _int32("wanted", np.arange(rows) if wanted is None else wanted, 1),
        )
        step._check()
        return step

    @classmethod
    def one(cls, token: int, position: int, pages: Int32) -> Step:
        """One row of one sequence, which is wanted; for loops, whose numbers are right already: nothing is checked."""
        return cls(np.array([token], np.int32), np.array([position], np.int32), _FIRST, pages, _FIRST)

    @classmethod
    def rows_only(cls, rows: int) -> Step:
        """The step of a tape that reads no token, position or cache: only a number of rows."""
        return cls.of(np.zeros(rows, np.int32))

    def moved(self, count: int) -> Step:
        """The same rows ``count`` positions later."""
        return replace(self, positions=self.positions + np.int32(count))

    def reading(self, token: int) -> Step:
        """The one-row step that follows this one: ``token`` at the next position."""
        return replace(self.moved(1), tokens=np.array([token], np.int32))

    def table(self, rows: int, wanted: int) -> Int32:
        """The step table that kernels of a GPU read, for a tape of these capacities: {live rows, live wanted rows,
        pages a sequence, 0}, tokens, positions and sequences [rows] each, wanted [wanted], and the page table.
        """
        at = HEADER + 3 * rows
        words = np.zeros(at + wanted + self.pages.size, np.int32)
        words[:HEADER] = self.rows, len(self.wanted), self.pages.shape[1], 0
        for i, values in enumerate((self.tokens, self.positions, self.sequences)):
            words[HEADER + i * rows : HEADER + i * rows + self.rows] = values
        words[at : at + len(self.wanted)] = self.wanted
        words[at + wanted :] = self.pages.reshape(-1)
        return words

    @property
    def rows(self) -> int:
        """Number of live rows."""
        return len(self.tokens)

    def _check(self) -> None:
        rows = self.rows
        if rows == 0:
            raise BadShape("step: no rows; at least one token is needed")
        if len(self.positions) != rows or len(self.sequences) != rows:
            raise BadShape(
                f"step: {rows} tokens, {len(self.positions)} positions and {len(self.sequences)} sequences must agree"
            )
        if self.sequences.max() >= max(1, len(self.pages)):
            raise BadShape(f"step: sequence {self.sequences.max()} has no page table; there are {len(self.pages)}")
        if len(self.wanted) and self.wanted.max() >= rows:
            raise BadShape(f"step: row {self.wanted.max()} is wanted of {rows} rows")
        places = self.sequences.astype(np.int64) << 32 | self.positions
        if len(np.unique(places)) != rows:
            raise BadShape("step: two rows have the same sequence and position")
