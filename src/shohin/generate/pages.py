"""Who holds which pages of a model's key and value cache."""

from __future__ import annotations

import weakref
from collections.abc import Sequence as Ordered
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shohin.devices import Lock
from shohin.errors import BadState, OutOfMemory
from shohin.kernels.attend.cache import PAGE

if TYPE_CHECKING:
    from shohin.models import Model

__all__ = ["PagePool", "Sequence", "page_pool"]


class PagePool:
    """The free pages of one cache, each holding ``page`` positions. Safe to share between threads."""

    def __init__(self, pages: int, page: int = PAGE) -> None:
        self.pages, self.page = pages, page
        self._free = list(range(pages - 1, -1, -1))
        self._held: set[int] = set()
        self._lock = Lock()

    @property
    def free(self) -> int:
        """Number of pages that nobody holds."""
        return len(self._free)

    def take(self, count: int, holder: str) -> list[int]:
        """``count`` pages; OutOfMemory, taking none, where fewer are free. ``holder`` begins the message."""
        with self._lock:
            if count > len(self._free):
                raise OutOfMemory(
                    f"{holder} needs {count} more pages of {self.page} positions, {len(self._free)} of the cache's "
                    f"{self.pages} are free; end other sequences, or build the model with more context or sequences"
                )
            taken = [self._free.pop() for _ in range(count)]
            self._held.update(taken)
            return taken

    def give(self, pages: Ordered[int]) -> None:
        """Return pages; BadState, returning none, for a page that nobody holds."""
        with self._lock:
            wrong = sorted({p for p in pages if p not in self._held or pages.count(p) > 1})
            if wrong:
                raise BadState(f"pages {wrong} are not held and can't be returned to the cache")
            self._held.difference_update(pages)
            self._free.extend(reversed(pages))


class Sequence:
    """The pages of one sequence, and the ids whose rows they hold.

    Rows from ``position`` on are never read: a step reads keys up to its own position only, and writes that one first.
    """

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._pages: list[int] = []
        self._ids: list[int] = []
        self._table: NDArray[np.int32] | None = None
        self._open = True

    @property
    def position(self) -> int:
        """Number of positions written."""
        return len(self._ids)

    @property
    def ids(self) -> NDArray[np.int32]:
        """The ids written, in order."""
        return np.array(self._ids, np.int32)

    @property
    def pages(self) -> tuple[int, ...]:
        """Page numbers in the order of the positions that they hold."""
        return tuple(self._pages)

    @property
    def table(self) -> NDArray[np.int32]:
        """The page table of a step, [1, pages]."""
        if self._table is None:
            self._table = np.array([self._pages], np.int32)
        return self._table

    def grow(self, count: int) -> None:
        """Hold pages for ``count`` positions more than are written; OutOfMemory changes nothing."""
        self._must_be_open("grow")
        missing = -(-(self.position + count) // self._pool.page) - len(self._pages)
        if missing > 0:
            self._pages += self._pool.take(missing, f"a sequence at position {self.position}")
            self._table = None

    def advance(self, ids: NDArray[np.int32]) -> None:
        """Note the ids of rows that a completed step has written; BadState where no pages hold them."""
        self._must_be_open("advance")
        held = len(self._pages) * self._pool.page
        if self.position + len(ids) > held:
            raise BadState(
                f"a sequence at position {self.position} holds {held} positions and can't advance by {len(ids)}"
            )
        self._ids.extend(ids.tolist())

    def rollback(self, position: int) -> None:
        """Forget every position from ``position`` on, and return the pages that hold nothing else (E.13)."""
        self._must_be_open("roll back")
        if not 0 <= position <= self.position:
            raise BadState(f"a sequence at position {self.position} can't roll back to {position}")
        del self._ids[position:]
        self._keep(-(-position // self._pool.page))

    def release(self) -> None:
        """Return every page; BadState the second time."""
        self._must_be_open("be released")
        self._open = False
        self._ids.clear()
        self._keep(0)

    def _keep(self, pages: int) -> None:
        dropped = self._pages[pages:]
        if dropped:
            self._pages, self._table = self._pages[:pages], None
            self._pool.give(dropped)

    def _must_be_open(self, verb: str) -> None:
        if not self._open:
            raise BadState(f"a released sequence can't {verb}")


_POOLS: weakref.WeakKeyDictionary[Model, PagePool] = weakref.WeakKeyDictionary()
_POOLS_LOCK = Lock()


def page_pool(model: Model) -> PagePool:
    """The one pool of a model's cache, for as long as the model lives."""
    with _POOLS_LOCK:
        pool = _POOLS.get(model)
        if pool is None:
            pool = _POOLS[model] = PagePool(model.cache.pages)
        return pool
