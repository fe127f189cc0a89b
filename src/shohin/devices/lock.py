"""A lock that a forked child finds free."""

from __future__ import annotations

import os
import threading
import weakref

__all__ = ["Lock"]


class Lock:
    """A re-entrant lock, used in a ``with``.

    The thread that held it may not exist in a forked child, which would wait for ever: the child gets a fresh lock,
    unless it is the forking thread itself that holds it.
    """

    def __init__(self) -> None:
        self._held = threading.RLock()
        _LOCKS.add(self)

    def __enter__(self) -> None:
        self._held.acquire()

    def __exit__(self, *exc: object) -> None:
        self._held.release()

    def _renew(self) -> None:
        if self._held.acquire(blocking=False):
            self._held.release()
        else:
            self._held = threading.RLock()


_LOCKS: weakref.WeakSet[Lock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in list(_LOCKS):
        lock._renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
