"""The tokenizer against the tokenizers library, on the case files' vocabulary and on the real Qwen3 one."""

from __future__ import annotations

import json
import time
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Reference

from shohin.errors import BadFile, BadRequest
from shohin.formats.text import Tokenizer, tokenizer_from_json, tokenizer_from_metadata

HARD = st.text(
    st.one_of(st.characters(codec="utf-8"), st.sampled_from("aA1 \n\r\t'<|>_.\u0301éｶﾞ한👨\u200d")), max_size=40
)


@pytest.fixture(scope="module")
def reference(cases: Path) -> Any:
    return Reference.from_file(str(cases / "tokenizer" / "tokenizer.json"))


@pytest.mark.row("C14")
def test_case_strings_give_the_reference_ids_from_both_sources(cases: Path, tiny: Tokenizer, reference: Any) -> None:
    other = tokenizer_from_json(cases / "tokenizer" / "tokenizer.json")
    for text in json.loads((cases / "tokenizer" / "strings.json").read_text()):
        expected = reference.encode(text, add_special_tokens=False).ids
        assert tiny.encode(text, special=True) == expected, text[:50]
        assert other.encode(text, special=True) == expected, text[:50]
        assert tiny.decode(expected, skip_special=False) == unicodedata.normalize("NFC", text), text[:50]


@pytest.mark.row("C14")
@given(HARD)
@settings(deadline=None)
def test_any_text_gives_the_reference_ids(tiny: Tokenizer, reference: Any, text: str) -> None:
    assert tiny.encode(text, special=True) == reference.encode(text, add_special_tokens=False).ids


@pytest.mark.row("C14")
def test_qwen3_ids_equal_the_real_tokenizer(
    qwen3_files: Path, qwen3: Tokenizer, corpus: list[str], cases: Path
) -> None:
    real = Reference.from_file(str(qwen3_files / "tokenizer.json"))
    other = tokenizer_from_json(qwen3_files)
    texts = [*corpus, *json.loads((cases / "tokenizer" / "strings.json").read_text()), "\n".join(corpus)]
    texts += [a + b for a, b in zip(corpus, reversed(corpus), strict=True)]
    for text in texts:
        expected = real.encode(text, add_special_tokens=False).ids
        assert qwen3.encode(text, special=True) == expected, text[:80]
        assert other.encode(text, special=True) == expected, text[:80]
        assert qwen3.decode(expected, skip_special=False) == unicodedata.normalize("NFC", text), text[:80]
        assert qwen3.decode(expected) == real.decode(expected, skip_special_tokens=True), text[:80]
    assert (other.eos_ids, other.bos_id, other.add_bos) == (qwen3.eos_ids, None, False)
    assert other.control_ids == qwen3.control_ids and other.chat_template == qwen3.chat_template


@pytest.mark.row("C14")
def test_any_text_gives_the_real_qwen3_ids(qwen3_files: Path, qwen3: Tokenizer) -> None:
    real = Reference.from_file(str(qwen3_files / "tokenizer.json"))

    @given(HARD)
    @settings(deadline=None, max_examples=300)
    def check(text: str) -> None:
        assert qwen3.encode(text, special=True) == real.encode(text, add_special_tokens=False).ids

    check()


def test_qwen3_facts(qwen3: Tokenizer) -> None:
    assert qwen3.vocab_size == 151669
    assert qwen3.eos_ids == {151643, 151645}
    assert qwen3.think_ids == (151667, 151668)
    assert qwen3.token_bytes(198) == b"\n" and qwen3.token_bytes(151645) == b"<|im_end|>"


def test_a_large_vocabulary_is_built_in_about_a_second(qwen3_metadata: dict[str, Any]) -> None:
    start = time.process_time()
    tokenizer_from_metadata(qwen3_metadata, "qwen3.gguf")
    assert time.process_time() - start < 5  # 0.4 s on a quiet machine


@pytest.mark.row("C15")
def test_markers_are_one_id_each_wherever_they_stand(cases: Path, tiny: Tokenizer) -> None:
    table = json.loads((cases / "tokenizer" / "markers.json").read_text())
    other = tokenizer_from_json(cases / "tokenizer" / "tokenizer.json")
    for tokenizer in (tiny, other):
        for piece, token in table["ids"].items():
            assert tokenizer.encode(piece, special=True) == [token]
            assert tokenizer.encode(piece * 2, special=True) == [token, token]
            inside = tokenizer.encode(f"the {piece}nd", special=True)
            assert inside == [*tokenizer.encode("the "), token, *tokenizer.encode("nd")]
            assert tokenizer.piece(token) == piece and tokenizer.token_bytes(token) == piece.encode()
        for piece in table["kinds"]["user_defined"]:
            token = table["ids"][piece]
            assert tokenizer.encode(piece) == [token] and tokenizer.encode(f"a{piece}a") == [97, token, 97]
            assert tokenizer.decode([token]) == piece
        assert tokenizer.control_ids == {table["ids"][p] for p in table["kinds"]["control"]}
        assert tokenizer.decode(sorted(tokenizer.control_ids)) == ""


@pytest.mark.row("C15")
def test_a_user_defined_piece_is_not_normalised(tiny_metadata: Mapping[str, object]) -> None:
    pieces = [*tiny_metadata["tokenizer.ggml.tokens"], "<e\u0301>"]  # type: ignore[misc]
    kinds = [*tiny_metadata["tokenizer.ggml.token_type"], 4]  # type: ignore[misc]
    changed = {**tiny_metadata, "tokenizer.ggml.tokens": pieces, "tokenizer.ggml.token_type": kinds}
    tokenizer = tokenizer_from_metadata(changed, "x.gguf")
    assert tokenizer.encode("<e\u0301>") == [len(pieces) - 1]
    assert len(pieces) - 1 not in tokenizer.encode("<\u00e9>")
    assert tokenizer.decode([len(pieces) - 1]) == "<e\u0301>"


@pytest.mark.row("C16")
def test_text_never_becomes_a_control_id_unless_asked(tiny: Tokenizer) -> None:
    for token in tiny.control_ids:
        text = f"a{tiny.piece(token)}b"
        assert not tiny.control_ids.intersection(tiny.encode(text))
        assert tiny.decode(tiny.encode(text)) == text
        assert tiny.encode(text, special=True) == [97, token, 98]


@pytest.mark.row("C16")
def test_whole_words_that_skip_the_merges_are_no_way_to_a_control_id(tiny_metadata: Mapping[str, object]) -> None:
    pieces = [*tiny_metadata["tokenizer.ggml.tokens"], "stop", "\u0120halt"]  # type: ignore[misc]
    kinds = [*tiny_metadata["tokenizer.ggml.token_type"], 3, 1]  # type: ignore[misc]
    changed = {
        **tiny_metadata,
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.bos_token_id": 280,
    }
    del changed["tokenizer.ggml.add_bos_token"]  # what the file doesn't say, the pre decides
    tokenizer = tokenizer_from_metadata(changed, "x.gguf")
    assert tokenizer.add_bos and tokenizer.encode("") == [280] and tokenizer.encode("a", add_bos=False) == [97]
    assert tokenizer.encode("stop", add_bos=False) == [tokenizer.id_of(c) for c in "st"] + [111, 112]
    assert tokenizer.encode(" halt", add_bos=False) == [len(pieces) - 1]
    assert tokenizer.encode("stop", add_bos=False, special=True) == [len(pieces) - 2]


def test_a_promoted_word_stays_a_word(tiny_metadata: Mapping[str, object]) -> None:
    kinds = list(tiny_metadata["tokenizer.ggml.token_type"])  # type: ignore[call-overload]
    kinds[256] = 3  # "th", through which the merges of "the" go
    tokenizer = tokenizer_from_metadata({**tiny_metadata, "tokenizer.ggml.token_type": kinds}, "x.gguf")
    assert tokenizer.encode("the") == [257]


def test_the_longest_marker_wins(tiny_metadata: Mapping[str, object]) -> None:
    added = ["<a", "<a>", "<a><b>", "b>c"]
    pieces = [*tiny_metadata["tokenizer.ggml.tokens"], *added]  # type: ignore[misc]
    kinds = [*tiny_metadata["tokenizer.ggml.token_type"], 4, 4, 4, 4]  # type: ignore[misc]
    changed = {**tiny_metadata, "tokenizer.ggml.tokens": pieces, "tokenizer.ggml.token_type": kinds}
    tokenizer = tokenizer_from_metadata(changed, "x.gguf")
    first = len(pieces) - 4
    assert tokenizer.encode("<a><b>c") == [first + 2, 99]
    assert tokenizer.encode("<a><bb>c") == [first + 1, 60, 98, first + 3]
    assert tokenizer.encode("<ab>c<a") == [first, first + 3, first]


def test_ends_are_collected_from_keys_and_well_known_pieces(tiny_metadata: Mapping[str, object]) -> None:
    tokenizer = tokenizer_from_metadata(tiny_metadata, "x.gguf")
    assert tokenizer.eos_ids == {280, 282}
    changed = {**tiny_metadata, "tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 6}
    assert tokenizer_from_metadata(changed, "x.gguf").eos_ids == {280, 282, 5, 6}
    kinds = list(tiny_metadata["tokenizer.ggml.token_type"])  # type: ignore[call-overload]
    kinds[280] = 1  # an ordinary piece that happens to be spelled so
    changed = {**tiny_metadata, "tokenizer.ggml.token_type": kinds}
    assert tokenizer_from_metadata(changed, "x.gguf").eos_ids == {282}


def test_unused_ids_stand_for_nothing(tiny_metadata: Mapping[str, object]) -> None:
    pieces = [*tiny_metadata["tokenizer.ggml.tokens"], "[PAD287]", ""]  # type: ignore[misc]
    kinds = [*tiny_metadata["tokenizer.ggml.token_type"], 5, 1]  # type: ignore[misc]
    changed = {**tiny_metadata, "tokenizer.ggml.tokens": pieces, "tokenizer.ggml.token_type": kinds}
    tokenizer = tokenizer_from_metadata(changed, "x.gguf")
    assert tokenizer.decode([97, 287, 288, 98], skip_special=False) == "ab"
    assert 287 not in tokenizer.encode("[PAD287]", special=True)


def test_a_byte_without_a_token_is_an_error_not_a_gap(tiny_metadata: Mapping[str, object]) -> None:
    pieces = list(tiny_metadata["tokenizer.ggml.tokens"])  # type: ignore[call-overload]
    pieces[7] = "seven"
    tokenizer = tokenizer_from_metadata({**tiny_metadata, "tokenizer.ggml.tokens": pieces}, "x.gguf")
    with pytest.raises(BadRequest, match="0x07"):
        tokenizer.encode("ring \x07")
    assert tokenizer.decode(tokenizer.encode("ring")) == "ring"


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", 5, None, b"a"])
def test_text_that_is_no_text_is_refused(tiny: Tokenizer, text: Any) -> None:
    with pytest.raises(BadRequest):
        tiny.encode(text)


@pytest.mark.parametrize("token", [-1, 287, 2**40, 1.0, None, "1"])
def test_ids_outside_the_vocabulary_are_refused(tiny: Tokenizer, token: Any) -> None:
    for use in (tiny.token_bytes, tiny.piece, lambda i: tiny.decode([i]), tiny.stream().push):
        with pytest.raises(BadRequest, match="id"):
            use(token)


def test_a_start_token_is_added_as_the_file_says(tiny_metadata: Mapping[str, object], tiny: Tokenizer) -> None:
    with pytest.raises(BadRequest, match="start token"):
        tiny.encode("a", add_bos=True)
    wanted = {**tiny_metadata, "tokenizer.ggml.add_bos_token": True}
    with pytest.raises(BadFile, match="bos_token_id"):
        tokenizer_from_metadata(wanted, "x.gguf")
    tokenizer = tokenizer_from_metadata({**wanted, "tokenizer.ggml.bos_token_id": 281}, "x.gguf")
    assert tokenizer.encode("a") == [281, 97] and tokenizer.encode("a", add_bos=False) == [97]
    assert tokenizer.encode_chat([{"role": "user", "content": "a"}])[:2] == [281, tokenizer.encode("u")[-1]]
