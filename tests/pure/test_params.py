"""Settings are checked by what is good; every refusal names its field (C21 without HTTP, C23)."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shohin.errors import BadRequest
from shohin.generate import SamplingParams

NUMBERS = {
    "max_tokens": (0, 2**63 - 1),
    "temperature": (0, 2),
    "top_k": (-1, 2**63 - 1),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "repetition_penalty": (0.01, 100),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "seed": (-1, 2**64 - 1),
    "choice": (0, 2**32 - 1),
    "logprobs": (0, 20),
}
WHOLE = {"max_tokens", "top_k", "seed", "choice", "logprobs"}
OPTIONAL = {"max_tokens", "seed", "logprobs"}
NO_NUMBERS = [float("nan"), float("inf"), -float("inf"), True, False, np.True_, "1", b"1", [1], (1,), {}, 1j, object()]


def refused(name: str, value: Any) -> BadRequest:
    with pytest.raises(BadRequest, match=name) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert len(str(caught.value)) < 300
    return caught.value


def test_every_numeric_field_is_listed_here() -> None:
    others = {"logit_bias", "stop_ids", "ignore_eos", "order"}
    assert {f.name for f in fields(SamplingParams)} == set(NUMBERS) | others


@pytest.mark.row("C21")
@pytest.mark.parametrize("name", NUMBERS)
def test_limits(name: str) -> None:
    low, high = NUMBERS[name]
    for value in (low, high):
        expected = None if name == "seed" and value == -1 else value
        assert getattr(SamplingParams(**{name: value}), name) == expected
    step = 1 if name in WHOLE else 1e-6
    for value in (low - step, high + step, -(10**400), 10**400, 10**5000):
        refused(name, value)
    for value in NO_NUMBERS:
        refused(name, value)
    if name in WHOLE:
        refused(name, 0.5)
        refused(name, 1.0)
    else:
        refused(name, Fraction(5000, 1))
    if name in OPTIONAL:
        assert getattr(SamplingParams(**{name: None}), name) is None
    else:
        refused(name, None)


def test_numbers_of_numpy_are_numbers() -> None:
    p = SamplingParams(temperature=np.float32(0.5), top_k=np.int64(3), seed=np.uint64(2**64 - 1))
    assert (p.temperature, p.top_k, p.seed) == (0.5, 3, 2**64 - 1)
    assert (type(p.temperature), type(p.top_k), type(p.seed)) == (float, int, int)


SETTINGS = {*NUMBERS, "max_completion_tokens"}


@pytest.mark.row("C21")
def test_table_of_bad_numbers(cases: Path) -> None:
    """The rows about settings. Rows of status 0 leave the choice to us: top_p 0 keeps one token, max_tokens 0 and
    10^12 are taken, a temperature above 2 is refused."""
    ours = {"top_p": 200, "max_tokens": 200, "temperature": 400}
    seen = 0
    for row in json.loads((cases / "server" / "bad_numbers.json").read_text()):
        name = row["param"]
        if name not in SETTINGS:
            continue
        body = json.loads(row["body"])
        if row["status"] == 0 and body.get("temperature") == 0:
            continue  # one field twice: a matter of the JSON reader
        field = "max_tokens" if name == "max_completion_tokens" else name
        value, status = body[name], row["status"] or ours[name]
        if status == 400:
            refused(field, value)
        elif value is not None:
            SamplingParams(**{field: value})
        seen += 1
    assert seen > 45


@pytest.mark.row("C21")
@pytest.mark.parametrize(("value", "greedy"), [(0, True), (1e-9, True), (9.9e-6, True), (1e-5, False), (1, False)])
def test_tiny_temperatures_are_greedy(value: float, greedy: bool) -> None:
    assert SamplingParams(temperature=value).greedy is greedy


@pytest.mark.row("C23")
def test_random_seeds() -> None:
    assert SamplingParams(seed=-1).seed is None
    assert SamplingParams(seed=None).seed is None
    assert SamplingParams(seed=0).seed == 0
    refused("seed", 2**64)
    refused("seed", -2)


def test_bias_and_stop_ids() -> None:
    p = SamplingParams(logit_bias={5: -100, 6: 1.5}, stop_ids=[3, 3, 4])
    assert dict(p.logit_bias) == {5: -100.0, 6: 1.5}
    assert p.stop_ids == {3, 4}
    for bad in ({5: 101}, {5: float("nan")}, {5: True}, {"5": 1}, {-1: 1}, {True: 1}, {2**31: 1}, [5], "5", None, 5):
        refused("logit_bias", bad)
    for bad in ([-1], [True], ["a"], [1.0], [2**31], "12", b"12", 5, None, [[1]]):
        refused("stop_ids", bad)
    for name in ("logit_bias", "stop_ids"):
        with pytest.raises(BadRequest, match="id 9, the vocabulary has 9") as caught:
            SamplingParams(logit_bias={9: 1}, stop_ids=[8]).check_vocabulary(9) if name == "logit_bias" else (
                SamplingParams(stop_ids=[9]).check_vocabulary(9)
            )
        assert caught.value.param == name


def test_the_callers_map_is_copied() -> None:
    bias = {1: 1.0}
    p = SamplingParams(logit_bias=bias)
    bias[1] = 99.0
    bias[2] = 1.0
    assert dict(p.logit_bias) == {1: 1.0}
    with pytest.raises(TypeError):
        p.logit_bias[1] = 2.0  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        p.seed = 1  # type: ignore[misc]
    assert replace(p, seed=3) != p
    assert hash(replace(p, seed=None)) == hash(p)


def test_order_and_switches() -> None:
    order = ["temperature", "penalties", "min_p", "top_p", "top_k"]
    assert SamplingParams(order=order).order == tuple(order)
    for bad in ([], order[1:], [*order, "top_k"], ["x", *order[1:]], "top_k", None, [1, 2, 3, 4, 5], 3):
        refused("order", bad)
    for bad in (1, "yes", None):
        refused("ignore_eos", bad)
