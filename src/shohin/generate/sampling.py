"""The host's sampler: it chooses one answer's tokens by the stages of ``kernels/sample/stages.py``."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shohin.errors import DeviceFailed
from shohin.generate.params import SamplingParams
from shohin.kernels.sample import BIASES, GREEDY, SAMPLED, Choice
from shohin.kernels.sample.random import uniform
from shohin.kernels.sample.stages import STAGES, History, draw, likeliest, survivors

__all__ = ["Sampler", "fresh_seed"]

Floats = NDArray[Any]


def fresh_seed() -> int:
    """A seed from the operating system's entropy."""
    return secrets.randbits(64)


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

    def on_device(self, index: int) -> Choice | None:
        """How a device chooses generated token ``index`` and those after it as ``choose`` does; None where it can't."""
        p = self.params
        if p.logprobs is not None or p.order != STAGES or len(p.logit_bias) > BIASES:
            return None
        return Choice(
            GREEDY if p.greedy else SAMPLED,
            temperature=p.temperature,
            top_k=p.top_k,
            top_p=p.top_p,
            min_p=p.min_p,
            repetition_penalty=p.repetition_penalty,
            presence_penalty=p.presence_penalty,
            frequency_penalty=p.frequency_penalty,
            logit_bias=p.logit_bias,
            seed=self.seed,
            choice=p.choice,
            index=index,
        )

    def choose(self, logits: Floats, index: int) -> int:
        """The id of generated token ``index``, from logits [vocabulary]; DeviceFailed for NaN, infinity or nothing."""
        # A caller's np.seterr is not for us: shares that round to zero are meant to.
        with np.errstate(all="ignore"):
            return self._choose(logits, index)

    def _choose(self, logits: Floats, index: int) -> int:
        if not len(logits) or not np.isfinite(logits.max()):
            raise DeviceFailed(f"the logits of generated token {index} are empty or not finite")
        if self.params.greedy:
            return likeliest(logits, self.params, self.history)
        found = survivors(logits, self.params, self.history, self.params.order)
        return found.id(draw(found.logits, uniform(self.seed, self.params.choice, index)))
