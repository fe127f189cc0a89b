"""The models in the package against llama.cpp's recorded answers, and int8 against exact activations on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from forwarding import prompt_logits
from llama_recorded import ROUNDED, difference, load, logits_along, tensor_digest

import shohin
from shohin.devices import Device
from shohin.formats import Weights, open
from shohin.formats.text import Tokenizer, tokenizer_from_metadata
from shohin.generate import SamplingParams, generate
from shohin.models import Model, build

FOLDER = Path(shohin.__file__).parent / "data"
RECORDED = load("llama_stage", "llama.json")
NAMES = ("ternary", "1bit")
PROMPTS = tuple(RECORDED["prompts"])
PROBE = RECORDED["probe"]

# As in test_smollm2: sums of up to 1536 products in 8 layers and the head, two engines, logits up to 16:
# 2 * sqrt(9) * sqrt(1536) * 2^-24 * 16.
FLOAT_NOISE = 2.3e-4


@cache
def weights(name: str) -> Weights:
    return open(FOLDER / f"shohin-stage-{name}.gguf")


@cache
def tokenizer(name: str) -> Tokenizer:
    return tokenizer_from_metadata(weights(name).metadata, weights(name).source)


@pytest.fixture(scope="module")
def model(open_device: Callable[[str], Device]) -> Callable[[str, str, str], Model]:
    @cache
    def built(name: str, device: str, activations: str) -> Model:
        return build(weights(name), open_device(device), activations=activations, kv="f32", context=256)

    return built


@pytest.mark.parametrize("name", NAMES)
def test_the_files_are_those_that_were_recorded(name: str) -> None:
    assert tensor_digest(weights(name)) == RECORDED[name]["tensors"]
    assert Path(weights(name).source).stat().st_size < 8_000_000


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_text_and_ids_are_llama_cpps(name: str, prompt: str) -> None:
    recorded = RECORDED[name][prompt]
    assert tokenizer(name).encode(RECORDED["prompts"][prompt], special=True) == recorded["prompt"]
    assert tokenizer(name).decode(recorded["ids"]) == recorded["text"]


@pytest.mark.row("M.1")
@pytest.mark.parametrize("device", ["cpu", "host32"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_exact_activations_give_llama_cpps_logits(
    name: str, prompt: str, device: str, model: Callable[[str, str, str], Model]
) -> None:
    recorded = RECORDED[name][prompt]
    logits = logits_along(model(name, device, "exact"), recorded["prompt"], recorded["ids"])
    found = difference(logits, recorded, PROBE)
    assert found.largest <= ROUNDED + FLOAT_NOISE
    assert found.ours.tolist() == found.theirs.tolist()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_is_llama_cpps(name: str, prompt: str, model: Callable[[str, str, str], Model]) -> None:
    recorded = RECORDED[name][prompt]
    params = SamplingParams(max_tokens=len(recorded["ids"]), temperature=0.0)
    tokens = generate(model(name, "cpu", "exact"), recorded["prompt"], params, stop_ids=tokenizer(name).eos_ids)
    ids = [token.id for token in tokens]
    assert ids == recorded["ids"][: len(ids)]


@pytest.mark.parametrize("name", NAMES)
def test_int8_activations_change_little(name: str, model: Callable[[str, str, str], Model]) -> None:
    """The model card's measure on a page of real text: the mean divergence of int8 from exact, in nats a token."""
    recorded = RECORDED[name]["scene"]
    ids = [*recorded["prompt"], *recorded["ids"]]
    exact, rounded = (log_chances(prompt_logits(model(name, "cpu", kind), ids)) for kind in ("exact", "int8"))
    divergence = (np.exp(exact) * (exact - rounded)).sum(-1)
    assert 1e-7 < divergence.mean() < 2e-3


def log_chances(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))
