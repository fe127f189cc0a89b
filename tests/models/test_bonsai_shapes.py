"""Small synthetic Qwen3 models in the Bonsai formats against llama.cpp's recorded logits.

The recording tells which tensors were run, so the models are made again here and held to its digest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from llama_recorded import ROUNDED, between, difference, explained, first_difference, load, logits_along, tensor_digest

from shohin.devices import Device
from shohin.formats import ModelShape, Weights, Yarn, synthetic_weights
from shohin.formats.tensor import Tensor
from shohin.generate import SamplingParams, generate
from shohin.models import build

RECORDED = load("llama_bonsai", "llama.json")
MODELS: dict[str, dict[str, Any]] = RECORDED["models"]
PROBE = RECORDED["probe"]
DEVICES = ("host32", "cpu")
CONTEXT = 128

# Each of the 4 layers and the head sums rows of up to K = 1280 products in float32, here and in llama.cpp; logits are
# below 8. Errors of 2^-24 a product that add up like a random walk: 2 engines * 5 * sqrt(1280) * 2^-24 * 8 = 1.7e-4.
FLOAT_NOISE = 2 * 5 * np.sqrt(1280) * 2**-24 * 8


def weights_of(name: str) -> Weights:
    entry = MODELS[name]
    shape = ModelShape(**{**entry["shape"], "yarn": Yarn(**entry["shape"]["yarn"])})
    return synthetic_weights(shape, entry["format"], RECORDED["seed"])


def changed(weights: Weights, *, drop: str = "", tensor: Tensor | None = None) -> Weights:
    """Without the keys that contain ``drop``, and with one tensor replaced."""
    metadata = {k: v for k, v in weights.metadata.items() if not drop or drop not in k}
    tensors = dict(weights.tensors) | ({} if tensor is None else {tensor.name: tensor})
    return replace(weights, metadata=metadata, tensors=tensors)


def worst(weights: Weights, name: str, device: Device, kv: str = "f32") -> float:
    """The largest difference from llama.cpp without activation rounding, along the random ids."""
    recorded = MODELS[name]["exact"]
    model = build(weights, device, activations="exact", kv=kv, context=CONTEXT)
    return difference(logits_along(model, recorded["prompt"], recorded["ids"]), recorded, PROBE).largest


@pytest.mark.parametrize("name", MODELS)
def test_the_models_are_those_that_were_recorded(name: str) -> None:
    assert tensor_digest(weights_of(name)) == MODELS[name]["tensors"]


@pytest.mark.row("M.3", "M.4", "M.5", "M.6", "M.10", "M.13", "R.2", "R.5")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_exact_activations_give_llama_cpps_logits(name: str, device: str, open_device: Callable[[str], Device]) -> None:
    recorded = MODELS[name]["exact"]
    model = build(weights_of(name), open_device(device), activations="exact", kv="f32", context=CONTEXT)
    found = difference(logits_along(model, recorded["prompt"], recorded["ids"]), recorded, PROBE)
    assert found.largest <= ROUNDED + FLOAT_NOISE
    assert found.ours.tolist() == found.theirs.tolist()


@pytest.mark.row("M.1", "M.6", "R.5")
@pytest.mark.parametrize("fault", ["no YaRN", "halved context before YaRN", "no QK-norm", "eps", "f16 cache"])
def test_the_comparison_sees(fault: str, open_device: Callable[[str], Device]) -> None:
    name, device = "tied-Q1_0", open_device("host32")
    weights = weights_of(name)
    ones = weights.tensors["blk.2.attn_k_norm.weight"]
    flat = replace(ones, data=np.ones(ones.shape, "<f4").view(np.uint8))
    metadata = dict(weights.metadata)
    broken = {
        "no YaRN": changed(weights, drop="rope.scaling"),
        "halved context before YaRN": replace(
            weights, metadata=metadata | {"qwen3.rope.scaling.original_context_length": 128}
        ),
        "no QK-norm": changed(weights, tensor=flat),
        "eps": replace(weights, metadata=metadata | {"qwen3.attention.layer_norm_rms_epsilon": 1e-5}),
        "f16 cache": weights,
    }[fault]
    assert worst(broken, name, device, "f16" if fault == "f16 cache" else "f32") > ROUNDED + FLOAT_NOISE


@pytest.mark.row("M.18")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_int8_activations_lie_as_near_as_llama_cpps(
    name: str, device: str, open_device: Callable[[str], Device]
) -> None:
    """Ours round per 128 inputs, ggml per 32 or 256: twice its distance is allowed, seven bits would need more."""
    entry = MODELS[name]
    model = build(weights_of(name), open_device(device), context=CONTEXT)
    logits = logits_along(model, entry["ggml"]["prompt"], entry["ggml"]["ids"])
    assert difference(logits, entry["ggml"], PROBE).unexplained() == []
    theirs = between(entry["ggml"], entry["exact"])
    ours = difference(logits, entry["exact"], PROBE)
    assert ours.unexplained() == []
    assert ROUNDED + FLOAT_NOISE < ours.rms <= 2 * theirs.rms


@pytest.mark.row("M.18")
def test_seven_bits_would_not_be_near_enough(
    open_device: Callable[[str], Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    from shohin.kernels.linear import reference

    whole = reference.quantise

    def coarse(*arguments: Any) -> reference.Quantised:
        found = whole(*arguments)
        return reference.Quantised(2 * np.rint(found.codes / 2), found.scale)

    monkeypatch.setattr(reference, "quantise", coarse)
    entry = MODELS["tied-Q1_0"]
    model = build(weights_of("tied-Q1_0"), open_device("host32"), context=CONTEXT)
    logits = logits_along(model, entry["exact"]["prompt"], entry["exact"]["ids"])
    assert difference(logits, entry["exact"], PROBE).rms > 2 * between(entry["ggml"], entry["exact"]).rms


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_greedy_ids_equal_llama_cpps_or_part_at_a_near_tie(
    name: str, device: str, open_device: Callable[[str], Device]
) -> None:
    recorded = MODELS[name]["greedy"]
    model = build(weights_of(name), open_device(device), context=CONTEXT)
    params = SamplingParams(max_tokens=len(recorded["ids"]), temperature=0.0)
    ids = [token.id for token in generate(model, recorded["prompt"], params)]
    step = first_difference(ids, recorded["ids"])
    if step is not None:
        logits = logits_along(model, recorded["prompt"], recorded["ids"])
        print(explained(step, ids, logits, recorded, PROBE))
