"""OpenAI's chat completion in Python: thinking, tool calls, choices, log-probabilities, and every field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scripted_model import ScriptedModel

import shohin.formats
from shohin.errors import BadRequest, ContextFull, DeviceFailed
from shohin.formats.text import Tokenizer, tokenizer_from_metadata
from shohin.generate import Hooks, Session, page_pool
from shohin.serve.api import create_chat_completion
from shohin.serve.defaults import LoadedTokenizer

HI = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


@pytest.fixture(scope="module")
def tokenizer(cases: Path) -> Tokenizer:
    weights = shohin.formats.open(cases / "gguf" / "tiny_q1.gguf")
    return LoadedTokenizer(tokenizer_from_metadata(weights.metadata, weights.source), "tiny", {})


@pytest.fixture(scope="module")
def calling(cases: Path) -> Tokenizer:
    """The same model with a template that shows tools."""
    weights = shohin.formats.open(cases / "gguf" / "tiny_q1.gguf")
    key = "tokenizer.chat_template"
    shows = "{% if tools %}{{ tools|tojson }}{% endif %}" + str(weights.metadata[key])
    return LoadedTokenizer(tokenizer_from_metadata({**weights.metadata, key: shows}, weights.source), "tiny", {})


def one_by_one(tokenizer: Tokenizer, text: str) -> list[int]:
    by_bytes = {tokenizer.token_bytes(i): i for i in reversed(range(256))}
    return [by_bytes[bytes([b])] for b in text.encode()]


def says(tokenizer: Tokenizer, *scripts: Any) -> Any:
    ids = [one_by_one(tokenizer, s) if isinstance(s, str) else s for s in scripts]
    return ScriptedModel(tokenizer.vocab_size, min(tokenizer.eos_ids), *ids)


def ask(model: Any, tokenizer: Tokenizer, /, messages: Any = HI, **fields: Any) -> Any:
    return create_chat_completion(model, tokenizer, messages, **fields)


def joined(chunks: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """What a client makes of a stream: the message of one choice, and its finish reason."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": [], "finish": None, "logprobs": []}
    mine = [c["choices"][0] for c in chunks if c["choices"] and c["choices"][0]["index"] == index]
    assert mine[0]["delta"] == {"role": "assistant", "content": ""}
    for place, choice in enumerate(mine):
        delta = choice["delta"]
        assert ("role" in delta) == (place == 0)
        message["content"] += delta.get("content", "")
        message["reasoning_content"] += delta.get("reasoning_content", "")
        for call in delta.get("tool_calls", []):
            assert call["index"] == len(message["tool_calls"])
            message["tool_calls"].append({k: v for k, v in call.items() if k not in ("index", "id")})
        message["logprobs"] += (choice["logprobs"] or {"content": []})["content"]
        assert (choice["finish_reason"] is not None) == (place == len(mine) - 1)
        message["finish"] = choice["finish_reason"]
    assert mine[-1]["delta"] == {}
    return message


def whole(reply: dict[str, Any], index: int = 0) -> dict[str, Any]:
    choice = reply["choices"][index]
    message = choice["message"]
    return {
        "content": message["content"] or "",
        "reasoning_content": message.get("reasoning_content", ""),
        "tool_calls": [{k: v for k, v in call.items() if k != "id"} for call in message.get("tool_calls", [])],
        "finish": choice["finish_reason"],
        "logprobs": (choice["logprobs"] or {"content": []})["content"],
    }


def both(model: Any, tokenizer: Tokenizer, messages: Any = HI, **fields: Any) -> dict[str, Any]:
    """The message, which must be the same streamed and whole."""
    reply = whole(ask(model, tokenizer, messages, **fields))
    assert joined(list(ask(model, tokenizer, messages, stream=True, **fields))) == reply
    assert page_pool(model).free == 16
    return reply


def test_shape_of_a_reply(tokenizer: Tokenizer) -> None:
    reply = ask(says(tokenizer, "hello"), tokenizer, model="whatever", user="me", metadata={"a": "b"})
    assert reply["id"].startswith("chatcmpl-")
    assert isinstance(reply.pop("created"), int)
    del reply["id"]
    prompt = len(tokenizer.encode_chat(HI, enable_thinking=False))
    assert reply == {
        "object": "chat.completion",
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hello"},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": 6,
            "total_tokens": prompt + 6,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }
    json.dumps(reply, allow_nan=False)


def test_shape_of_a_stream(tokenizer: Tokenizer) -> None:
    model = says(tokenizer, "hey")
    chunks = list(ask(model, tokenizer, stream=True, stream_options={"include_usage": True}))
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
    assert [c["choices"][0]["delta"] for c in chunks[:-1]] == [
        {"role": "assistant", "content": ""},
        *({"content": c} for c in "hey"),
        {},
    ]
    assert all(c["usage"] is None for c in chunks[:-1])
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["completion_tokens"]) == ([], 4)
    assert all("usage" not in c for c in ask(model, tokenizer, stream=True))


@pytest.mark.row("R.14")
def test_finish_reasons(tokenizer: Tokenizer) -> None:
    model = says(tokenizer, "hello")
    assert both(model, tokenizer)["finish"] == "stop"
    for field in ("max_tokens", "max_completion_tokens"):
        cut = both(model, tokenizer, **{field: 3})
        assert (cut["content"], cut["finish"]) == ("hel", "length")
    assert both(model, tokenizer, max_tokens=0) | {"content": ""} == both(model, tokenizer, max_tokens=0)
    assert both(model, tokenizer, max_tokens=0)["finish"] == "length"
    stopped = both(model, tokenizer, stop=["lo", "zz"])
    assert (stopped["content"], stopped["finish"]) == ("hel", "stop")
    stopped = both(model, tokenizer, stop_token_ids=one_by_one(tokenizer, "l"))
    assert (stopped["content"], stopped["finish"]) == ("he", "stop")


@pytest.mark.row("C19")
def test_thinking_apart_from_the_answer(tokenizer: Tokenizer, cases: Path) -> None:
    opened, closed = tokenizer.think_ids or (0, 0)
    for row in json.loads((cases / "parsing" / "thinking.json").read_text()):
        ids = []
        for text, marker in row["pieces"]:
            ids += {"open": [opened], "close": [closed], "": one_by_one(tokenizer, text)}[marker]
        messages = [*HI, {"role": "user", "content": "x"}]
        model = says(tokenizer, ids)
        fields: dict[str, Any] = {"max_tokens": len(ids)} if row.get("finish") == "length" else {}
        if row.get("prompt_opened"):
            encode = type(tokenizer).encode_chat
            prompt = [*encode(tokenizer, messages), opened, *one_by_one(tokenizer, "\n")]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(LoadedTokenizer, "encode_chat", lambda *a, prompt=prompt, **k: prompt, raising=False)
                reply = both(model, tokenizer, messages, **fields)
        else:
            reply = both(model, tokenizer, messages, **fields)
        assert reply["reasoning_content"].strip() == row["reasoning"], row
        assert reply["content"].strip() in row.get("content_any", [row.get("content")]), row
        assert reply["finish"] == row.get("finish", "stop"), row


def test_reasoning_tokens_and_stops_in_the_thinking(tokenizer: Tokenizer) -> None:
    opened, closed = tokenizer.think_ids or (0, 0)
    ids = [opened, *one_by_one(tokenizer, "a STOP b"), closed, *one_by_one(tokenizer, "c STOP d")]
    model = says(tokenizer, ids)
    reply = both(model, tokenizer, stop="STOP", logprobs=True)
    assert (reply["reasoning_content"], reply["content"], reply["finish"]) == ("a STOP b", "c ", "stop")
    assert [e["token"] for e in reply["logprobs"]] == list("c STOP"), "one entry a token outside the thinking"
    assert ask(model, tokenizer)["usage"]["completion_tokens_details"] == {"reasoning_tokens": 10}


@pytest.mark.row("C20")
def test_tool_calls_cut_at_every_character(calling: Tokenizer, cases: Path) -> None:
    opened, closed = calling.think_ids or (0, 0)
    for row in json.loads((cases / "parsing" / "tool_calls.json").read_text()):
        ids, rest = [], row["text"]
        if rest.startswith("<think>"):
            inside, rest = rest.removeprefix("<think>").split("</think>")
            ids = [opened, *one_by_one(calling, inside), closed]
        for script in ([*ids, *one_by_one(calling, rest)], [*ids, *calling.encode(rest)]):
            fields: dict[str, Any] = {"tools": TOOLS, "tool_choice": row.get("tool_choice")}
            if row["finish"] == "length":
                fields["max_tokens"] = len(script)
            reply = both(says(calling, script), calling, **fields)
            calls = [
                {"name": c["function"]["name"], "arguments": json.loads(c["function"]["arguments"])}
                for c in reply["tool_calls"]
            ]
            assert calls == row["calls"], row
            assert reply["content"].strip() in row.get("content_any", [row.get("content")]), row
            assert reply["finish"] == row["finish"], row


def test_calls_are_looked_for_only_with_tools(calling: Tokenizer) -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert both(says(calling, text), calling)["content"] == text
    reply = ask(says(calling, text), calling, tools=TOOLS)
    message = reply["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"][0]["id"].startswith("call_")
    assert (message["tool_calls"][0]["type"], reply["choices"][0]["finish_reason"]) == ("function", "tool_calls")


def test_tools_that_the_template_does_not_show_are_refused(tokenizer: Tokenizer) -> None:
    model = says(tokenizer, "x")
    with pytest.raises(BadRequest, match="would have no effect") as caught:
        ask(model, tokenizer, tools=TOOLS)
    assert (caught.value.param, caught.value.code) == ("tools", "unsupported_parameter")
    assert model.prompts == []
    ask(model, tokenizer, tools=TOOLS, tool_choice="none")
    with pytest.raises(BadRequest, match="unheard_of would have no effect"):
        ask(says(tokenizer, "x"), tokenizer, chat_template_kwargs={"enable_thinking": True, "unheard_of": 1})


def test_conversation_with_calls_and_parts(tokenizer: Tokenizer) -> None:
    model = says(tokenizer, "x")
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "42"},
    ]
    ask(model, tokenizer, messages)
    text = tokenizer.decode(model.prompts[0], skip_special=False)
    assert "user\nab<|im_end|>" in text
    assert "tool\n42" in text


@pytest.mark.row("C15")
def test_messages_never_become_control_tokens(tokenizer: Tokenizer) -> None:
    model = says(tokenizer, "x")
    ask(model, tokenizer, [{"role": "user", "content": "<|im_end|>"}])
    ask(model, tokenizer, [{"role": "user", "content": "plain"}])
    end = tokenizer.id_of("<|im_end|>")
    assert model.prompts[0].count(end) == model.prompts[1].count(end)


def test_thinking_is_off_unless_asked_for(tokenizer: Tokenizer) -> None:
    model = says(tokenizer, "x")
    ask(model, tokenizer)
    ask(model, tokenizer, chat_template_kwargs={"enable_thinking": True})
    texts = [tokenizer.decode(p, skip_special=False) for p in model.prompts]
    assert [t.endswith("<think>\n\n</think>\n\n") for t in texts] == [True, False]


@pytest.mark.row("C23")
def test_choices(tokenizer: Tokenizer) -> None:
    model = says(tokenizer, "one", "two", "three")
    reply = ask(model, tokenizer, n=3)
    assert [c["index"] for c in reply["choices"]] == [0, 1, 2]
    assert [c["message"]["content"] for c in reply["choices"]] == ["one", "two", "three"]
    assert [len(p) for p in model.prompts] == [len(model.prompts[0]), 1, 1], "the prompt is read once"
    assert (reply["usage"]["completion_tokens"], reply["usage"]["prompt_tokens"]) == (4 + 4 + 6, len(model.prompts[0]))
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    model.answers = -1
    chunks = list(ask(model, tokenizer, n=3, stream=True))
    assert [joined(chunks, i)["content"] for i in range(3)] == ["one", "two", "three"]
    assert page_pool(model).free == 16


@pytest.mark.row("C29")
def test_a_session_carries_over_turns(tokenizer: Tokenizer) -> None:
    model = says(tokenizer, "one", "two")
    with Session(model) as session:
        first = ask(model, tokenizer, session=session)
        turn = [*HI, first["choices"][0]["message"], {"role": "user", "content": "more"}]
        second = ask(model, tokenizer, turn, session=session)
        assert second["choices"][0]["message"]["content"] == "two"
        cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert 0 < cached < second["usage"]["prompt_tokens"]
        assert len(model.prompts[1]) == second["usage"]["prompt_tokens"] - cached
    assert page_pool(model).free == 16


def test_logprobs(tokenizer: Tokenizer) -> None:
    model = says(tokenizer, "h\u00e9")
    reply = both(model, tokenizer, logprobs=True, top_logprobs=2)
    assert [e["bytes"] for e in reply["logprobs"]] == [[104], [0xC3], [0xA9]]
    assert reply["logprobs"][0]["token"] == "h"
    assert reply["logprobs"][0]["logprob"] == pytest.approx(0, abs=1e-6)
    assert len(reply["logprobs"][0]["top_logprobs"]) == 2
    assert reply["logprobs"][0]["top_logprobs"][0] == {
        k: reply["logprobs"][0][k] for k in ("token", "logprob", "bytes")
    }
    assert both(model, tokenizer, logprobs=True)["logprobs"][0]["top_logprobs"] == []
    assert ask(model, tokenizer, logprobs=False)["choices"][0]["logprobs"] is None


def refused(model: Any, tokenizer: Tokenizer, /, messages: Any = HI, **fields: Any) -> BadRequest:
    for stream in (False, True):
        with pytest.raises(BadRequest) as caught:
            ask(model, tokenizer, messages, **{"stream": stream} | fields)
        assert len(str(caught.value)) < 600
    assert model.plays == 0, "refused before anything runs, also when streamed"
    return caught.value


@pytest.mark.row("C21")
def test_table_of_bad_numbers(tokenizer: Tokenizer, cases: Path) -> None:
    ours = {"top_p": 200, "max_tokens": 200, "temperature": 400}
    for row in json.loads((cases / "server" / "bad_numbers.json").read_text()):
        if row.get("why") or row["body"].count('"temperature"') > 1:
            continue  # about the body, not its fields
        fields = json.loads(row["body"])
        messages, name = fields.pop("messages"), row["param"]
        if (row["status"] or ours[name]) == 400:
            assert refused(says(tokenizer, "x"), tokenizer, messages, **fields).param == name, row
        else:
            reply = ask(says(tokenizer, "x"), tokenizer, messages, **fields)
            assert reply["choices"][0]["message"]["content"] == ("" if fields.get("max_tokens") == 0 else "x")


@pytest.mark.row("C28")
def test_empty_conversations(tokenizer: Tokenizer, cases: Path) -> None:
    seen = 0
    for row in json.loads((cases / "server" / "empty_prompts.json").read_text()):
        if row["path"] == "/v1/chat/completions":
            fields = json.loads(row["body"])
            assert refused(says(tokenizer, "x"), tokenizer, **fields).param == "messages", row
            seen += 1
    assert seen >= 5
    for bad in ("hi", {"role": "user"}, [[]], [{"role": "x", "content": "a"}], [{"role": "user", "content": 5}],
                [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
                [{"role": "user", "content": [{"type": "text"}]}], [{"role": "assistant", "content": None}],
                [{"role": ["user"], "content": "a"}]):  # fmt: skip
        assert refused(says(tokenizer, "x"), tokenizer, bad).param == "messages", bad


UNSUPPORTED = {
    "response_format": {"type": "json_object"},
    "tool_choice": "required",
    "reasoning_effort": "low",
    "functions": [],
    "function_call": "auto",
    "audio": {},
    "modalities": ["audio"],
    "prediction": {},
    "web_search_options": {},
    "verbosity": "low",
    "store": True,
    "service_tier": "flex",
    "parallel_tool_calls": False,
    "best_of": 2,
    "echo": True,
    "suffix": "x",
    "guided_json": {},
    "grammar": "root ::= x",
    "adapter": "x",
    "mirostat": 1,
    "typical_p": 0.5,
    "xtc_probability": 0.5,
    "nobody_knows_this": 1,
    "prefill_chunk": 8,
    "choice": 1,
    "order": [],
}


@pytest.mark.row("C36")
@pytest.mark.parametrize("name", UNSUPPORTED)
def test_fields_without_effect_are_refused(tokenizer: Tokenizer, name: str) -> None:
    error = refused(says(tokenizer, "x"), tokenizer, **{name: UNSUPPORTED[name]})
    assert (error.code, error.param) == ("unsupported_parameter", name)


@pytest.mark.row("C36")
def test_nulls_and_what_happens_anyway_are_accepted(tokenizer: Tokenizer) -> None:
    for name in UNSUPPORTED:
        ask(says(tokenizer, "x"), tokenizer, **{name: None})
    ask(
        says(tokenizer, "x"), tokenizer, response_format={"type": "text"}, store=False, service_tier="auto",
        parallel_tool_calls=True, modalities=["text"], tools=[], tool_choice="auto", stop=[], logit_bias={},
    )  # fmt: skip


@pytest.mark.row("C35")
def test_requests_that_ask_for_too_much(tokenizer: Tokenizer, cases: Path) -> None:
    rows = [r for r in json.loads((cases / "server" / "bombs.json").read_text()) if "json_schema" not in r["body"]]
    assert len(rows) >= 5
    for row in rows:
        refused(says(tokenizer, "x"), tokenizer, **json.loads(row["body"]))


def test_fields_that_contradict_each_other(tokenizer: Tokenizer) -> None:
    model = says(tokenizer, "x")
    for fields, param in (
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"n": 17}, "n"),
        ({"seed": 2**64}, "seed"),
        ({"model": 5}, "model"),
        ({"logit_bias": {"1": 1, 1: 2}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": {"type": "function"}}, "tools"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"allow_control_in_content": True}}, "chat_template_kwargs"),
    ):
        assert refused(model, tokenizer, **fields).param == param, fields
    for options in ({"include_usage": 1}, {"x": 1}, 5):
        with pytest.raises(BadRequest):
            ask(model, tokenizer, stream=True, stream_options=options)
    with pytest.raises(BadRequest):
        ask(model, tokenizer, stream_options={"include_usage": True})


def test_logit_bias_with_the_keys_of_json(tokenizer: Tokenizer) -> None:
    (a,) = one_by_one(tokenizer, "a")
    reply = ask(says(tokenizer, "xy"), tokenizer, logit_bias={str(a): 100}, max_tokens=2, temperature=0)
    assert reply["choices"][0]["message"]["content"] == "aa"


@pytest.mark.row("C27")
def test_a_long_conversation(tokenizer: Tokenizer) -> None:
    model = says(tokenizer, "x")
    with pytest.raises(ContextFull) as caught:
        ask(model, tokenizer, [{"role": "user", "content": "a!" * 400}], stream=True)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


@pytest.mark.row("R.4")
def test_a_failure_in_a_stream_is_an_error(tokenizer: Tokenizer) -> None:
    model = says(tokenizer, "hello")

    def play(tape: Any, step: Any, fetch: Any) -> Any:
        if model.plays == 3:
            raise DeviceFailed("gone")
        return tape.play(step, fetch)

    for n in (1, 2):
        model.plays = 0
        got: list[Any] = []
        stream = ask(model, tokenizer, stream=True, n=n, hooks=Hooks(play=play))
        with pytest.raises(DeviceFailed):
            got.extend(_taken(stream, got))
        assert [c["choices"][0]["delta"].get("content") for c in got] == ["", "h", "e", "l"]
        assert all(c["choices"][0]["finish_reason"] is None for c in got)
        assert page_pool(model).free == 16


def _taken(stream: Any, into: list[Any]) -> list[Any]:
    for chunk in stream:
        into.append(chunk)
    return []


def test_closing_a_stream_ends_it(tokenizer: Tokenizer) -> None:
    for n in (1, 2):
        model = says(tokenizer, "hello")
        stream = ask(model, tokenizer, stream=True, n=n)
        next(stream)
        stream.close()
        assert page_pool(model).free == 16


@pytest.mark.parametrize("value", [5, "5", [-1], ["1"], [True], {"1": 2}])
def test_stop_token_ids_are_named_as_the_caller_names_them(value: object) -> None:
    from shohin.serve.chat_request import _sampling

    with pytest.raises(BadRequest, match="stop_token_ids") as caught:
        _sampling({"stop_token_ids": value})
    assert caught.value.param == "stop_token_ids"


@pytest.mark.parametrize(
    "function",
    [
        {"name": "f", "description": 5},
        {"name": "f", "parameters": "x"},
        {"name": "f", "parameters": []},
        {"name": 1},
        {"name": ""},
    ],
)
def test_tools_of_a_wrong_shape(calling: Tokenizer, function: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="tools must be") as caught:
        ask(says(calling, "x"), calling, tools=[{"type": "function", "function": function}])
    assert caught.value.param == "tools"


@pytest.mark.parametrize("calls", ["x", 5, {"a": 1}, ["x"], [{"function": "f"}], [{"function": {"name": 2}}]])
def test_tool_calls_of_a_wrong_shape(calling: Tokenizer, calls: object) -> None:
    said = [*HI, {"role": "assistant", "content": None, "tool_calls": calls}]
    with pytest.raises(BadRequest, match=r"messages\[1\]\.tool_calls") as caught:
        ask(says(calling, "x"), calling, said)
    assert caught.value.param == "messages"


def test_a_prompt_that_can_not_fit_is_refused_before_it_is_cut(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty megabytes would take minutes to cut into tokens."""
    from shohin.serve.completion import check_length, stream_generate

    model, long = says(tokenizer, "x"), "the ring " * (30 << 17)
    monkeypatch.setattr(Tokenizer, "encode", lambda *given, **named: pytest.fail("cut"))
    monkeypatch.setattr(Tokenizer, "encode_chat", lambda *given, **named: pytest.fail("cut"))
    with pytest.raises(ContextFull):
        ask(model, tokenizer, [{"role": "user", "content": long}])
    with pytest.raises(ContextFull):
        stream_generate(model, tokenizer, long)
    check_length(tokenizer, ("x" * 10_000,), 16)  # short enough to count exactly
    check_length(tokenizer, (long,), len(long))


def test_a_bad_template_setting_is_named_as_the_callers_field(tokenizer: Tokenizer) -> None:
    with pytest.raises(BadRequest) as caught:
        ask(says(tokenizer, "x"), tokenizer, chat_template_kwargs={"style": object()})
    assert caught.value.param == "chat_template_kwargs"
