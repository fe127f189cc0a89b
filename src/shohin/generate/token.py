"""One generated token, as the loop hands it out."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Token"]


@dataclass(frozen=True)
class Token:
    """id; logprob (natural logarithm, None unless asked for); top: the best (id, logprob) pairs, best first.

    finish: None, or why the answer ends with this token: ``stop`` (it is an end id, not part of the answer) or
    ``length`` (max_tokens reached, or the context is full; it is part of the answer).
    """

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    finish: str | None = None
