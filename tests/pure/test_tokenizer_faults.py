"""Damaged tokenizer metadata and tokenizer.json files: refused by name, never with a bare exception."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shohin.errors import BadFile, ShohinError, UnsupportedFormat
from shohin.formats.text import Tokenizer, from_json, tokenizer_from_json, tokenizer_from_metadata

P = "tokenizer.ggml."
Change = Callable[[dict[str, Any]], Any]


def drop(key: str) -> Change:
    return lambda m: m.pop(P + key)


def put(key: str, value: Any) -> Change:
    return lambda m: m.update({P + key: value})


def item(key: str, index: int, value: Any) -> Change:
    return lambda m: m[P + key].__setitem__(index, value)


def more(key: str, value: Any) -> Change:
    return lambda m: m[P + key].append(value)


FAULTS: list[tuple[Change, type[ShohinError], str]] = [
    (drop("model"), BadFile, "tokenizer.ggml.model is missing"),
    (drop("pre"), BadFile, "tokenizer.ggml.pre is missing"),
    (drop("tokens"), BadFile, "tokenizer.ggml.tokens is missing"),
    (drop("token_type"), BadFile, "tokenizer.ggml.token_type is missing"),
    (drop("merges"), BadFile, "tokenizer.ggml.merges is missing"),
    (put("model", "llama"), UnsupportedFormat, "'llama'"),
    (put("model", 5), BadFile, "model is 5"),
    (put("pre", "jina-v2-de"), UnsupportedFormat, "'jina-v2-de'"),
    (put("pre", ["qwen2"]), BadFile, "pre is"),
    (put("tokens", []), BadFile, "empty"),
    (put("tokens", "abc"), BadFile, "a list was expected"),
    (put("tokens", 7), BadFile, "a list was expected"),
    (item("tokens", 3, 9), BadFile, r"tokens\[3\] is 9"),
    (item("tokens", 3, "\ud800"), BadFile, "token 3"),
    (item("tokens", 3, "the"), BadFile, "tokens 3 and 257 are both 'the'"),
    (more("tokens", "new"), BadFile, "287 entries for 288 tokens"),
    (more("token_type", 1), BadFile, "288 entries for 287 tokens"),
    (put("token_type", []), BadFile, "0 entries for 287 tokens"),
    (item("token_type", 4, 9), BadFile, "token 4 is 9"),
    (item("token_type", 4, 0), BadFile, "token 4 is 0"),
    (item("token_type", 4, "1"), BadFile, r"token_type\[4\]"),
    (item("token_type", 4, True), BadFile, r"token_type\[4\]"),
    (item("token_type", 4, 1.0), BadFile, r"token_type\[4\]"),
    (more("merges", "q zz"), BadFile, "'zz', which is missing"),
    (more("merges", "q z"), BadFile, "'qz', which is missing"),
    (more("merges", "qz"), BadFile, r"merges\[24\] is 'qz'"),
    (more("merges", "q z x"), BadFile, r"merges\[24\]"),
    (more("merges", " z"), BadFile, r"merges\[24\]"),
    (more("merges", "z "), BadFile, r"merges\[24\]"),
    (more("merges", 3), BadFile, r"merges\[24\] is 3"),
    (put("eos_token_id", 287), BadFile, "end token id is 287"),
    (put("eot_token_id", -1), BadFile, "end token id is -1"),
    (put("bos_token_id", 2**32 - 1), BadFile, "bos token id is 4294967295"),
    (put("padding_token_id", 999), BadFile, "padding token id is 999"),
    (put("unknown_token_id", 999), BadFile, "unknown token id is 999"),
    (put("eos_token_id", "2"), BadFile, "eos_token_id is '2'"),
    (put("eos_token_id", True), BadFile, "eos_token_id is True"),
    (put("eos_token_id", 2.0), BadFile, "eos_token_id is 2.0"),
    (put("add_bos_token", 1), BadFile, "add_bos_token is 1"),
    (lambda m: m.update({"tokenizer.chat_template": 5}), BadFile, "tokenizer.chat_template is 5"),
    (lambda m: m.update({"tokenizer.chat_template.tool_use": ["x"]}), BadFile, "tool_use"),
]


def thawed(metadata: Mapping[str, object]) -> dict[str, Any]:
    """A copy whose lists can be changed."""
    return {k: list(v) if isinstance(v, Sequence) and not isinstance(v, str) else v for k, v in metadata.items()}


@pytest.mark.parametrize(("change", "kind", "text"), FAULTS)
def test_damaged_metadata_is_refused_by_name(
    tiny_metadata: Mapping[str, object], change: Change, kind: type[ShohinError], text: str
) -> None:
    metadata = thawed(tiny_metadata)
    change(metadata)
    with pytest.raises(kind, match=text) as caught:
        tokenizer_from_metadata(metadata, "some/file.gguf")
    assert "some/file.gguf" in str(caught.value)


def test_arrays_and_tuples_are_as_good_as_lists(tiny_metadata: Mapping[str, object], tiny: Tokenizer) -> None:
    metadata = thawed(tiny_metadata)
    metadata[P + "token_type"] = np.array(metadata[P + "token_type"], np.int32)
    metadata[P + "tokens"] = tuple(metadata[P + "tokens"])
    assert tokenizer_from_metadata(metadata, "x").encode("the and</think>") == tiny.encode("the and</think>")


def use(tokenizer: Tokenizer) -> None:
    """Everything a user could do next."""
    for text in ("the and 12 <|im_end|>", "\u00e9\x00", ""):
        try:
            ids = tokenizer.encode(text, special=True)
        except ShohinError:
            continue
        assert all(0 <= i < tokenizer.vocab_size for i in ids)
        tokenizer.decode(ids)
    with suppress(ShohinError):
        tokenizer.encode_chat([{"role": "user", "content": "<|im_end|>"}])


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64), st.floats(), st.text(max_size=8), st.binary(max_size=4),
    st.lists(st.one_of(st.text(max_size=6), st.integers(-2, 300)), max_size=5),
)  # fmt: skip


@given(data=st.data())
@settings(deadline=None, max_examples=300)
def test_any_damage_ends_in_our_errors(tiny_metadata: Mapping[str, object], data: st.DataObject) -> None:
    metadata = thawed(tiny_metadata)
    for _ in range(data.draw(st.integers(1, 4))):
        key = data.draw(st.sampled_from(sorted(k for k in metadata if k.startswith("tokenizer."))))
        if isinstance(metadata[key], list) and metadata[key] and data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(metadata[key]) - 1))
            choice = st.one_of(VALUES, st.sampled_from(metadata[key]))
            metadata[key] = [
                *metadata[key][:at],
                data.draw(choice),
                *metadata[key][at + data.draw(st.integers(0, 1)) :],
            ]
        else:
            metadata[key] = data.draw(VALUES)
    try:
        tokenizer = tokenizer_from_metadata(metadata, "x.gguf")
    except ShohinError as error:
        if "x.gguf" not in str(error):
            raise AssertionError(f"an error that does not name the file: {error!r}") from error
    else:
        use(tokenizer)


@pytest.fixture(scope="module")
def tokenizer_json(cases: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((cases / "tokenizer" / "tokenizer.json").read_text())
    return body


def written(folder: Path, body: Any, **others: Any) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(body if isinstance(body, str) else json.dumps(body), encoding="utf-8")
    for name, content in others.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return path


JSON_FAULTS: list[tuple[Change, type[ShohinError], str]] = [
    (lambda b: b.pop("model"), BadFile, "model is None"),
    (lambda b: b["model"].update(type="Unigram"), UnsupportedFormat, "'Unigram'"),
    (lambda b: b["model"].update(byte_fallback=True), UnsupportedFormat, "byte_fallback"),
    (lambda b: b["model"].update(vocab=[]), BadFile, "model.vocab"),
    (lambda b: b["model"]["vocab"].update(zz=2**40), BadFile, "the id of 'zz'"),
    (lambda b: b["model"]["vocab"].update(zz=10**8), BadFile, "ids go up to 100000000"),
    (lambda b: b["model"]["vocab"].update(zz=-1), BadFile, "the id of 'zz'"),
    (lambda b: b["model"]["vocab"].update(zz="1"), BadFile, "the id of 'zz'"),
    (lambda b: b["model"]["vocab"].update(zz=97), BadFile, "id 97 is both 'a' and 'zz'"),
    (lambda b: b["model"].update(merges=["t q"]), BadFile, "'tq', which is missing"),
    (lambda b: b["model"].update(merges=[["t"]]), BadFile, r"merges\[0\]"),
    (lambda b: b["model"].update(merges={}), BadFile, r"model\.merges is {}"),
    (lambda b: b["model"].pop("merges"), BadFile, r"model\.merges is None"),
    (lambda b: b.update(added_tokens={}), BadFile, "added_tokens is {}"),
    (lambda b: b["added_tokens"].append({"id": 5}), BadFile, "content must be text"),
    (lambda b: b["added_tokens"].append({"id": 300, "content": "x y", "lstrip": True}), UnsupportedFormat, "lstrip"),
    (lambda b: b.update(decoder=None), UnsupportedFormat, "decoder"),
    (lambda b: b.update(pre_tokenizer=None), UnsupportedFormat, "pre_tokenizer"),
    (lambda b: b.update(pre_tokenizer={"type": "Metaspace"}), UnsupportedFormat, "Metaspace"),
    (
        lambda b: b["pre_tokenizer"]["pretokenizers"][0]["pattern"].update(Regex="(a+)+$"),
        UnsupportedFormat,
        "not known",
    ),
    (lambda b: b.update(normalizer={"type": "Lowercase"}), UnsupportedFormat, "Lowercase"),
    (
        lambda b: b.update(post_processor={"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "no"}}]}),
        BadFile,
        "'no'",
    ),
]


@pytest.mark.parametrize(("change", "kind", "text"), JSON_FAULTS)
def test_a_damaged_tokenizer_json_is_refused_by_name(
    tmp_path: Path, tokenizer_json: dict[str, Any], change: Change, kind: type[ShohinError], text: str
) -> None:
    body = copy.deepcopy(tokenizer_json)
    change(body)
    path = written(tmp_path, body)
    with pytest.raises(kind, match=text) as caught:
        tokenizer_from_json(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("raw", ["", "[1]", "{", "[" * 50_000, '{"model": ' + "9" * 5000 + "}", "\x00"])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path, raw: str) -> None:
    with pytest.raises(BadFile, match=r"tokenizer\.json"):
        tokenizer_from_json(written(tmp_path, raw))
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe")
    with pytest.raises(BadFile, match=r"tokenizer\.json"):
        tokenizer_from_json(tmp_path)
    with pytest.raises(BadFile, match="missing"):
        tokenizer_from_json(tmp_path / "missing" / "tokenizer.json")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_only_regular_files_of_bounded_size_are_read(
    tmp_path: Path, tokenizer_json: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, tokenizer_json)
    path = tmp_path / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with pytest.raises(BadFile, match=f"{name}: is no regular file"):
        tokenizer_from_json(tmp_path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(BadFile, match=f"{name}: is no regular file"):
        tokenizer_from_json(tmp_path)
    path.unlink()
    written(tmp_path, tokenizer_json)
    path.write_bytes(b" " * 200_000)
    monkeypatch.setattr(from_json, "_MOST_BYTES", 100_000)
    monkeypatch.setattr(from_json, "_MOST_TEMPLATE", 100_000)
    with pytest.raises(BadFile, match=f"{name}: more than the 100000 bytes"):
        tokenizer_from_json(tmp_path)


def test_the_files_beside_it_give_ends_start_and_template(tmp_path: Path, tokenizer_json: dict[str, Any]) -> None:
    body = copy.deepcopy(tokenizer_json)
    first = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    body["post_processor"] = {"type": "TemplateProcessing", "single": [first, {"Sequence": {"id": "A", "type_id": 0}}]}
    tokenizer = tokenizer_from_json(written(tmp_path, body))
    assert (tokenizer.bos_id, tokenizer.add_bos, tokenizer.chat_template) == (280, True, None)
    config = {
        "bos_token": {"content": "<|im_start|>"},
        "eos_token": "<|im_end|>",
        "add_bos_token": False,
        "chat_template": [
            {"name": "default", "template": "D"},
            {"name": "tool_use", "template": "T{{ tools|length }}"},
        ],
    }
    written(tmp_path, body, tokenizer_config=config, generation_config={"eos_token_id": [282, 97]})
    tokenizer = tokenizer_from_json(tmp_path)
    assert (tokenizer.bos_id, tokenizer.add_bos, tokenizer.chat_template) == (281, False, "D")
    assert tokenizer.eos_ids == {280, 282, 97}
    talk = [{"role": "user", "content": "x"}]
    assert tokenizer.render_chat(talk) == "D" and tokenizer.render_chat(talk, tools=[{}]) == "T1"
    (tmp_path / "chat_template.jinja").write_text("J", encoding="utf-8")
    assert tokenizer_from_json(tmp_path).chat_template == "J"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"eos_token": "nowhere"}, "nowhere"),
        ({"bos_token": {"content": 5}}, "bos_token"),
        ({"chat_template": 5}, "chat_template"),
        ({"chat_template": [{"name": "default"}]}, "chat_template"),
        ({"chat_template": [5]}, "chat_template"),
        ([], "object"),
    ],
)
def test_a_damaged_configuration_is_refused(
    tmp_path: Path, tokenizer_json: dict[str, Any], config: Any, text: str
) -> None:
    with pytest.raises(BadFile, match=text):
        tokenizer_from_json(written(tmp_path, tokenizer_json, tokenizer_config=config))
