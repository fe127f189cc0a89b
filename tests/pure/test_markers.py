"""Markers: the longest piece at a place, leftmost first, in memory that a file can't blow up."""

from __future__ import annotations

import random
import re
import tracemalloc
from collections.abc import Mapping

import pytest

from shohin.errors import BadFile
from shohin.formats.text import tokenizer_from_metadata
from shohin.formats.text.markers import LONGEST, Markers


def by_alternation(pieces: Mapping[str, int], text: str) -> list[str | int]:
    """What the standard library's regular expressions find, longer alternatives first."""
    pattern = re.compile("|".join(re.escape(p) for p in sorted(pieces, key=len, reverse=True)))
    parts: list[str | int] = []
    at = 0
    for match in pattern.finditer(text):
        parts.extend([text[at : match.start()]] if match.start() > at else [])
        parts.append(pieces[match[0]])
        at = match.end()
    return parts + ([text[at:]] if at < len(text) else [])


def test_the_same_cuts_as_a_regular_expression() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        words = {"".join(rng.choices("ab<]^-", k=rng.randint(1, 6))) for _ in range(rng.randint(1, 30))}
        pieces = {word: i for i, word in enumerate(words)}
        text = "".join(rng.choices("ab<]^-c", k=200))
        assert Markers(pieces).split(text) == by_alternation(pieces, text), f"seed {seed}"


def test_no_pieces_and_no_text() -> None:
    assert Markers({}).split("abc") == ["abc"]
    assert Markers({"a": 1}).split("") == []


def test_many_long_pieces_take_little_memory() -> None:
    """A megabyte of pieces; one dictionary a character took 380 times as much."""
    rng = random.Random(1)
    pieces = {"".join(rng.choices("abcdefgh", k=LONGEST)): i for i in range(2000)}
    tracemalloc.start()
    try:
        markers = Markers(pieces)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    last = list(pieces)[-1]
    assert markers.split("x" + last + last[:-1]) == ["x", 1999, last[:-1]]


@pytest.mark.parametrize("kind", [2, 3, 4])
def test_a_piece_that_is_looked_for_whole_has_a_longest_length(tiny_metadata: Mapping[str, object], kind: int) -> None:
    def build(length: int, kind: int) -> list[int]:
        tokens, kinds = (list(tiny_metadata[f"tokenizer.ggml.{k}"]) for k in ("tokens", "token_type"))  # type: ignore[call-overload]
        changed = {"tokenizer.ggml.tokens": [*tokens, "a" * length], "tokenizer.ggml.token_type": [*kinds, kind]}
        return tokenizer_from_metadata({**tiny_metadata, **changed}, "x.gguf").encode("a" * 2000, special=True)

    assert build(LONGEST, kind).count(287) == 2000 // LONGEST
    with pytest.raises(
        BadFile, match=rf"x\.gguf: token 287 \(token_type {kind}\) has {LONGEST + 1} characters"
    ) as caught:
        build(LONGEST + 1, kind)
    assert len(str(caught.value)) < 300
    build(LONGEST + 1, 1)


def test_messages_show_only_the_beginning_of_a_long_piece(tiny_metadata: Mapping[str, object]) -> None:
    tokens, kinds = (list(tiny_metadata[f"tokenizer.ggml.{k}"]) for k in ("tokens", "token_type"))  # type: ignore[call-overload]
    changed = {"tokenizer.ggml.tokens": [*tokens, *["a" * 100_000] * 2], "tokenizer.ggml.token_type": [*kinds, 1, 1]}
    with pytest.raises(BadFile, match="tokens 287 and 288 are both") as caught:
        tokenizer_from_metadata({**tiny_metadata, **changed}, "x.gguf")
    assert len(str(caught.value)) < 300
