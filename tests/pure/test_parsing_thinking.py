"""Thinking and answer, told apart by token id."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shohin.formats.text import Tokenizer
from shohin.serve.parsing import ThinkingSplitter, opens_thinking

OPEN, CLOSE = 900, 901
IDS = {"open": OPEN, "close": CLOSE, "": 5}


def run(pieces: list[tuple[int, str]], opened: bool = False) -> tuple[str, str]:
    splitter = ThinkingSplitter((OPEN, CLOSE), prompt_opened=opened)
    said = [*(splitter.push(i, t) for i, t in pieces), splitter.finish()]
    return "".join(s.reasoning for s in said), "".join(s.content for s in said)


def rows(cases: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((cases / "parsing" / "thinking.json").read_text())
    return found


@pytest.mark.row("C19")
def test_cases_split_as_listed(cases: Path) -> None:
    for row in rows(cases):
        pieces = [(IDS[kind], text) for text, kind in row["pieces"]]
        reasoning, content = run(pieces, row.get("prompt_opened", False))
        assert reasoning == row["reasoning"], row
        assert content in row.get("content_any", [row.get("content")]), row


@pytest.mark.row("C19")
def test_cases_are_the_same_in_smaller_and_larger_pieces(cases: Path) -> None:
    for row in rows(cases):
        opened = row.get("prompt_opened", False)
        small: list[tuple[int, str]] = []
        large: list[tuple[int, str]] = []
        for text, kind in row["pieces"]:
            small += [(IDS[kind], text)] if kind else [(5, c) for c in text]
            if kind or not large or large[-1][0] != 5:
                large.append((IDS[kind], text))
            else:
                large[-1] = (5, large[-1][1] + text)
        assert run(small, opened) == run(large, opened), row


TEXT = st.text("a\n<", max_size=4)
PIECES = st.lists(
    st.one_of(TEXT.map(lambda t: (5, t)), st.sampled_from([(OPEN, "<think>"), (CLOSE, "</think>")])), max_size=10
)


@given(PIECES, st.booleans())
def test_any_cut_gives_the_same_and_no_text_is_lost(pieces: list[tuple[int, str]], opened: bool) -> None:
    small = [p for i, t in pieces for p in ([(i, t)] if i != 5 else [(5, c) for c in t])]
    reasoning, content = run(pieces, opened)
    assert run(small, opened) == (reasoning, content)
    letters = sum(t.count("a") + t.count("<") for i, t in pieces if i == 5)
    marks = sum(text.count("think>") for text in (reasoning, content))
    slashed = sum(text.count("</think>") for text in (reasoning, content))
    assert reasoning.count("a") + content.count("a") == sum(t.count("a") for i, t in pieces if i == 5)
    assert sum(len(x.replace("\n", "")) for x in (reasoning, content)) == letters + 7 * marks + slashed


def test_a_character_cut_off_by_a_marker_stays_on_its_side() -> None:
    assert run([(OPEN, "<think>"), (5, "a"), (CLOSE, "\ufffd</think>"), (5, "b")]) == ("a\ufffd", "b")


def test_a_model_without_markers_only_answers() -> None:
    splitter = ThinkingSplitter(None)
    assert splitter.push(5, "\n<think>").content == "\n<think>" and not splitter.thinking


def test_it_says_whether_the_answer_has_begun() -> None:
    splitter = ThinkingSplitter((OPEN, CLOSE), prompt_opened=True)
    assert splitter.thinking and splitter.push(5, "x").reasoning == "x"
    splitter.push(CLOSE, "</think>")
    assert not splitter.thinking


@pytest.mark.row("C19")
def test_whether_a_prompt_opens_the_thinking(tiny: Tokenizer) -> None:
    def opens(text: str) -> bool:
        return opens_thinking(tiny.encode(text), tiny.think_ids, tiny.token_bytes)

    assert opens("a<think>") and opens("a<think>\n\n")
    assert not opens("<think>a") and not opens("<think>\n</think>\n\n") and not opens("")
    assert not opens_thinking(tiny.encode("<think>"), None, tiny.token_bytes)
