"""LOOPS: ids in, ids out. Sampling, pages of the cache, and the loop that plays one step a token."""

from __future__ import annotations

from shohin.generate.loop import Generation, Hooks, Timings, generate
from shohin.generate.pages import PagePool, Sequence, page_pool
from shohin.generate.params import SamplingParams
from shohin.generate.session import Session
from shohin.generate.token import Token

__all__ = [
    "Generation",
    "Hooks",
    "PagePool",
    "SamplingParams",
    "Sequence",
    "Session",
    "Timings",
    "Token",
    "generate",
    "page_pool",
]
