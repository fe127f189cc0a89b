"""Streaming decode: chunks join to the whole, and only unfinished characters wait."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shohin.formats.text import StreamDecoder, Tokenizer

# Pieces that UTF-8 goes wrong on, beside any bytes at all.
PIECES = st.lists(
    st.one_of(
        st.binary(max_size=5),
        st.sampled_from([b"\xf0", b"\x9f", b"\xed\xa0", b"\xc0", b"\xe6\xbc", b"\xff", b"a", b"\xa2", b""]),
    ),
    max_size=12,
)


def streamed(pieces: list[bytes]) -> list[str]:
    decoder = StreamDecoder(pieces.__getitem__)
    return [*(decoder.push(i) for i in range(len(pieces))), decoder.flush()]


@pytest.mark.row("C32")
def test_case_pieces_join_to_the_expected_text(cases: Path) -> None:
    for row in json.loads((cases / "server" / "split_characters.json").read_text()):
        assert "".join(streamed([bytes.fromhex(p) for p in row["pieces"]])) == row["text"], row


@pytest.mark.row("C32")
@given(PIECES)
def test_any_bytes_join_to_what_python_decodes(pieces: list[bytes]) -> None:
    assert "".join(streamed(pieces)) == b"".join(pieces).decode("utf-8", "replace")


@pytest.mark.row("C32")
@given(st.text(), st.integers(1, 3))
def test_nothing_waits_but_an_unfinished_character(text: str, step: int) -> None:
    raw = text.encode()
    pieces = [raw[i : i + step] for i in range(0, len(raw), step)]
    sent = ""
    for i, chunk in enumerate(streamed(pieces)[:-1]):
        sent += chunk
        assert sent == raw[: (i + 1) * step].decode("utf-8", "ignore")


def test_a_decoder_starts_anew_after_its_end() -> None:
    decoder = StreamDecoder([b"\xf0\x9f", b"a"].__getitem__)
    assert decoder.push(0) == "" and decoder.flush() == "\ufffd"
    assert decoder.push(1) == "a" and decoder.flush() == ""


@pytest.mark.row("C32")
def test_the_tokenizer_streams_what_it_decodes(tiny: Tokenizer, corpus: list[str]) -> None:
    for text in corpus:
        ids = [*tiny.encode(text, special=True), 282, *tiny.encode("\u6f22")[:2]]
        for skip in (True, False):
            decoder = tiny.stream(skip_special=skip)
            chunks = [decoder.push(i) for i in ids]
            assert "".join(chunks) + decoder.flush() == tiny.decode(ids, skip_special=skip)
