"""The order of samplers, ties, penalties and draws, against plain Python."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shohin.errors import BadRequest, DeviceFailed
from shohin.generate import SamplingParams
from shohin.generate.logprobs import logprobs
from shohin.generate.sampling import Sampler
from shohin.kernels.sample.stages import STAGES, Candidates, History, best, draw, survivors

NOTHING = np.zeros(0, np.int32)
COLD_FIRST = ("penalties", "temperature", "top_k", "top_p", "min_p")


def kept(logits: Any, params: SamplingParams) -> list[int]:
    x = np.array(logits, np.float32)
    found = survivors(x, params, History(len(x), NOTHING), params.order)
    return list(range(len(x))) if found.ids is None else found.ids.tolist()


@pytest.mark.row("C22", "M.19")
def test_table_of_orders(cases: Path) -> None:
    for row in json.loads((cases / "sampling" / "order.json").read_text()):
        settings = {k: row[k] for k in ("temperature", "top_k", "top_p", "min_p") if k in row}
        assert kept(row["logits"], SamplingParams(**settings)) == row["kept_temperature_last"], row
        assert kept(row["logits"], SamplingParams(**settings, order=COLD_FIRST)) == row["kept_temperature_first"], row


@pytest.mark.row("C25")
def test_table_of_ties(cases: Path) -> None:
    for row in json.loads((cases / "sampling" / "ties.json").read_text()):
        x = np.full(row["n"], row["low"], np.float32)
        x[row["at"]] = row["high"]
        for settings in ({}, {"logprobs": 3}, {"temperature": 1.0, "top_k": 1}, {"temperature": 1.0, "top_p": 0.0}):
            sampler = Sampler(SamplingParams(**settings), len(x), NOTHING)
            assert sampler.choose(x, 0) == row["expected"], (row, settings)
        assert best(x, 1).tolist() == [row["expected"]]


def plain_survivors(logits: list[float], p: SamplingParams) -> list[int]:
    """What ``survivors`` should keep in the default order, with sorted lists instead of arrays."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if p.top_k > 0:
        order = order[: p.top_k]
    weights = [math.exp(logits[i] - logits[order[0]]) for i in order]
    total, running, count = math.fsum(weights), 0.0, 0
    for w in weights:
        running += w
        count += 1
        if p.top_p < 1 and running / total >= p.top_p:
            break
    order, weights = order[:count], weights[:count]
    return sorted(i for i, w in zip(order, weights, strict=True) if w >= p.min_p)


def test_survivors_against_plain_lists() -> None:
    seed = 20_240_601
    rng = random.Random(seed)
    for trial in range(300):
        n = rng.choice([1, 2, 7, 300, 5000])
        spread = rng.choice([0.0, 0.1, 1.0, 5.0])
        logits = [rng.gauss(0, spread) for _ in range(n)]
        if rng.random() < 0.3:
            logits = [round(v) for v in logits]
        # Halves of powers of ten: no sum of these weights meets the border exactly.
        p = SamplingParams(
            temperature=0.5,
            top_k=rng.choice([0, -1, 1, 3, 50, 10**6]),
            top_p=rng.choice([0.0, 1e-9, 0.3017, 0.8503, 0.9999, 1.0]),
            min_p=rng.choice([0.0, 0.0501, 0.5003, 1.0]),
        )
        x = [float(np.float32(v)) for v in logits]
        assert kept(x, p) == plain_survivors(x, p), f"seed {seed}, trial {trial}, {p}"


@pytest.mark.row("C22")
def test_something_survives_every_extreme() -> None:
    for order in itertools.permutations(STAGES):
        p = SamplingParams(temperature=1e-5, top_k=1, top_p=0.0, min_p=1.0, repetition_penalty=100.0, order=order)
        for logits in ([-1e4, -1e4], [3e38, 3e38, -3e38], [-3e38], [0.0]):
            x = np.array(logits, np.float32)
            assert Sampler(p, len(x), NOTHING).choose(x, 0) == 0


def test_penalties_against_plain_arithmetic() -> None:
    x = np.array([2.0, -2.0, 1.0, 0.0, 5.0, -1.0], np.float32)
    history = History(6, np.array([0, 1, 0], np.int32))
    for token in (1, 2, 2):
        history.add(token)
    p = SamplingParams(
        repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25, logit_bias={3: 7.5, 1: -1}, temperature=1
    )
    # Repetition: prompt and answer, so 0, 1, 2. Presence and frequency: the answer only, 1 once and 2 twice.
    expected = [2 / 2, -2 * 2 - 0.5 - 0.25 - 1, 1 / 2 - 0.5 - 2 * 0.25, 7.5, 5.0, -1.0]
    assert survivors(x, p, history).logits.tolist() == expected
    assert x.tolist() == [2.0, -2.0, 1.0, 0.0, 5.0, -1.0], "the caller's logits are left alone"


def test_penalties_after_a_cut_still_meet_their_ids() -> None:
    x = np.array([5.0, 1.0, 4.0, 3.0], np.float32)
    order = ("top_k", "penalties", "top_p", "min_p", "temperature")
    p = SamplingParams(temperature=1, top_k=2, logit_bias={2: 9.0, 1: 50.0}, order=order)
    found = survivors(x, p, History(4, NOTHING), order)
    assert found.ids is not None
    assert (found.ids.tolist(), found.logits.tolist()) == ([0, 2], [5.0, 13.0])
    greedy = Sampler(SamplingParams(logit_bias={1: 50.0}), 4, NOTHING)
    assert greedy.choose(x, 0) == 1


@pytest.mark.row("R.17")
def test_repetition_penalty_is_off_by_default_and_works_when_on() -> None:
    x, prompt = np.array([3.0, 2.0], np.float32), np.array([0], np.int32)
    assert Sampler(SamplingParams(logprobs=0), 2, prompt).choose(x, 0) == 0
    assert Sampler(SamplingParams(repetition_penalty=2.0), 2, prompt).choose(x, 0) == 1


def test_draws_follow_the_distribution() -> None:
    x = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))
    for temperature in (1.0, 0.5):
        shares = np.exp(x.astype(float) / temperature)
        shares /= shares.sum()
        sampler = Sampler(SamplingParams(temperature=temperature, seed=5), 4, NOTHING)
        n = 8000
        counts = Counter(sampler.choose(x, i) for i in range(n))
        chi = sum((counts[i] - n * s) ** 2 / (n * s) for i, s in enumerate(shares))
        assert chi < 16.27, f"0.999 quantile with 3 degrees of freedom; seed 5, counts {counts}"


@pytest.mark.row("R.13")
def test_two_temperatures_two_distributions() -> None:
    x = np.array([1.0, 0.0], np.float32)
    share = {
        t: sum(Sampler(SamplingParams(temperature=t, seed=3), 2, NOTHING).choose(x, i) for i in range(2000)) / 2000
        for t in (0.25, 2.0)
    }
    assert share[0.25] < 0.05
    assert 0.33 < share[2.0] < 0.43


def test_draw_at_the_borders() -> None:
    x = np.log([0.25, 0.5, 0.25])
    assert [draw(x, u) for u in (0.0, 0.2499, 0.2501, 0.7499, 0.7501, 1 - 2**-53)] == [0, 0, 1, 1, 2, 2]
    assert draw(np.array([0.0, -np.inf, -np.inf]), 1 - 2**-53) == 0, "a candidate without a share is never drawn"
    assert draw(np.array([-2000.0, 0.0, -2000.0]), 0.0) == 1


@pytest.mark.row("C23", "R.33")
def test_seeds() -> None:
    x = np.zeros(1000, np.float32)

    def run(**settings: Any) -> list[int]:
        sampler = Sampler(SamplingParams(temperature=1.0, **settings), 1000, NOTHING)
        return [sampler.choose(x, i) for i in range(12)]

    alone = run(seed=0)
    assert len(set(alone)) > 6, "seed 0 is ordinary"
    for _ in range(100):
        run()
    assert run(seed=0) == alone
    assert len({tuple(run(seed=0, choice=c)) for c in range(3)}) == 3
    assert len({tuple(run(seed=s)) for s in (0, 1, 2**32, 2**64 - 1, None, None, -1, -1)}) == 8


@pytest.mark.row("C23")
def test_a_draw_depends_on_its_index_alone() -> None:
    x = np.zeros(1000, np.float32)
    sampler = Sampler(SamplingParams(temperature=1.0, seed=9), 1000, NOTHING)
    forward = [sampler.choose(x, i) for i in range(8)]
    assert [sampler.choose(x, i) for i in reversed(range(8))] == forward[::-1]


@pytest.mark.row("C23")
def test_global_state_is_left_alone() -> None:
    before = np.random.get_state()[1].copy(), random.getstate()
    Sampler(SamplingParams(temperature=1.0), 4, NOTHING).choose(np.zeros(4, np.float32), 0)
    assert np.array_equal(before[0], np.random.get_state()[1])
    assert before[1] == random.getstate()


@pytest.mark.row("R.34", "H.20")
@pytest.mark.parametrize("logits", [[], [math.nan], [1.0, math.nan], [math.inf, 1.0], [-math.inf, -math.inf]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_token_from_nothing(logits: list[float], temperature: float) -> None:
    x = np.array(logits, np.float32)
    with pytest.raises(DeviceFailed, match="token 7"):
        Sampler(SamplingParams(temperature=temperature, seed=1), len(x), NOTHING).choose(x, 7)


def test_vocabulary_is_checked_at_use() -> None:
    with pytest.raises(BadRequest) as caught:
        Sampler(SamplingParams(logit_bias={4: 1}), 4, NOTHING)
    assert caught.value.param == "logit_bias"


def test_what_needs_logits() -> None:
    def needs(**settings: Any) -> bool:
        return Sampler(SamplingParams(**settings), 4, NOTHING).needs_logits

    assert not needs()
    assert not needs(top_k=5, top_p=0.5, min_p=0.1, seed=3, temperature=1e-6, max_tokens=2)
    for settings in ({"temperature": 1}, {"logprobs": 0}, {"logit_bias": {1: 1}}, {"repetition_penalty": 1.1}):
        assert needs(**settings)
    assert needs(presence_penalty=0.1)
    assert needs(frequency_penalty=-0.1)


def test_logprobs_are_the_models_own() -> None:
    rng = np.random.default_rng(11)
    x = rng.normal(0, 4, 3000).astype(np.float32)
    x[[5, 900]] = 20.0
    exact = [float(v) for v in x]
    total = max(exact) + math.log(math.fsum(math.exp(v - max(exact)) for v in exact))
    chosen, top = logprobs(x, 17, 4)
    assert chosen == pytest.approx(exact[17] - total, abs=1e-12)
    order = sorted(range(len(exact)), key=lambda i: (-exact[i], i))[:4]
    assert [i for i, _ in top] == order
    assert order[:2] == [5, 900]
    assert [v for _, v in top] == pytest.approx([exact[i] - total for i in order], abs=1e-12)
    assert logprobs(x, 17, 0)[1] == ()
    assert len(logprobs(x[:3], 0, 20)[1]) == 3


def test_candidates_keep_their_ids() -> None:
    found = Candidates(None, np.array([1.0, 2.0, 3.0])).only(np.array([0, 2])).only(np.array([1]))
    assert (found.id(0), found.logits.tolist()) == (2, [3.0])
