"""A prompt cache: a sequence that outlives an answer, so that the next prompt reads only what is new (E.16, C29)."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shohin.errors import BadState, Cancelled
from shohin.generate.pages import Sequence, page_pool

if TYPE_CHECKING:
    from shohin.models import Model

__all__ = ["Session"]


class Session:
    """One conversation's cache on one model. ``close`` it, or use it in a ``with``; a forgotten one closes itself.

    A row of the cache depends only on the ids up to it, so an answer after reuse equals that of a fresh run.
    It holds pages between answers, and generates one answer at a time.
    """

    def __init__(self, model: Model) -> None:
        self._model = weakref.ref(model)
        self._sequence = Sequence(page_pool(model))
        self._busy = False
        self._closer = weakref.finalize(self, self._sequence.release)

    @property
    def ids(self) -> NDArray[np.int32]:
        """The ids whose rows the cache holds."""
        return self._sequence.ids

    def reset(self) -> None:
        """Forget everything; the pages are free for others."""
        self._must_be_idle("reset")
        self._sequence.rollback(0)

    def close(self) -> None:
        """Return the pages; the session can't be used again. Closing twice is harmless."""
        if self._busy:
            raise BadState("a session can't be closed while it generates")
        self._closer()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def shared(self, prompt: NDArray[np.int32]) -> int:
        """How many leading ids of ``prompt`` need not be read again: at most all but the last, whose logits count."""
        n = min(self._sequence.position, len(prompt) - 1)
        differ = np.flatnonzero(self.ids[:n] != prompt[:n])
        return int(differ[0]) if len(differ) else n

    @contextmanager
    def lend(self, model: Model, prompt: NDArray[np.int32]) -> Iterator[Sequence]:
        """The sequence, rolled back to what it shares with ``prompt``.

        An answer that is cancelled or closed keeps the rows of its completed steps. Any other error empties the
        session, since nobody knows what a failed device has left in the cache.
        """
        if self._model() is not model:
            raise BadState("a session belongs to one model and can't be used with another")
        self._must_be_idle("used for a second answer")
        self._busy = True
        try:
            self._sequence.rollback(self.shared(prompt))
            yield self._sequence
        except Cancelled:
            raise
        except Exception:
            self._sequence.rollback(0)
            raise
        finally:
            self._busy = False

    def _must_be_idle(self, verb: str) -> None:
        if self._busy or not self._closer.alive:
            raise BadState(f"a session that {'generates' if self._busy else 'is closed'} can't be {verb}")
