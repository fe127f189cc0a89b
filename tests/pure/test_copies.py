"""What can be pickled and copied: settings and errors. A model can't, because its cache has one owner."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from shohin import errors
from shohin.errors import BadRequest, ContextFull, ShohinError
from shohin.generate import SamplingParams
from shohin.generate.logprobs import logprobs
from shohin.generate.sampling import Sampler
from shohin.models import Model


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_settings_and_errors_survive(copied: object) -> None:
    params = SamplingParams(temperature=0.5, logit_bias={3: -1.5}, stop_ids=frozenset({1}), seed=9, choice=2)
    again = copied(params)  # type: ignore[operator]
    assert again == params and again.logit_bias == {3: -1.5}
    made: list[ShohinError] = [getattr(errors, n)("why") for n in errors.__all__ if n != "ContextFull"]
    for error in (*made, BadRequest("x", param="p", code="c"), ContextFull(70, 64)):
        found = copied(error)  # type: ignore[operator]
        assert type(found) is type(error) and str(found) == str(error) and vars(found) == vars(error)


def test_a_model_is_not_copied() -> None:
    model = Model.__new__(Model)
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="can't be copied"):
            act(model)


def test_a_callers_seterr_changes_no_choice() -> None:
    """Shares of far-off logits round to zero, which ``all="raise"`` would make an exception."""
    logits = np.array([0.0, -3e4, 1.0, -1e38, 3e4], np.float32)
    params = SamplingParams(temperature=0.01, top_p=0.9, min_p=1e-300, seed=1, repetition_penalty=1.3)
    prompt = np.array([4], np.int32)
    want = Sampler(params, 5, prompt).choose(logits, 0), logprobs(logits, 4, 3)
    with np.errstate(all="raise"):
        assert (Sampler(params, 5, prompt).choose(logits, 0), logprobs(logits, 4, 3)) == want
