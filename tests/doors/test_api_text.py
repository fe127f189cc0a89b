"""Text in, text out: stop strings, split characters, settings, ends; on a scripted model and on the tiny one."""

from __future__ import annotations

import json
import random
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_model import ScriptedModel

import shohin.formats
from shohin.errors import BadFile, BadRequest, ContextFull
from shohin.formats.text import Tokenizer, tokenizer_from_metadata
from shohin.generate import Generation, SamplingParams, Session, page_pool
from shohin.serve.api import create_chat_completion, generate, load, stream_generate
from shohin.serve.completion import Response
from shohin.serve.defaults import BONSAI, LoadedTokenizer, file_defaults, settings


@pytest.fixture(scope="module")
def tokenizer(cases: Path) -> Tokenizer:
    weights = shohin.formats.open(cases / "gguf" / "tiny_q1.gguf")
    return tokenizer_from_metadata(weights.metadata, weights.source)


def says(tokenizer: Tokenizer, *scripts: list[int] | str | bytes, context: int = 512) -> Any:
    ids = [s if isinstance(s, list) else one_by_one(tokenizer, s) for s in scripts]
    return ScriptedModel(tokenizer.vocab_size, min(tokenizer.eos_ids), *ids, context=context)


def one_by_one(tokenizer: Tokenizer, text: str | bytes) -> list[int]:
    """A token a byte, which is the finest cut there is."""
    by_bytes = {tokenizer.token_bytes(i): i for i in reversed(range(256))}
    return [by_bytes[bytes([b])] for b in (text if isinstance(text, bytes) else text.encode())]


def test_responses_have_the_fields_that_users_of_mlx_lm_know(tokenizer: Tokenizer) -> None:
    known = "text token logprobs from_draft prompt_tokens prompt_tps generation_tokens generation_tps peak_memory"
    assert set(f"{known} finish_reason".split()) <= {f.name for f in fields(Response)}
    responses = list(stream_generate(says(tokenizer, "hey"), tokenizer, "ab", logprobs=1))
    assert [r.text for r in responses] == ["h", "e", "y", ""]
    assert [r.finish_reason for r in responses] == [None, None, None, "stop"]
    assert [r.generation_tokens for r in responses] == [1, 2, 3, 4]
    last = responses[-1]
    assert (last.prompt_tokens, last.from_draft, last.token) == (2, False, min(tokenizer.eos_ids))
    assert last.peak_memory > 0.01
    assert responses[0].top_logprobs[0][0] == responses[0].token
    assert responses[0].logprobs == pytest.approx(0, abs=1e-6)
    assert next(stream_generate(says(tokenizer, "hey"), tokenizer, "ab")).logprobs is None


@pytest.mark.row("C33")
def test_stop_strings_across_token_borders(tokenizer: Tokenizer, cases: Path) -> None:
    seed = 3
    rng = random.Random(seed)
    rows = json.loads((cases / "server" / "stops.json").read_text())
    for row in rows:
        plain, cut = one_by_one(tokenizer, row["text"]), tokenizer.encode(row["text"])
        for ids in (plain, cut, *(_merged(tokenizer, row["text"], rng) for _ in range(4))):
            model = says(tokenizer, ids)
            # The end id would add a token after the text, so the limit ends those that no stop ends.
            responses = list(stream_generate(model, tokenizer, "a", stop=row["stop"], max_tokens=len(ids)))
            text = "".join(r.text for r in responses)
            assert text in row.get("expected_any", [row.get("expected")]), f"seed {seed}, {row}"
            assert responses[-1].finish_reason == row.get("finish", "stop")
            assert page_pool(model).free == 16


def _merged(tokenizer: Tokenizer, text: str, rng: random.Random) -> list[int]:
    """Encode pieces of a text that is cut at random characters."""
    cuts = sorted(rng.sample(range(len(text) + 1), min(2, len(text))))
    ends = [0, *cuts, len(text)]
    return [i for a, b in pairwise(ends) for i in tokenizer.encode(text[a:b])]


@pytest.mark.row("C33")
def test_a_stop_never_matches_the_prompt(tokenizer: Tokenizer) -> None:
    assert generate(says(tokenizer, "def abc def"), tokenizer, "abc", stop="abcd") == "def abc def"
    assert generate(says(tokenizer, "c abc"), tokenizer, "ab", stop=["abc"]) == "c "


@pytest.mark.row("C21", "C33", "C35")
def test_bad_stops(tokenizer: Tokenizer) -> None:
    for bad in (5, [1], "", ["a", ""], {"a": 1}, b"a", ["a"] * 65, "a" * 1025, ["a" * 10**6], True):
        with pytest.raises(BadRequest) as caught:
            generate(says(tokenizer, "x"), tokenizer, "a", stop=bad)
        assert caught.value.param == "stop"
    for fine in (None, [], ["a"] * 64, "a" * 1024):
        generate(says(tokenizer, "x"), tokenizer, "a", stop=fine)


@pytest.mark.row("C32", "R.22")
def test_characters_spread_over_tokens(tokenizer: Tokenizer, cases: Path) -> None:
    for row in json.loads((cases / "server" / "split_characters.json").read_text()):
        ids = [i for piece in row["pieces"] for i in one_by_one(tokenizer, bytes.fromhex(piece))]
        for limit in {len(ids), None}:
            responses = list(stream_generate(says(tokenizer, ids), tokenizer, "a", max_tokens=limit))
            assert "".join(r.text for r in responses) == row["text"], row


def test_end_ids_are_no_text_and_can_be_ignored(tokenizer: Tokenizer) -> None:
    end = min(tokenizer.eos_ids)
    ids = [*one_by_one(tokenizer, "ab"), end, *one_by_one(tokenizer, "cd")]
    assert generate(says(tokenizer, ids), tokenizer, "a") == "ab"
    assert generate(says(tokenizer, ids), tokenizer, "a", ignore_eos=True, max_tokens=5) == "abcd"
    letter = one_by_one(tokenizer, "b")
    assert generate(says(tokenizer, ids), tokenizer, "a", stop_ids=letter) == "a"


@pytest.mark.row("C28")
def test_empty_prompts(tokenizer: Tokenizer) -> None:
    model = says(tokenizer, "x")
    for empty in ("", [], [[]], None, [""]):
        with pytest.raises(BadRequest) as caught:
            generate(model, tokenizer, empty)
        assert caught.value.param == "prompt", empty
    assert model.plays == 0


@pytest.mark.row("C27")
def test_long_prompts(tokenizer: Tokenizer) -> None:
    model = says(tokenizer, "xyz", context=8)
    for n in (9, 8):
        with pytest.raises(ContextFull, match=f"{n} tokens and the context holds 8"):
            stream_generate(model, tokenizer, "!" * n)
    responses = list(stream_generate(model, tokenizer, "!" * 7, max_tokens=10))
    assert [(r.text, r.finish_reason) for r in responses] == [("x", "length")]
    assert generate(model, tokenizer, "!" * 7, max_tokens=0) == ""


@pytest.mark.row("C36")
def test_settings_with_and_without_names(tokenizer: Tokenizer) -> None:
    model = says(tokenizer, "xyz")
    with pytest.raises(BadRequest, match="temperatur ") as caught:
        generate(model, tokenizer, "a", temperatur=1)
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "temperatur")
    with pytest.raises(BadRequest) as caught:
        generate(model, tokenizer, "a", temperature=float("nan"))
    assert caught.value.param == "temperature"
    assert settings(tokenizer, {}) == SamplingParams(**BONSAI)
    assert settings(tokenizer, {"top_k": None, "temperature": 0}).top_k == 20
    own = LoadedTokenizer(tokenizer, "m", {"temperature": 1.5})
    assert settings(own, {"min_p": 0.1}) == SamplingParams(temperature=1.5, min_p=0.1)
    assert own.encode("the") == tokenizer.encode("the")


def test_sampling_settings_of_the_file() -> None:
    found = file_defaults({"general.sampling.temp": 0.7, "general.sampling.top_k": 40, "general.name": "x"}, "f.gguf")
    assert dict(found) == {"temperature": 0.7, "top_k": 40}
    for bad in (float("nan"), -1.0, True, "x"):
        with pytest.raises(BadFile, match=r"f\.gguf: general\.sampling\.temp"):
            file_defaults({"general.sampling.temp": bad}, "f.gguf")


@pytest.mark.row("C15")
def test_control_tokens_in_a_text_prompt(tokenizer: Tokenizer) -> None:
    model = says(tokenizer, "x")
    generate(model, tokenizer, "<|im_end|>")
    generate(model, tokenizer, "<|im_end|>", special=True)
    assert len(model.prompts[0]) > 1
    assert model.prompts[1] == [tokenizer.id_of("<|im_end|>")]


def test_ids_and_text_share_one_name(tokenizer: Tokenizer) -> None:
    model = says(tokenizer, "xyz")
    tokens = generate(model, [1, 2], SamplingParams(max_tokens=2))
    assert isinstance(tokens, Generation)
    assert [t.id for t in tokens] == one_by_one(tokenizer, "xy")
    assert generate(model, tokenizer, np.array([1, 2]), max_tokens=2) == "xy"
    with pytest.raises(BadRequest, match="needs the tokenizer"):
        generate(model, "text")


def test_closing_a_stream_frees_the_pages(tokenizer: Tokenizer) -> None:
    model = says(tokenizer, "xyz")
    stream = stream_generate(model, tokenizer, "a")
    next(stream)
    assert page_pool(model).free == 15
    stream.close()
    assert page_pool(model).free == 16
    with stream_generate(model, tokenizer, "a") as stream:
        next(stream)
    assert (page_pool(model).free, list(stream)) == (16, [])


# ---- the tiny model ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loaded(cases: Path) -> Any:
    return load(cases / "gguf" / "tiny_q1.gguf", device="host", activations="exact", context=512, sequences=2)


def test_load_says_what_it_packs(cases: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    model, tokenizer = load(cases / "gguf" / "tiny_q1.gguf", device="host", progress=lambda *state: seen.append(state))
    assert seen[-1][1] == seen[-1][2] > 0
    assert {what for what, _, _ in seen} == {"pack"}
    assert (tokenizer.name, dict(tokenizer.sampling), model.config.vocabulary) == ("tiny", {}, tokenizer.vocab_size)
    with pytest.raises(BadRequest) as caught:
        load(cases / "gguf" / "absent.gguf")
    assert caught.value.code == "model_not_found"


@pytest.mark.row("C40")
def test_listed_answers_as_text(loaded: Any, cases: Path) -> None:
    model, tokenizer = loaded
    for row in json.loads((cases / "expected" / "tiny_q1.json").read_text())["greedy"]:
        text = generate(model, tokenizer, row["prompt"], temperature=0, max_tokens=8, ignore_eos=True)
        assert text == tokenizer.decode(row["tokens"])


@pytest.mark.row("C29")
def test_prompt_reuse_gives_the_same_text(loaded: Any) -> None:
    model, tokenizer = loaded
    prompts = [
        "the cat and the",
        "the cat and the dog",
        "the cat and the",
        "the cat and the",
        "the c\u00e9",
        "the c\u00e8",
        "x",
    ]
    fresh = [generate(model, tokenizer, p, temperature=0, max_tokens=10) for p in prompts]
    with Session(model) as session:
        reused = [generate(model, tokenizer, p, temperature=0, max_tokens=10, session=session) for p in prompts]
    assert reused == fresh


@pytest.mark.row("C23")
def test_seeds_over_text(loaded: Any) -> None:
    model, tokenizer = loaded

    def ask(**kwargs: Any) -> str:
        # Hot and long enough that two draws of the seed never meet in the same text.
        return generate(model, tokenizer, "the", max_tokens=60, temperature=2.0, top_p=1.0, top_k=0, **kwargs)

    assert ask(seed=5) == ask(seed=5)
    assert len({ask(seed=s) for s in (None, -1, None, 1, 2)}) == 5
    chat = create_chat_completion(
        model, tokenizer, [{"role": "user", "content": "the"}], seed=5, n=3, temperature=1.0, max_tokens=10
    )
    assert len({c["message"]["content"] for c in chat["choices"]}) == 3
