"""Word cuts of every known ``tokenizer.ggml.pre`` against ids recorded from llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shohin.formats.text import Tokenizer, tokenizer_from_metadata

RECORDED = Path(__file__).parents[1] / "fixtures" / "llama_tokens"
CONTROL = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
DEFINED = {"<think>", "</think>"}
PRES = ["gpt-2", "smollm", "llama-bpe", "qwen2", "default"]


@pytest.fixture(scope="module")
def cuts() -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads((RECORDED / "cuts.json").read_text(encoding="utf-8"))
    return recorded


def build(pre: str) -> Tokenizer:
    """The recorded vocabulary, whose merges cross every word border unless the words are cut."""
    vocabulary = json.loads((RECORDED / "vocabulary.json").read_text(encoding="utf-8"))
    pieces = vocabulary["pieces"]
    return tokenizer_from_metadata(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": pieces,
            "tokenizer.ggml.token_type": [3 if p in CONTROL else 4 if p in DEFINED else 1 for p in pieces],
            "tokenizer.ggml.merges": vocabulary["merges"],
            "tokenizer.ggml.bos_token_id": pieces.index("<|endoftext|>"),
        },
        "recorded.gguf",
    )


@pytest.mark.row("C14")
@pytest.mark.parametrize("pre", PRES)
def test_ids_equal_those_of_llama_cpp(pre: str, cuts: dict[str, Any]) -> None:
    tokenizer = build(pre)
    assert len(cuts["texts"]) > 200
    for text, ids in zip(cuts["texts"], cuts["ids"][pre], strict=True):
        assert tokenizer.encode(text, add_bos=False) == ids, (pre, text)


@pytest.mark.row("C14")
@pytest.mark.parametrize("other", PRES)
@pytest.mark.parametrize("pre", PRES)
def test_the_recorded_ids_tell_the_cuts_apart(pre: str, other: str, cuts: dict[str, Any]) -> None:
    """Another row of the table in its place must not pass."""
    if pre != other:
        tokenizer = build(other)
        got = [tokenizer.encode(text, add_bos=False) for text in cuts["texts"]]
        assert sum(a != b for a, b in zip(got, cuts["ids"][pre], strict=True)) >= 3


def test_control_tokens_in_raw_prompts_equal_llama_cpp(cuts: dict[str, Any]) -> None:
    tokenizer = build("qwen2")
    for text, ids in zip(cuts["marked"], cuts["ids"]["special qwen2"], strict=True):
        assert tokenizer.encode(text, special=True) == ids, text


@pytest.mark.parametrize(
    ("name", "same"), [("llama3", "llama-bpe"), ("llama-v3", "llama-bpe"), ("deepseek-r1-qwen", "qwen2")]
)
def test_other_names_of_the_same_cuts(name: str, same: str, cuts: dict[str, Any]) -> None:
    tokenizer = build(name)
    for text, ids in zip(cuts["texts"], cuts["ids"][same], strict=True):
        assert tokenizer.encode(text, add_bos=False) == ids, (name, text)


@pytest.mark.row("C14")
def test_smollm2_ids_equal_those_of_llama_cpp(smollm2: Tokenizer) -> None:
    recorded = json.loads((RECORDED / "smollm2.json").read_text(encoding="utf-8"))
    for text, plain, special in zip(recorded["texts"], recorded["plain"], recorded["special"], strict=True):
        assert smollm2.encode(text) == plain, text
        assert smollm2.encode(text, special=True) == special, text
    assert smollm2.eos_ids == {0, 2} and smollm2.vocab_size == 49152 and smollm2.think_ids is None
