"""Stop strings, whatever way the text is cut."""

from __future__ import annotations

import json
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shohin.errors import BadRequest
from shohin.serve.parsing import StopMatcher


def run(stops: Any, pieces: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    sent = "".join(map(matcher.push, pieces)) + matcher.flush()
    return sent, matcher.stopped


def cuts(text: str) -> list[list[str]]:
    """Every way to cut a text in at most four pieces, and character by character."""
    ways = [list(text)]
    for count in range(4):
        for places in combinations(range(1, len(text)), count):
            borders = [0, *places, len(text)]
            ways.append([text[a:b] for a, b in pairwise(borders)])
    return ways


def plain(stops: list[str], text: str) -> tuple[str, str | None]:
    """The rule, said slowly: the first end; of those that end there the earliest start."""
    for end in range(1, len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@pytest.mark.row("C33")
def test_case_stops_give_one_text_for_every_cut(cases: Path) -> None:
    for row in json.loads((cases / "server" / "stops.json").read_text()):
        expected = row.get("expected_any") or [row["expected"]]
        results = {run(row["stop"], pieces) for pieces in cuts(row["text"])}
        assert len(results) == 1, row
        sent, stopped = results.pop()
        assert sent in expected and (stopped is None) == (row.get("finish") == "length"), row


@pytest.mark.row("C33")
@given(
    st.lists(st.text("ab\u6f22", min_size=1, max_size=4), max_size=4),
    st.lists(st.text("ab\u6f22", max_size=5), max_size=8),
)
def test_any_text_follows_the_rule(stops: list[str], pieces: list[str]) -> None:
    assert run(stops, pieces) == plain(stops, "".join(pieces))


@pytest.mark.row("C33")
@given(st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), st.text("abc", max_size=12))
def test_only_a_possible_stop_waits(stops: list[str], text: str) -> None:
    matcher = StopMatcher(stops)
    sent = ""
    for i, character in enumerate(text, 1):
        sent += matcher.push(character)
        if matcher.stopped is not None:
            break
        waiting = max((n for s in stops for n in range(len(s)) if text[:i].endswith(s[:n])), default=0)
        assert sent == text[: i - waiting]


@pytest.mark.parametrize("stops", ["", ["a", ""], [5], [None], [b"a"]])
def test_an_empty_stop_is_refused(stops: Any) -> None:
    with pytest.raises(BadRequest, match="stop") as caught:
        StopMatcher(stops)
    assert caught.value.param == "stop"


def test_without_stops_everything_passes_and_after_one_nothing() -> None:
    assert run(None, ["a", "b"]) == ("ab", None) and run([], ["a"]) == ("a", None)
    matcher = StopMatcher("b")
    assert [matcher.push("ab"), matcher.push("c"), matcher.flush()] == ["a", "", ""]


def test_a_long_stop_costs_no_more_than_its_length() -> None:
    stop = "a" * 100_000 + "b"
    matcher = StopMatcher(stop)
    sent = matcher.push("a" * 300_000)
    assert len(sent) == 200_000 and matcher.push("b") == "" and matcher.stopped == stop
