"""The lock that devices and page pools share with forked children."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from shohin.devices import Host, Lock
from shohin.generate import PagePool

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def child_status(act: object) -> int:
    """Run ``act`` in a forked child that an alarm ends; its exit status."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            act()  # type: ignore[operator]
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("which", ["lock", "device", "pages"])
def test_a_child_forked_while_another_thread_holds_it_goes_on(which: str) -> None:
    pool, device = PagePool(4), Host()
    lock = {"lock": Lock(), "device": device.lock, "pages": pool._lock}[which]
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)

    def use() -> None:
        with lock, device.lock:
            pool.give(pool.take(2, "a child"))

    try:
        assert child_status(use) == 0
    finally:
        done.set()
        thread.join()


def test_a_child_that_holds_it_lets_go_as_ever() -> None:
    lock = Lock()

    def free() -> None:
        lock.__exit__()
        with lock:
            pass
        got = []
        thread = threading.Thread(target=lambda: got.append(lock.__enter__()))
        thread.start()
        thread.join(10)
        assert got == [None]

    with lock:
        assert child_status(free) == 0
