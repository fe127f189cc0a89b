"""How files spell RoPE: GGUF keys and both forms of config.json (case C42)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from memory_models import Sizes

from shohin.errors import BadFile, UnsupportedFormat
from shohin.models import Linear, Rope, Yarn, configure, rope_from_config
from shohin.models.keys import Keys
from shohin.models.scaling import rope_from_gguf

PLAIN = Rope(1e6, 128)
YARN = Rope(1e6, 128, scaling=Yarn(4.0, 8192))
INSIDE = {"factor": 4.0, "original_max_position_embeddings": 8192}


def from_gguf(**settings: object) -> Rope:
    values = {f"qwen3.rope.scaling.{name}": value for name, value in settings.items()}
    return rope_from_gguf(Keys(values, "qwen3.", "tiny.gguf"), PLAIN)


def from_config(config: dict[str, object]) -> Rope:
    return rope_from_config(config, 128, "half", "config.json")


@pytest.mark.row("C42")
def test_gguf_keys() -> None:
    assert from_gguf() == PLAIN
    assert from_gguf(type="none") == PLAIN
    assert from_gguf(type="linear", factor=2.0).scaling == Linear(2.0)
    assert from_gguf(type="yarn", factor=4.0, original_context_length=8192) == YARN
    assert from_gguf(type="yarn", factor=4, original_context_length=8192, finetuned=True) == YARN


def test_gguf_attn_factor_multiplies_the_magnitude_as_llama_cpp_does() -> None:
    rope = from_gguf(type="yarn", factor=4.0, original_context_length=8192, attn_factor=1.5)
    assert rope.magnitude == pytest.approx(1.5 * (1 + 0.1 * math.log(4)), rel=1e-15)


@pytest.mark.row("C42")
@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": 1e6, "rope_scaling": {"rope_type": "yarn", **INSIDE}},
        {"rope_theta": 1e6, "rope_scaling": {"type": "yarn", **INSIDE}},
        {"rope_theta": 1e6, "rope_scaling": {"type": "yarn", "rope_type": "yarn", **INSIDE}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, **INSIDE}},
        {"rope_theta": 1e6, "rope_parameters": {"rope_type": "yarn", "truncate": True, **INSIDE}},
        {
            "rope_theta": 1000000,
            "rope_scaling": {"type": "yarn", **INSIDE},
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, **INSIDE},
        },
    ],
)
def test_config_json_in_every_spelling_is_the_same_yarn(config: dict[str, object]) -> None:
    assert from_config(config) == YARN


def test_config_json_without_scaling() -> None:
    assert from_config({"rope_theta": 1e6}) == PLAIN
    assert from_config({"rope_theta": 1e6, "rope_scaling": None}) == PLAIN
    assert from_config({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}) == PLAIN
    assert from_config({"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 8}}).scaling == Linear(8.0)


def test_config_json_attention_factor_replaces_the_magnitude() -> None:
    inside = {"rope_type": "yarn", "attention_factor": 1.5, "beta_fast": 16, "beta_slow": 2, **INSIDE}
    scaling = from_config({"rope_theta": 1e6, "rope_scaling": inside}).scaling
    assert scaling == Yarn(4.0, 8192, 1.5, 16.0, 2.0)
    assert from_config({"rope_theta": 1e6, "rope_scaling": inside | {"attention_factor": None}}).magnitude == 1 + (
        0.1 * math.log(4)
    )


@pytest.mark.row("C42")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"type": "longrope", "factor": 4.0}, ("longrope", "none, linear, yarn")),
        ({"type": "mystery"}, ("mystery",)),
        ({"type": "yarn", "factor": 4.0, "original_context_length": 8192, "yarn_log_multiplier": 0.1}, ("log_mult",)),
        ({"type": "yarn", "factor": 4.0, "original_context_length": 8192, "yarn_ext_factor": 0.5}, ("ext_factor",)),
        ({"type": "yarn", "factor": 4.0, "original_context_length": 8192, "alpha": 2.0}, ("alpha",)),
    ],
)
def test_gguf_scaling_that_nobody_computes_is_refused(settings: dict[str, object], words: tuple[str, ...]) -> None:
    with pytest.raises(UnsupportedFormat) as caught:
        from_gguf(**settings)
    assert all(word in str(caught.value) for word in ("tiny.gguf", "qwen3.rope.scaling", *words))


@pytest.mark.parametrize(
    "settings",
    [
        {"factor": 4.0},
        {"type": 3},
        {"type": "yarn"},
        {"type": "yarn", "factor": 4.0},
        {"type": "yarn", "factor": 0.5, "original_context_length": 8192},
        {"type": "yarn", "factor": math.inf, "original_context_length": 8192},
        {"type": "yarn", "factor": True, "original_context_length": 8192},
        {"type": "yarn", "factor": 4.0, "original_context_length": 0},
        {"type": "yarn", "factor": 4.0, "original_context_length": 8192, "attn_factor": math.nan},
        {"type": "linear", "factor": "2"},
    ],
)
def test_gguf_scaling_with_impossible_values_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(BadFile, match=r"tiny\.gguf: qwen3\.rope\.scaling\."):
        from_gguf(**settings)


@pytest.mark.row("C42")
@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        ({"rope_theta": 1e6, "rope_scaling": {"rope_type": "dynamic", "factor": 2}}, UnsupportedFormat, "dynamic"),
        (
            {"rope_theta": 1e6, "rope_scaling": {"rope_type": "yarn", "mscale": 1, **INSIDE}},
            UnsupportedFormat,
            "mscale",
        ),
        ({"rope_parameters": {"full_attention": {}, "rope_theta": 1e6}}, UnsupportedFormat, "full_attention"),
        ({"rope_theta": 1e6, "rope_scaling": {"type": "yarn", "rope_type": "linear"}}, BadFile, "linear"),
        ({"rope_theta": 1e6, "rope_scaling": {"rope_type": "yarn", "factor": 4}}, BadFile, "original_max_position"),
        ({"rope_theta": 1e6, "rope_scaling": "yarn"}, BadFile, "rope_scaling"),
        ({"rope_theta": 1e6, "rope_scaling": {"rope_type": ["yarn"]}}, BadFile, "rope_type"),
        ({"rope_theta": -1}, BadFile, "rope_theta"),
        ({}, BadFile, "rope_theta"),
        (
            {
                "rope_theta": 1e6,
                "rope_scaling": {"type": "yarn", **INSIDE},
                "rope_parameters": {"rope_type": "default"},
            },
            BadFile,
            "disagree",
        ),
    ],
)
def test_config_json_that_cannot_be_obeyed_is_refused(
    config: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        from_config(config)
    assert "config.json" in str(caught.value)


YARN_KEYS = {"type": "yarn", "factor": 4.0, "original_context_length": 8192}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("yarn_beta_fast", 1e308),
        ("yarn_beta_fast", 5e-324),
        ("yarn_beta_slow", 5e-324),
        ("yarn_beta_slow", 1e308),
        ("attn_factor", 1e308),
        ("attn_factor", 3.5e38),
    ],
)
def test_yarn_values_that_overflow_are_refused_by_name(name: str, value: float) -> None:
    """Warnings are errors here, so NumPy says nothing on the way either."""
    with pytest.raises(BadFile, match=f"tiny.gguf: qwen3.rope.scaling.{name} = "):
        from_gguf(**YARN_KEYS, **{name: value})


@pytest.mark.parametrize("name", ["beta_fast", "beta_slow", "attention_factor"])
def test_the_same_in_a_config_json(name: str) -> None:
    with pytest.raises(BadFile, match=f"{name} = 1e\\+308"):
        from_config({"rope_theta": 1e6, "rope_scaling": {"rope_type": "yarn", **INSIDE, name: 1e308}})


def test_a_base_whose_angles_overflow_is_refused_by_name() -> None:
    with pytest.raises(BadFile, match="rope_theta = 5e-324"):
        from_config({"rope_theta": 5e-324})
    weights = Sizes(head=128, base=5e-324).weights()
    with pytest.raises(BadFile, match=r"qwen3\.rope\.freq_base = 5e-324"):
        configure(weights)


@pytest.mark.parametrize("factor", [1.0, 3e38, 1e308])
@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_what_is_accepted_gives_a_finite_table(kind: str, factor: float) -> None:
    settings = {"type": kind, "factor": factor} | ({"original_context_length": 1} if kind == "yarn" else {})
    for name, value in (("finetuned", True), ("yarn_beta_fast", 1e12), ("yarn_beta_slow", 1e-6), ("attn_factor", 1e30)):
        assert np.isfinite(from_gguf(**{**settings, name: value}).table(300)).all()
