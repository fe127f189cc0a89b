"""From logits to one id in NumPy: penalties and bias, top_k, top_p, min_p, temperature last, then the draw.

The order is that of llama.cpp and of users of GGUF files; a caller may ask for another. Each stage keeps at least one
candidate. Candidates stay in id order, so ties are cut in favour of the lowest id everywhere. Both the host's sampler
and the op's reference are made of these stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["STAGES", "Candidates", "History", "Settings", "best", "draw", "likeliest", "survivors"]

STAGES = ("penalties", "top_k", "top_p", "min_p", "temperature")

Floats = NDArray[Any]
Ids = NDArray[np.int64]
_FIRST_TRY = 256
_GROWTH = 16


class Settings(Protocol):
    """What the stages ask of a row's settings; ``SamplingParams`` says what each means."""

    @property
    def temperature(self) -> float:
        """Divides logits; 1 is off."""
        ...

    @property
    def top_k(self) -> int:
        """Candidates left; 0 or less is off."""
        ...

    @property
    def top_p(self) -> float:
        """Share of the probability that is left; 1 is off."""
        ...

    @property
    def min_p(self) -> float:
        """Least share of the best one's probability; 0 is off."""
        ...

    @property
    def repetition_penalty(self) -> float:
        """Over every id of prompt and answer; 1 is off."""
        ...

    @property
    def presence_penalty(self) -> float:
        """Once for an id of the answer."""
        ...

    @property
    def frequency_penalty(self) -> float:
        """For every occurrence in the answer."""
        ...

    @property
    def logit_bias(self) -> Mapping[int, float]:
        """Added to the logits of these ids."""
        ...

    @property
    def penalised(self) -> bool:
        """Whether any setting changes logits before the choice."""
        ...


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

    @classmethod
    def of(cls, seen: NDArray[np.bool_], counts: NDArray[np.int32]) -> History:
        """What is known already, [vocabulary] each."""
        made = cls.__new__(cls)
        made.seen, made.counts = seen, counts
        return made

    def words(self) -> NDArray[np.int32]:
        """As the op keeps it on a device: twice the count in the answer, plus one for an id that the prompt has."""
        return 2 * self.counts + self.seen

    def add(self, token: int) -> None:
        """Take in a generated id."""
        self.seen[token] = True
        self.counts[token] += 1


def _penalties(found: Candidates, settings: Settings, history: History) -> Candidates:
    if not settings.penalised:
        return found
    x = found.logits.astype(np.float64)
    if settings.repetition_penalty != 1:
        at = np.flatnonzero(found.of(history.seen))
        x[at] = np.where(x[at] > 0, x[at] / settings.repetition_penalty, x[at] * settings.repetition_penalty)
    if settings.presence_penalty or settings.frequency_penalty:
        counts = found.of(history.counts)
        at = np.flatnonzero(counts)
        x[at] -= settings.presence_penalty + settings.frequency_penalty * counts[at]
    if settings.logit_bias:
        bias = np.zeros(len(history.seen))
        bias[np.fromiter(settings.logit_bias, np.int64)] = np.fromiter(settings.logit_bias.values(), np.float64)
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


def _top_k(found: Candidates, settings: Settings, history: History) -> Candidates:
    if settings.top_k <= 0 or settings.top_k >= len(found.logits):
        return found
    return found.only(np.sort(best(found.logits, settings.top_k)))


def _top_p(found: Candidates, settings: Settings, history: History) -> Candidates:
    if settings.top_p >= 1:
        return found
    x = found.logits
    top = x.max()
    goal = settings.top_p * _shares(x, top).sum()
    head = _FIRST_TRY
    while True:
        # Sorting the whole vocabulary costs ten times as much as finding the few tokens that usually suffice.
        order = best(x, head)
        reached = _shares(x[order], top).cumsum()
        if reached[-1] >= goal or len(order) == len(x):
            return found.only(np.sort(order[: int(np.searchsorted(reached, goal)) + 1]))
        head *= _GROWTH


def _min_p(found: Candidates, settings: Settings, history: History) -> Candidates:
    if settings.min_p <= 0:
        return found
    x = found.logits
    return found.only(np.flatnonzero(x >= x.max() + np.log(settings.min_p)))


def _temperature(found: Candidates, settings: Settings, history: History) -> Candidates:
    if settings.temperature == 1:
        return found
    return Candidates(found.ids, found.logits.astype(np.float64) / settings.temperature)


_STAGES: dict[str, Callable[[Candidates, Settings, History], Candidates]] = {
    "penalties": _penalties,
    "top_k": _top_k,
    "top_p": _top_p,
    "min_p": _min_p,
    "temperature": _temperature,
}


def survivors(logits: Floats, settings: Settings, history: History, order: Sequence[str] = STAGES) -> Candidates:
    """What all stages leave of finite logits [vocabulary], with the logits that the draw sees; never empty."""
    found = Candidates(None, logits)
    for stage in order:
        found = _STAGES[stage](found, settings, history)
    return found


def likeliest(logits: Floats, settings: Settings, history: History) -> int:
    """The best id after penalties and bias; the lowest among equals."""
    return int(_penalties(Candidates(None, logits), settings, history).logits.argmax())


def draw(logits: Floats, number: float) -> int:
    """The index whose share of the summed probabilities, in index order, holds ``number`` in [0, 1)."""
    sums = _shares(logits, logits.max()).cumsum()
    # Rounding of the product may reach the sum itself; the last candidate with a share is meant then.
    target = min(number * sums[-1], np.nextafter(sums[-1], 0))
    return int(np.searchsorted(sums, target, side="right"))
