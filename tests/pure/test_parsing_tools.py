"""Tool calls in an answer, cut anywhere."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shohin.serve.parsing import ThinkingSplitter, ToolCall, ToolCallParser

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def run(pieces: list[str], enabled: bool = True) -> tuple[str, list[ToolCall]]:
    numbers = count()
    parser = ToolCallParser(enabled=enabled, new_id=lambda: f"id{next(numbers)}")
    parsed = [*map(parser.push, pieces), parser.finish()]
    return "".join(p.content for p in parsed), [c for p in parsed for c in p.calls]


def answer(text: str) -> str:
    """The answer without the thinking, as the splitter gives it."""
    splitter = ThinkingSplitter((1, 2))
    content = ""
    for i, part in enumerate(text.replace("</think>", "\0</think>\0").replace("<think>", "\0<think>\0").split("\0")):
        token = {"<think>": 1, "</think>": 2}.get(part, 5) if i else 5
        content += splitter.push(token, part).content
    return content + splitter.finish().content


@pytest.mark.row("C20")
def test_cases_parse_as_listed_cut_at_every_character(cases: Path) -> None:
    for row in json.loads((cases / "parsing" / "tool_calls.json").read_text()):
        text = answer(row["text"])
        ways = [[text], list(text), *([text[:i], text[i:]] for i in range(1, len(text)))]
        for pieces in ways:
            content, calls = run(pieces, row.get("tool_choice") != "none")
            assert content in row.get("content_any", [row.get("content")]), (row, pieces)
            assert [{"name": c.name, "arguments": json.loads(c.arguments)} for c in calls] == row["calls"]
            assert [c.index for c in calls] == list(range(len(calls)))
            assert len({c.id for c in calls}) == len(calls)


PARTS = st.sampled_from(
    [
        OPEN,
        CLOSE,
        OPEN + '{"name": "f", "arguments": {}}' + CLOSE,
        OPEN + '\n{"name": "g", "arguments": {"a": "</tool_call>\\""}}\n' + CLOSE,
        "{",
        "}",
        '"',
        "\\",
        "\n",
        " ",
        "a",
        "<",
        "<tool",
        '{"name": "f"',
        ', "arguments": {"x": [1]}}',
        "NaN",
        "'",
    ]
)


@pytest.mark.row("C20")
@given(st.lists(PARTS, max_size=8))
def test_any_text_gives_the_same_in_every_cut_and_loses_only_space(parts: list[str]) -> None:
    text = "".join(parts)
    content, calls = run([text])
    assert run(list(text)) == (content, calls) == run([text[i : i + 3] for i in range(0, len(text), 3)])
    if not calls:
        assert content == text
    assert len(content.split()) <= len(text.split())


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "f", "arguments": {"x": NaN}}',
        '{"name": "f", "arguments": {"x": Infinity}}',
        '{"name": 5, "arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": "f", "arguments": []}',
        '{"name": "f", "arguments": "{}"}',
        '{"arguments": {}}',
        '["f"]',
        '"f"',
        "{}",
        '{"name": "f", "name": "g", "arguments": {}}',
        '{"name": "\\ud800", "arguments": {}}',
        '{"name": "f", "arguments": {"x": ' + "[" * 3000 + "]" * 3000 + "}}",
        '{"name": "f", "arguments": {"x": ' + "9" * 5000 + "}}",
        '{"name": "f"} {"name": "g"}',
        '{"name": "f",}',
        '{"name" "f"}',
        '{"name": "f"]',
    ],
)
def test_what_is_no_sound_call_comes_back_as_text(body: str) -> None:
    text = f"x {OPEN}{body}{CLOSE} y"
    assert run([text]) == (text, []) == run(list(text))


@pytest.mark.parametrize(
    "arguments", ['{"x": 0.10000000000000000555, "y": 1e400}', '{ "a" : [ ] }', '{"u": "\\ud83d\\ude00 \\ud800"}']
)
def test_arguments_are_handed_on_as_written(arguments: str) -> None:
    _, calls = run([f'{OPEN}{{"arguments": {arguments} , "name":"f"}}{CLOSE}'])
    assert calls[0].arguments == arguments


def test_a_call_may_do_without_arguments() -> None:
    assert run([f'{OPEN}{{"name": "f"}}{CLOSE}'])[1] == [ToolCall(0, "id0", "f", "{}")]


def test_space_next_to_calls_belongs_to_nobody_and_other_space_stays() -> None:
    call = f'{OPEN}{{"name": "f"}}{CLOSE}'
    assert run([f" a \n{call}\n{call}\n b \n"])[0] == " a\n b \n"
    assert run([f"{call}\n"])[0] == "" and run(["a\n"])[0] == "a\n"


def test_a_flood_is_read_once() -> None:
    for text in (OPEN * 20_000, (OPEN + '{"') * 20_000, OPEN + "{" * 300_000, OPEN + '{"name": "f"}' + " " * 300_000):
        assert run([text[i : i + 1000] for i in range(0, len(text), 1000)])[0] == text
    call: Any = run(['<tool_call>{"name": "f", "arguments": {"x": "' + "a" * (1 << 20) + '"}}</tool_call>'])
    assert call[1] == []


def test_ids_are_made_new_each_time() -> None:
    parser = ToolCallParser()
    calls = parser.push(f'{OPEN}{{"name": "f"}}{CLOSE}{OPEN}{{"name": "f"}}{CLOSE}').calls
    assert len({c.id for c in calls}) == 2 and all(c.id.startswith("call_") for c in calls)
