"""Bookkeeping of cache pages."""

from __future__ import annotations

import gc
import random

import numpy as np
import pytest

from shohin.errors import BadState, OutOfMemory
from shohin.generate import PagePool, Sequence
from shohin.generate.pages import page_pool


def ids(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.int32)


def test_grow_advance_and_table() -> None:
    pool = PagePool(4, page=8)
    seq = Sequence(pool)
    assert (seq.position, seq.pages, seq.table.shape) == (0, (), (1, 0))
    seq.grow(9)
    assert (len(seq.pages), pool.free) == (2, 2)
    seq.grow(16)
    assert len(seq.pages) == 2, "growing counts from what is written"
    seq.advance(ids(16))
    seq.grow(1)
    assert (seq.position, len(seq.pages)) == (16, 3)
    assert seq.table.tolist() == [list(seq.pages)]
    assert seq.ids.tolist() == list(range(16))
    with pytest.raises(BadState, match="position 16 holds 24"):
        seq.advance(ids(9))


@pytest.mark.row("E.13")
def test_rollback_returns_pages_that_hold_nothing() -> None:
    pool = PagePool(4, page=8)
    seq = Sequence(pool)
    seq.grow(32)
    seq.advance(ids(30))
    pages = seq.pages
    for position, held in ((25, 4), (24, 3), (17, 3), (16, 2), (1, 1), (0, 0)):
        seq.rollback(position)
        assert (seq.position, seq.pages, pool.free) == (position, pages[:held], 4 - held)
        assert seq.table.tolist() == [list(pages[:held])]
    for bad in (-1, 1):
        with pytest.raises(BadState, match=f"position 0 can't roll back to {bad}"):
            seq.rollback(bad)


def test_exhaustion_says_the_numbers_and_changes_nothing() -> None:
    pool = PagePool(3, page=8)
    first, second = Sequence(pool), Sequence(pool)
    first.grow(16)
    first.advance(ids(16))
    with pytest.raises(OutOfMemory, match=r"position 0 needs 2 more pages of 8 positions, 1 of the cache's 3 are free"):
        second.grow(9)
    assert (second.pages, pool.free) == ((), 1)
    first.release()
    second.grow(24)
    assert (len(second.pages), pool.free) == (3, 0)


def test_wrong_returns_are_errors() -> None:
    pool = PagePool(3, page=8)
    seq = Sequence(pool)
    seq.grow(8)
    (page,) = seq.pages
    for pages in ([page, page], [page, 99]):
        with pytest.raises(BadState, match="not held"):
            pool.give(pages)
    assert pool.free == 2, "a refused return changes nothing"
    seq.release()
    with pytest.raises(BadState, match="not held"):
        pool.give([page])
    for call in (seq.release, lambda: seq.grow(1), lambda: seq.rollback(0), lambda: seq.advance(ids(0))):
        with pytest.raises(BadState, match="released"):
            call()
    assert pool.free == 3


def test_random_walk_never_shares_or_loses_a_page() -> None:
    seed = 77
    rng = random.Random(seed)
    pool = PagePool(20, page=4)
    live: list[Sequence] = []
    for turn in range(3000):
        what = rng.random()
        if what < 0.15 or not live:
            live.append(Sequence(pool))
            continue
        seq = rng.choice(live)
        if what < 0.7:
            n = rng.randint(0, 9)
            try:
                seq.grow(n)
            except OutOfMemory:
                continue
            seq.advance(ids(n))
        elif what < 0.9:
            seq.rollback(rng.randint(0, seq.position))
        else:
            live.remove(seq)
            seq.release()
        held = [p for s in live for p in s.pages]
        message = f"seed {seed}, turn {turn}"
        assert len(set(held)) == len(held), message
        assert pool.free + len(held) == 20, message
        assert all(len(s.pages) * 4 >= s.position for s in live), message
    for seq in live:
        seq.release()
    assert pool.free == 20


def test_one_pool_for_a_model_as_long_as_it_lives() -> None:
    class Cache:
        pages = 5

    class Model:
        cache = Cache()

    model, other = Model(), Model()
    pool = page_pool(model)  # type: ignore[arg-type]
    assert pool is page_pool(model)  # type: ignore[arg-type]
    assert pool is not page_pool(other)  # type: ignore[arg-type]
    assert pool.free == 5
    del model
    gc.collect()
    from shohin.generate.pages import _POOLS

    assert [m for m in _POOLS if m is not other and type(m) is Model] == []
