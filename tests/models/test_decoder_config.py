"""A configuration is held against its tensors before anything is packed or allocated (cases C09, C40, C43)."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest
from memory_models import Sizes, tensor

from shohin import formats
from shohin.devices import Device, device
from shohin.errors import BadFile, BadShape, ShohinError, UnsupportedFormat
from shohin.formats.blocks import FORMATS
from shohin.formats.tensor import Tensor
from shohin.formats.weights import Weights
from shohin.models import ARCHITECTURES, DecoderConfig, Rope, Yarn, build, configure
from shohin.models.layout import streamed_bytes

QWEN3, LLAMA = Sizes(), Sizes("llama")


def changed(sizes: Sizes, drop: tuple[str, ...] = (), **values: object) -> Weights:
    """The model with metadata left out or replaced; keys without their prefix."""
    weights = sizes.weights()
    metadata = {key: value for key, value in weights.metadata.items() if key.split(".", 1)[1] not in drop}
    metadata |= {f"{sizes.architecture}.{key}": value for key, value in values.items()}
    return replace(weights, metadata=metadata)


def refused(weights: Weights, error: type[ShohinError]) -> str:
    """The message; nothing may have been packed or allocated."""
    target = device("host")
    with pytest.raises(error) as caught:
        build(weights, target)
    assert target.uploads == 0 and target.allocations == 0
    return str(caught.value)


@pytest.mark.row("C09")
def test_files_that_contradict_themselves(cases: Path) -> None:
    rows = [r for r in json.loads((cases / "manifest.json").read_text()) if r["file"].startswith("gguf/meta_")]
    assert len(rows) == 13
    for row in rows:
        path = cases / row["file"]
        begin = perf_counter()
        message = refused(formats.open(path), UnsupportedFormat if "architecture" in row["file"] else BadFile)
        assert perf_counter() - begin < 2
        named = row["note"].removeprefix("message names ").split(", ")
        assert str(path) in message and all(name in message for name in named), message


@pytest.mark.row("C09", "S0.20", "S0.30", "H.3", "H.4", "H.5", "H.21")
@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("block_count", 1000, ("1000", "2 layers", "blk.1.", "[")),
        ("block_count", 1, ("block_count = 1", "2 layers")),
        ("block_count", 2**40, ("block_count",)),
        ("block_count", True, ("block_count = True",)),
        ("embedding_length", 64, ("embedding_length = 64", "token_embd.weight", "[40, 32]", "[40, 64]")),
        ("feed_forward_length", 96, ("feed_forward_length = 96", "blk.0.ffn_gate.weight", "[48, 32]")),
        ("attention.head_count", 0, ("head_count = 0", "blk.0.attn_q.weight", "[64, 32]")),
        ("attention.head_count", 8, ("head_count = 8", "blk.0.attn_q.weight", "[64, 32]", "[128, 32]")),
        ("attention.head_count_kv", 3, ("head_count_kv = 3", "head_count = 4", "[32, 32]")),
        ("attention.head_count_kv", [2, 2], ("head_count_kv = [2, 2]",)),
        ("attention.key_length", 15, ("key_length = 15", "even")),
        ("attention.key_length", 512, ("key_length = 512", "256")),
        ("rope.freq_base", 0.0, ("freq_base = 0.0",)),
        ("rope.freq_base", float("inf"), ("freq_base = inf",)),
        ("attention.layer_norm_rms_epsilon", float("nan"), ("epsilon = nan",)),
        ("attention.layer_norm_rms_epsilon", 0, ("epsilon = 0",)),
        ("context_length", 0, ("context_length = 0",)),
        ("context_length", "4096", ("context_length = '4096'",)),
        ("vocab_size", "many", ("vocab_size = 'many'",)),
    ],
)
def test_values_and_tensors_disagree(key: str, value: object, words: tuple[str, ...]) -> None:
    message = refused(changed(QWEN3, **{key: value}), BadFile)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.sliding_window", 4096),
        ("expert_count", 8),
        ("attention.causal", False),
        ("final_logit_softcapping", 30.0),
        ("attention.value_length", 8),
        ("rope.dimension_count", 8),
        ("rope.scaling.type", "longrope"),
        ("rope.scale_linear", 4.0),
    ],
)
def test_settings_that_change_the_computation_are_refused_by_name(key: str, value: object) -> None:
    message = refused(changed(QWEN3, **{key: value}), UnsupportedFormat)
    assert f"qwen3.{key} = {value!r}" in message


def test_settings_that_change_nothing_are_accepted() -> None:
    neutral = {
        "attention.sliding_window": 0,
        "expert_count": 0,
        "rope.dimension_count": 16,
        "rope.scaling.type": "none",
    }
    assert configure(changed(QWEN3, **neutral)) == configure(QWEN3.weights())


@pytest.mark.parametrize("name", ["qwen3", "llama"])
def test_every_missing_tensor_is_named(name: str) -> None:
    weights = Sizes(name, tied=True).weights()
    for missing in weights.tensors:
        left = {key: t for key, t in weights.tensors.items() if key != missing}
        assert repr(missing) in refused(replace(weights, tensors=left), BadFile)


@pytest.mark.parametrize(
    "extra", ["blk.0.attn_q.bias", "rope_freqs.weight", "output.bias", "blk.1.ffn_gate_inp.weight"]
)
def test_tensors_that_nobody_reads_are_named(extra: str) -> None:
    weights = QWEN3.weights()
    more = {**weights.tensors, extra: tensor(extra, np.ones((8,), np.float32))}
    assert f"{extra!r} [8]" in refused(replace(weights, tensors=more), UnsupportedFormat)


def test_the_head_of_another_length_is_named() -> None:
    weights = QWEN3.weights()
    head = {**weights.tensors, "output.weight": tensor("output.weight", np.ones((41, 32), np.float32))}
    assert "'output.weight'" in (message := refused(replace(weights, tensors=head), BadFile)) and "[41, 32]" in message


@pytest.mark.row("H.6")
def test_rows_that_end_inside_a_block_and_quantised_norms_are_refused() -> None:
    weights = QWEN3.weights()

    def put(name: str, shape: tuple[int, ...], form: str) -> Weights:
        fmt = FORMATS[form]
        data = np.zeros(fmt.nbytes(-(-int(np.prod(shape)) // fmt.block) * fmt.block), np.uint8)
        return replace(weights, tensors={**weights.tensors, name: Tensor(name, shape, fmt, data)})

    assert "whole blocks of 128" in refused(put("blk.0.attn_q.weight", (64, 32), "Q1_0"), BadFile)
    assert "norm in Q8_0" in refused(put("blk.0.attn_norm.weight", (32,), "Q8_0"), UnsupportedFormat)


def test_a_format_that_the_device_refuses_is_named_before_anything_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    target = device("host")
    monkeypatch.setattr(type(target), "accepts", lambda self, fmt: "refused")
    with pytest.raises(UnsupportedFormat, match=r"'token_embd\.weight' \[40, 32\] is F32, which device host"):
        build(QWEN3.weights(), target)
    assert target.uploads == 0


@pytest.mark.row("C40")
def test_head_length_comes_from_the_key_then_rope_then_width() -> None:
    assert configure(QWEN3.weights()).head_dim == 16
    narrow = Sizes(head=8)
    assert configure(changed(narrow, drop=("attention.key_length", "attention.value_length"))).head_dim == 8
    wide = Sizes("llama", head=16)
    left = changed(wide, drop=("attention.key_length", "attention.value_length"), **{"rope.dimension_count": 16})
    assert configure(left).head_dim == 16
    message = refused(changed(QWEN3, drop=("attention.key_length", "attention.value_length")), BadFile)
    assert "blk.0.attn_q.weight" in message and "attention.key_length (absent)" in message


def test_llama_defaults() -> None:
    drop = ("rope.freq_base", "attention.head_count_kv")
    config = configure(changed(Sizes("llama", kv_heads=4), drop))
    assert config.rope == Rope(10000.0, 16, "adjacent") and config.kv_heads == 4
    assert "freq_base (absent)" in refused(changed(QWEN3, drop=("rope.freq_base",)), BadFile)


def test_divisors_must_fit_the_head() -> None:
    good = configure(Sizes("llama", divisors=(1.0,) * 4 + (8.0,) * 4).weights())
    assert good.rope.divisors == (1.0,) * 4 + (8.0,) * 4
    for wrong in ((1.0,) * 7, (1.0,) * 7 + (0.0,), (1.0,) * 7 + (np.nan,)):
        assert "rope_freqs.weight" in refused(Sizes("llama", divisors=wrong).weights(), BadFile)


@pytest.mark.row("C43")
def test_the_rows_decide_the_vocabulary(cases: Path) -> None:
    larger = configure(formats.open(cases / "gguf" / "vocab_meta_larger.gguf"))
    assert larger.rows == larger.vocabulary == configure(formats.open(cases / "gguf" / "tiny_q1.gguf")).rows
    more_rows = configure(formats.open(cases / "gguf" / "vocab_more_rows.gguf"))
    assert (more_rows.rows, more_rows.vocabulary) == (larger.rows + 5, larger.rows)
    message = refused(formats.open(cases / "gguf" / "vocab_more_pieces.gguf"), BadFile)
    assert f"{larger.rows + 5} pieces" in message and f"[{larger.rows}, 128]" in message


def test_a_configuration_needs_no_file() -> None:
    config = DecoderConfig("qwen3", 2, 128, 2, 1, 128, 256, 300, 290, 1e-6, Rope(1e6, 128), 4096, True)
    assert config.attention.width == 512
    for wrong in ({"vocabulary": 301}, {"layers": 0}, {"kv_heads": 3}, {"head_dim": 64}):
        with pytest.raises(BadShape):
            replace(config, **wrong)


def bonsai(hidden: int, layers: int, heads: int, inner: int, tied: bool) -> DecoderConfig:
    rope = Rope(1e6, 128, scaling=Yarn(4, 8192))
    return DecoderConfig("qwen3", layers, hidden, heads, 8, 128, inner, 151669, 151669, 1e-6, rope, 32768, tied)


BONSAI = {
    "8B": bonsai(4096, 36, 32, 12288, tied=False),
    "4B": bonsai(2560, 36, 32, 9728, tied=True),
    "1.7B": bonsai(2048, 28, 16, 6144, tied=True),
}


@pytest.mark.parametrize(
    ("name", "form", "expected"),
    [
        ("8B", "Q1_0", 1_064_109_888),
        ("4B", "Q1_0", 565_535_880),
        ("1.7B", "Q1_0", 241_861_536),
        ("8B", "PQ2_0", 2_009_985_344),
        ("4B", "PQ2_0", 1_068_234_440),
        ("1.7B", "PQ2_0", 456_849_568),
    ],
)
def test_bytes_read_for_a_token_are_those_of_the_table(name: str, form: str, expected: int) -> None:
    slots = ARCHITECTURES["qwen3"].slots(BONSAI[name])
    assert streamed_bytes(slots, lambda _: FORMATS[form]) == expected


@pytest.mark.parametrize(
    ("name", "weights", "norms"),
    [
        ("8B", 8_188_239_872, 1_232_896),
        ("4B", 4_021_588_480, 784_384),
        ("1.7B", 1_719_904_256, 495_616),
    ],
)
def test_the_layout_has_exactly_the_published_weights(name: str, weights: int, norms: int) -> None:
    slots = list(ARCHITECTURES["qwen3"].slots(BONSAI[name]))
    assert sum(s.shape[0] * s.shape[1] for s in slots if len(s.shape) == 2) == weights
    assert sum(4 * s.shape[0] for s in slots if len(s.shape) == 1) == norms


def strange_values(rng: random.Random) -> list[object]:
    return [0, 1, -1, 2**31, 2**63, -(2**63), 1e308, -0.0, float("nan"), float("inf"), True, "", "yarn", "x" * 50, [],
            [1], ["a"], b"x", None, rng.randrange(2**32), rng.random()]  # fmt: skip


@pytest.mark.row("C09")
@pytest.mark.parametrize("sizes", [QWEN3, LLAMA, Sizes(context=128, extra={
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32,
    "attention.sliding_window": 0, "vocab_size": 40, "rope.dimension_count": 16, "rope.scaling.attn_factor": 1.0})],
    ids=["qwen3", "llama", "yarn"])  # fmt: skip
def test_any_metadata_gives_a_configuration_or_one_of_our_errors(sizes: Sizes) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    weights = sizes.weights()
    base = dict(weights.metadata) | {"tokenizer.ggml.tokens": ["a"] * 40}
    for _ in range(1500):
        metadata = dict(base)
        for key in rng.sample(sorted(base), rng.choice((1, 1, 2, 3))):
            metadata[key] = rng.choice(strange_values(rng))
        try:
            configure(replace(weights, metadata=metadata))
        except ShohinError:
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}: {metadata} gave {error!r}") from error


def test_norms_in_half_precision_are_used_as_f32(open_device: Callable[[str], Device]) -> None:
    weights = Sizes(tied=True).weights()
    norm = weights.tensors["output_norm.weight"].decode()
    half = Tensor("output_norm.weight", (32,), FORMATS["F16"], norm.astype("<f2").view(np.uint8))
    model = build(replace(weights, tensors={**weights.tensors, half.name: half}), open_device("host64"))
    rounded = tensor(half.name, norm.astype(np.float16).astype(np.float32))
    same = build(replace(weights, tensors={**weights.tensors, half.name: rounded}), open_device("host64"))
    assert model.weight_bytes == same.weight_bytes
