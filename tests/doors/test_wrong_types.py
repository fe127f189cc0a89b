"""Arguments of a wrong type at the public functions: refused by name, never a bare TypeError."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shohin
from shohin.errors import BadRequest

CALLS: list[tuple[str, Callable[[Any, Any, Any], object]]] = [
    ("model", lambda w, m, t: shohin.open(5)),  # type: ignore[arg-type]
    ("model", lambda w, m, t: shohin.load(None)),  # type: ignore[arg-type]
    ("device", lambda w, m, t: shohin.load(w, device=5)),  # type: ignore[arg-type]
    ("weights", lambda w, m, t: shohin.build("a.gguf", m.device)),  # type: ignore[arg-type]
    ("device", lambda w, m, t: shohin.build(w, "host")),  # type: ignore[arg-type]
    ("model", lambda w, m, t: shohin.generate(w, [1])),
    ("model", lambda w, m, t: shohin.generate(None, t, "x")),  # type: ignore[call-overload]
    ("params", lambda w, m, t: shohin.generate(m, [1], {"seed": 1})),  # type: ignore[call-overload]
    ("model", lambda w, m, t: shohin.stream_generate(t, t, "x")),
    ("tokenizer", lambda w, m, t: shohin.stream_generate(m, m, "x")),
    ("prompt", lambda w, m, t: shohin.stream_generate(m, t, 5)),
    ("prompt", lambda w, m, t: shohin.stream_generate(m, t, None)),  # type: ignore[arg-type]
    ("model", lambda w, m, t: shohin.create_chat_completion(t, m, [])),
    ("tokenizer", lambda w, m, t: shohin.create_chat_completion(m, None, [])),  # type: ignore[arg-type]
    ("messages", lambda w, m, t: shohin.create_chat_completion(m, t, 5)),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_the_argument_is_named(cases: Path, number: int) -> None:
    weights = shohin.open(cases / "gguf" / "tiny_q1.gguf")
    model, tokenizer = shohin.load(weights, device="host", context=64)
    param, call = CALLS[number]
    with pytest.raises(BadRequest, match=param) as caught:
        call(weights, model, tokenizer)
    assert caught.value.param == param
