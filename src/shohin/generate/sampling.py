"""From logits to one id: penalties and bias, top_k, top_p, min_p, temperature last, then the draw.

The order is that of llama.cpp and of users of GGUF files; ``SamplingParams.order`` changes it. Each stage keeps at
least one candidate. Candidates stay in id order, so ties are cut in favour of the lowest id everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shohin.errors import DeviceFailed
from shohin.generate.params import SamplingParams
from shohin.generate.random import fresh_seed, uniform

__all__ = ["Candidates", "History", "Sampler", "survivors"]

Floats = NDArray[Any]
Ids = NDArray[np.int64]
_FIRST_TRY = 256
_GROWTH = 16


@dataclass(frozen=True, eq=False)
class Candidates:
    """Ids that may still be drawn, ascending (None: the whole vocabulary), and their logits."""

    ids: Ids | None
    logits: Floats

    def only(self, index: Ids) -> Candidates:
        """The candidates at these ascending indexes."""
        return Candidates(index if self.ids is None else self.ids[index], self.logits[index])

    def of(self, values: NDArray[Any]) -> NDArray[Any]:
        """The candidates' entries of an array over the vocabulary."""
        return values if self.ids is None else values[self.ids]

    def id(self, index: int) -> int:
        """The id of the candidate at ``index``."""
        return index if self.ids is None else int(self.ids[index])


class History:
    """What the penalties look at: which ids occurred in prompt or answer, and how often in the answer."""

    def __init__(self, vocabulary: int, prompt: NDArray[np.int32]) -> None:
        self.seen = np.zeros(vocabulary, np.bool_)
        self.seen[prompt] = True
        self.counts = np.zeros(vocabulary, np.int32)

    def add(self, token: int) -> None:
        """Take in a generated id."""
        self.seen[token] = True
        self.counts[token] += 1


def _penalties(found: Candidates, params: SamplingParams, history: History) -> Candidates:
    if not params.penalised:
        return found
    x = found.logits.astype(np.float64)
    if params.repetition_penalty != 1:
        at = np.flatnonzero(found.of(history.seen))
        x[at] = np.where(x[at] > 0, x[at] / params.repetition_penalty, x[at] * params.repetition_penalty)
    if params.presence_penalty or params.frequency_penalty:
        counts = found.of(history.counts)
        at = np.flatnonzero(counts)
        x[at] -= params.presence_penalty + params.frequency_penalty * counts[at]
    if params.logit_bias:
        bias = np.zeros(len(history.seen))
        bias[np.fromiter(params.logit_bias, np.int64)] = np.fromiter(params.logit_bias.values(), np.float64)
        x += found.of(bias)
    return Candidates(found.ids, x)


def best(logits: Floats, k: int) -> Ids:
    """Indexes of the k largest logits, largest first, ties by lowest index; fewer where there are fewer."""
    n = len(logits)
    if k >= n:
        return np.argsort(-logits, kind="stable")
    border = np.partition(logits, n - k)[n - k]
    at = np.flatnonzero(logits >= border)
    return at[np.argsort(-logits[at], kind="stable")][:k]


def _shares(logits: Floats, top: Any) -> Floats:
    """exp(logits - top) in float64, also where the difference would overflow the logits' own type."""
    shares: Floats = np.exp(np.subtract(logits, top, dtype=np.float64))
    return shares


def _top_k(found: Candidates, params: SamplingParams, history: History) -> Candidates:
    if params.top_k <= 0 or params.top_k >= len(found.logits):
        return found
    return found.only(np.sort(best(found.logits, params.top_k)))


def _top_p(found: Candidates, params: SamplingParams, history: History) -> Candidates:
    if params.top_p >= 1:
        return found
    x = found.logits
    top = x.max()
    goal = params.top_p * _shares(x, top).sum()
    head = _FIRST_TRY
    while True:
        # Sorting the whole vocabulary costs ten times as much as finding the few tokens that usually suffice.
        order = best(x, head)
        reached = _shares(x[order], top).cumsum()
        if reached[-1] >= goal or len(order) == len(x):
            return found.only(np.sort(order[: int(np.searchsorted(reached, goal)) + 1]))
        head *= _GROWTH


def _min_p(found: Candidates, params: SamplingParams, history: History) -> Candidates:
    if params.min_p <= 0:
        return found
    x = found.logits
    return found.only(np.flatnonzero(x >= x.max() + np.log(params.min_p)))


def _temperature(found: Candidates, params: SamplingParams, history: History) -> Candidates:
    if params.temperature == 1:
        return found
    return Candidates(found.ids, found.logits.astype(np.float64) / params.temperature)


_STAGES: dict[str, Callable[[Candidates, SamplingParams, History], Candidates]] = {
    "penalties": _penalties,
    "top_k": _top_k,
    "top_p": _top_p,
    "min_p": _min_p,
    "temperature": _temperature,
}


def survivors(logits: Floats, params: SamplingParams, history: History) -> Candidates:
    """What all stages leave of finite logits [vocabulary], with the logits that the draw sees; never empty."""
    found = Candidates(None, logits)
    for stage in params.order:
        found = _STAGES[stage](found, params, history)
    return found


def draw(logits: Floats, number: float) -> int:
    """The index whose share of the summed probabilities, in index order, holds ``number`` in [0, 1)."""
    sums = _shares(logits, logits.max()).cumsum()
    # Rounding of the product may reach the sum itself; the last candidate with a share is meant then.
    target = min(number * sums[-1], np.nextafter(sums[-1], 0))
    return int(np.searchsorted(sums, target, side="right"))


class Sampler:
    """Chooses the tokens of one answer. The seed is fixed here: one generator per request and choice."""

    def __init__(self, params: SamplingParams, vocabulary: int, prompt: NDArray[np.int32]) -> None:
        params.check_vocabulary(vocabulary)
        self.params = params
        self.seed = fresh_seed() if params.seed is None else params.seed
        self.history = History(vocabulary, prompt)

    @property
    def needs_logits(self) -> bool:
        """False where the device's own pick is the answer, so that nothing but an id has to be fetched."""
        return not self.params.greedy or self.params.penalised or self.params.logprobs is not None

    def choose(self, logits: Floats, index: int) -> int:
        """The id of generated token ``index``, from logits [vocabulary]; DeviceFailed for NaN, infinity or nothing."""
        # A caller's np.seterr is not for us: shares that round to zero are meant to.
        with np.errstate(all="ignore"):
            return self._choose(logits, index)

    def _choose(self, logits: Floats, index: int) -> int:
        if not len(logits) or not np.isfinite(logits.max()):
            raise DeviceFailed(f"the logits of generated token {index} are empty or not finite")
        if self.params.greedy:
            found = _penalties(Candidates(None, logits), self.params, self.history)
            return int(found.logits.argmax())
        found = survivors(logits, self.params, self.history)
        return found.id(draw(found.logits, uniform(self.seed, self.params.choice, index)))
