"""Sampled answers of devices that draw by themselves: against the host's sampler on the same device, and cpu."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from llama_recorded import logits_along

from shohin.devices import Device
from shohin.generate import Hooks, SamplingParams, generate
from shohin.generate.sampling import Sampler
from shohin.models import Model

# What a hook of any kind makes of the loop: one step after the other, and the host draws.
BY_THE_HOST = Hooks(play=lambda tape, step, fetch: tape.play(step, fetch))

# Every filter, every penalty, and what a device leaves to the host.
SETTINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.8},
    {"temperature": 1.3, "top_k": 40, "top_p": 0.95, "min_p": 0.02},
    {"temperature": 2.0, "top_p": 0.6},
    {"temperature": 1.0, "repetition_penalty": 1.4, "frequency_penalty": 0.7, "logit_bias": {5: 2.5, 9: -3.0}},
    {"repetition_penalty": 1.8, "presence_penalty": 0.4},
    {"temperature": 0.9, "logprobs": 2},
    {"temperature": 0.9, "top_p": 0.8, "order": ("penalties", "temperature", "top_p", "top_k", "min_p")},
)


def host_draws(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Indexes of the tokens that the host's sampler chooses from now on."""
    indexes: list[int] = []
    choose = Sampler.choose

    def counted(self: Sampler, logits: np.ndarray, index: int) -> int:
        indexes.append(index)
        return choose(self, logits, index)

    monkeypatch.setattr(Sampler, "choose", counted)
    return indexes


def answer(model: Model, prompt: Sequence[int], params: SamplingParams, hooks: Hooks | None = None) -> list[int]:
    return [t.id for t in generate(model, list(prompt), params, hooks=hooks)]


def parted_at_a_near_tie(ours: Model, theirs: Model, prompt: Sequence[int], params: SamplingParams) -> int | None:
    """Where two models' answers part, None where they don't; fails unless the logits' difference explains it.

    Along their ids, the draw of the parting step must change among logits that lie no further from theirs than ours do.
    """
    mine, reference = answer(ours, prompt, params), answer(theirs, prompt, params)
    at = next((i for i, (a, b) in enumerate(zip(mine, reference, strict=True)) if a != b), None)
    if at is None:
        return None
    here, there = (logits_along(m, prompt, reference)[at, : m.config.vocabulary] for m in (ours, theirs))
    sampler = Sampler(params, theirs.config.vocabulary, np.array(prompt, np.int32))
    for token in reference[:at]:
        sampler.history.add(token)
    assert sampler.choose(there, at) == reference[at], "the other model's text is not its logits' draw"
    assert sampler.choose(here, at) == mine[at], f"texts part at {at}, which the logits don't explain"
    return at


def expect_the_hosts_ids(
    model: Model, device: Device, monkeypatch: pytest.MonkeyPatch, settings: Mapping[str, Any]
) -> None:
    """Answers, alone and token by token beside others, drawn and greedy, are what the host makes of the same logits."""
    params, other = (SamplingParams(max_tokens=80, seed=seed, **settings) for seed in (7, 2**64 - 5))
    want, second = answer(model, [1, 2, 3], params, BY_THE_HOST), answer(model, [5, 6], other, BY_THE_HOST)
    assert "temperature" not in settings or second[:20] != want[:20]
    greedy = SamplingParams(max_tokens=80)
    third = answer(model, [7], greedy, BY_THE_HOST)
    before, by_the_host = device.submissions, host_draws(monkeypatch)
    assert answer(model, [1, 2, 3], params) == want
    assert device.submissions - before == 80, "a submission a token"
    assert len(by_the_host) == (80 if {"logprobs", "order"} & set(settings) else 1), "the prompt's token, and what must"
    three = generate(model, [1, 2, 3], params), generate(model, [5, 6], other), generate(model, [7], greedy)
    found = [tuple(next(one).id for one in three) for _ in range(20)]
    assert found == list(zip(want[:20], second[:20], third[:20], strict=True))
    for one in three[1:]:
        one.close()
    assert [t.id for t in three[0]] == want[20:]
