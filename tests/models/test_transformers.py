"""Host in float64 against transformers on tiny random models: live where it is installed, recorded always."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from forwarding import prompt_logits
from memory_models import Sizes
from numpy.typing import NDArray
from transformers_oracle import ORACLES, Oracle, transformers_logits

from shohin.devices import device
from shohin.models import build

RECORDED = Path(__file__).parents[1] / "fixtures" / "transformers_tiny" / "logits.npz"

# transformers keeps norms, softmax and angles in float32; shohin keeps none. The gate of the issue.
GATE = 1e-5

each = pytest.mark.parametrize("oracle", ORACLES, ids=lambda o: o.name)


def ours(sizes: Sizes, ids: list[int]) -> NDArray[np.floating]:
    model = build(sizes.weights(), device("host", dtype="float64"), activations="exact", kv="f32")
    return prompt_logits(model, ids)


def error(found: NDArray[np.floating], expected: NDArray[np.floating]) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@each
@pytest.mark.row("C40", "C42")
def test_logits_equal_the_recorded_ones(oracle: Oracle) -> None:
    with np.load(RECORDED) as recorded:
        expected, at = recorded[oracle.name], recorded[f"{oracle.name}.at"]
    assert error(ours(oracle.sizes, oracle.ids)[at], expected) <= GATE


@each
def test_logits_equal_those_of_transformers(oracle: Oracle) -> None:
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason="the live oracle needs torch and transformers")
    assert error(ours(oracle.sizes, oracle.ids), transformers_logits(oracle)) <= GATE


def without(sizes: Sizes, name: str) -> Sizes:
    return replace(sizes, extra={key: value for key, value in sizes.extra.items() if name not in key})


MUTANTS = {
    "YaRN left out": ("qwen3_yarn_short", lambda s: replace(s, extra={})),
    "magnitude left out": ("qwen3_yarn_magnitude", lambda s: without(s, "attn_factor")),
    "ramp of other turns": ("qwen3_yarn_turns", lambda s: without(s, "beta_fast")),
    "linear scaling left out": ("llama_linear", lambda s: replace(s, extra={})),
    "divisors left out": ("llama_divisors", lambda s: replace(s, divisors=())),
    "another base": ("qwen3_gqa", lambda s: replace(s, base=2 * s.base)),
    "another eps": ("llama_tied", lambda s: replace(s, eps=1e-3)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_setting_without_effect_would_be_caught(name: str) -> None:
    which, change = MUTANTS[name]
    oracle = next(o for o in ORACLES if o.name == which)
    with np.load(RECORDED) as recorded:
        expected, at = recorded[oracle.name], recorded[f"{oracle.name}.at"]
    assert error(ours(change(oracle.sizes), oracle.ids)[at], expected) > 20 * GATE
