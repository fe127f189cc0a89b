"""A chat request in OpenAI's fields, checked before anything runs. A field either has its effect or is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shohin.errors import BadRequest
from shohin.formats.text import Tokenizer
from shohin.generate import SamplingParams
from shohin.generate.params import MAX_LOGPROBS, whole
from shohin.serve.completion import check_length, check_stops
from shohin.serve.defaults import LoadedTokenizer, chat_options, settings, unsupported

__all__ = ["ChatRequest", "chat_request"]

MOST_CHOICES = 16
# Fields that go to SamplingParams under their own names.
_SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "ignore_eos",
)
# Accepted without effect, because none is promised: they label a request, or ask for what happens anyway.
_HARMLESS = ("user", "metadata", "safety_identifier", "prompt_cache_key")
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "response_format": ({"type": "text"},),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "parallel_tool_calls": (True,),
    "modalities": (["text"],),
    "reasoning_effort": (),
}
_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True)
class ChatRequest:
    """prompt: ids. params: without the choice index. calls: whether tool calls are looked for in the answer.

    name: the model's name in the reply.
    """

    prompt: list[int]
    params: SamplingParams
    stop: list[str]
    choices: int
    stream: bool
    include_usage: bool
    calls: bool
    name: str


def chat_request(tokenizer: Tokenizer, messages: object, fields: Mapping[str, Any], context: int) -> ChatRequest:
    """Check ``fields`` (null means absent) and encode the conversation. BadRequest names the field at fault; fields
    that are not supported, or not known, are refused with the code ``unsupported_parameter``. ContextFull, before
    anything is cut into tokens, for messages too long for ``context`` in any case.
    """
    left = {name: value for name, value in fields.items() if value is not None}
    for name in _HARMLESS:
        left.pop(name, None)
    _only(left)
    stream = _flag(left, "stream")
    usage = _stream_options(left, stream)
    tools, calls = _tools(left)
    options = _options(left)
    name = _name(left, tokenizer)
    choices = whole("n", left.pop("n", 1), 1, MOST_CHOICES)
    stop = check_stops(left.pop("stop", None))
    params = settings(tokenizer, _sampling(left))
    if left:
        raise unsupported(min(left), "the field would have no effect here")
    said = _messages(messages)
    check_length(tokenizer, (message.get("content") or "" for message in said), context)
    try:
        prompt = tokenizer.encode_chat(said, tools=tools, **chat_options(options))
    except BadRequest as error:
        if error.param not in options:
            raise
        raise BadRequest(str(error), param="chat_template_kwargs", code=error.code) from None
    return ChatRequest(prompt, params, stop, choices, stream, usage, calls, name)


def _only(left: dict[str, Any]) -> None:
    for name, values in _ONLY.items():
        if name in left and left.pop(name) not in values:
            known = f"only {' or '.join(map(repr, values))} is" if values else "no value of it is"
            raise unsupported(name, known)


def _flag(left: dict[str, Any], name: str) -> bool:
    value = left.pop(name, False)
    if not isinstance(value, bool):
        raise BadRequest(f"{name} is of type {type(value).__name__}, true or false was expected", param=name)
    return value


def _stream_options(left: dict[str, Any], stream: bool) -> bool:
    options = left.pop("stream_options", None)
    if options is None:
        return False
    if not isinstance(options, Mapping) or not stream:
        raise BadRequest("stream_options is an object that goes with stream: true", param="stream_options")
    unknown = sorted(map(str, options.keys() - {"include_usage"}))
    if unknown:
        raise unsupported(f"stream_options.{unknown[0]}", "only include_usage is")
    return _flag(dict(options), "include_usage")


def _tools(left: dict[str, Any]) -> tuple[list[Any] | None, bool]:
    """The tools that the prompt shows, and whether calls are looked for. With tool_choice ``none`` neither."""
    tools, choice = left.pop("tools", None), left.pop("tool_choice", "auto")
    if tools is not None and (not isinstance(tools, list | tuple) or not all(_is_function(tool) for tool in tools)):
        raise BadRequest(
            "tools must be a list of {type: function, function: {name: text, description: text, parameters: object}}",
            param="tools",
        )
    if choice not in ("auto", "none"):
        raise unsupported("tool_choice", "only 'auto' and 'none' are; a call can't be forced")
    return (list(tools), True) if tools and choice == "auto" else (None, False)


def _is_function(tool: object) -> bool:
    function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        return False
    described, parameters = function.get("description"), function.get("parameters")
    return isinstance(described, str | None) and isinstance(parameters, Mapping | None)


def _is_call(call: object) -> bool:
    function = (
        call.get("function") if isinstance(call, Mapping) and call.get("type", "function") == "function" else None
    )
    return isinstance(function, Mapping) and isinstance(function.get("name"), str)


def _options(left: dict[str, Any]) -> dict[str, Any]:
    options = left.pop("chat_template_kwargs", {})
    if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
        raise BadRequest("chat_template_kwargs must be an object", param="chat_template_kwargs")
    reserved = sorted(options.keys() & {"messages", "tools", "add_generation_prompt", "allow_control_in_content"})
    if reserved:
        raise BadRequest(f"chat_template_kwargs can't set {reserved[0]}", param="chat_template_kwargs")
    return dict(options)


def _name(left: dict[str, Any], tokenizer: Tokenizer) -> str:
    """The loaded model's own name; a name that the caller gives is a label and is not repeated as if it ran."""
    asked = left.pop("model", None)
    if asked is not None and not isinstance(asked, str):
        raise BadRequest(f"model is of type {type(asked).__name__}, text was expected", param="model")
    return tokenizer.name if isinstance(tokenizer, LoadedTokenizer) else "model"


def _sampling(left: dict[str, Any]) -> dict[str, Any]:
    found = {name: left.pop(name) for name in _SAMPLING if name in left}
    both = [left.pop(name) for name in ("max_tokens", "max_completion_tokens") if name in left]
    if len(both) == 2 and both[0] != both[1]:
        raise BadRequest("max_tokens and max_completion_tokens differ; give one", param="max_tokens")
    if both:
        found["max_tokens"] = both[0]
    if "stop_token_ids" in left:
        found["stop_ids"] = _stop_token_ids(left.pop("stop_token_ids"))
    if "logit_bias" in left:
        found["logit_bias"] = _bias(left.pop("logit_bias"))
    if "logprobs" in left or "top_logprobs" in left:
        found["logprobs"] = _logprobs(left)
    return found


def _stop_token_ids(value: object) -> list[int]:
    if not isinstance(value, list | tuple | set | frozenset):
        raise BadRequest("stop_token_ids must be a list of ids", param="stop_token_ids")
    return [whole("stop_token_ids", i, 0, 2**31 - 1) for i in value]


def _bias(value: object) -> object:
    """JSON's keys are text: those that spell an id count as one; the rest is left for SamplingParams to refuse."""
    if not isinstance(value, Mapping):
        return value
    pairs = {(int(k) if isinstance(k, str) and k.isascii() and k.isdigit() and len(k) < 11 else k): v
             for k, v in value.items()}  # fmt: skip
    if len(pairs) != len(value):
        raise BadRequest("logit_bias names an id twice", param="logit_bias")
    return pairs


def _logprobs(left: dict[str, Any]) -> int | None:
    wanted, top = _flag(left, "logprobs"), left.pop("top_logprobs", None)
    if top is not None:
        top = whole("top_logprobs", top, 0, MAX_LOGPROBS)
        if not wanted:
            raise BadRequest("top_logprobs goes with logprobs: true", param="top_logprobs")
    return (top or 0) if wanted else None


def _messages(messages: object) -> list[Any]:
    if not isinstance(messages, list | tuple) or not messages:
        raise BadRequest("messages must be a list of at least one message", param="messages")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: object, where: str) -> Mapping[str, Any]:
    """A message with its content as text; content may be missing only beside tool calls."""
    if not isinstance(message, Mapping) or message.get("role") not in _ROLES:
        raise BadRequest(f"{where} must be an object whose role is one of {', '.join(_ROLES)}", param="messages")
    content, calls = message.get("content"), message.get("tool_calls")
    if calls is not None and (not isinstance(calls, list | tuple) or not all(map(_is_call, calls))):
        raise BadRequest(
            f"{where}.tool_calls must be a list of {{type: function, function: {{name: text, arguments: ...}}}}",
            param="messages",
        )
    if content is None:
        if message["role"] == "assistant" and message.get("tool_calls"):
            return message
        raise BadRequest(f"{where} has no content", param="messages")
    if isinstance(content, list | tuple):
        content = "".join(_part(part, where) for part in content)
    if not isinstance(content, str):
        raise BadRequest(f"{where}.content must be text or a list of text parts", param="messages")
    return {**message, "content": content}


def _part(part: object, where: str) -> str:
    if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise BadRequest(f"{where}.content has a part of type {str(kind)[:40]!r}, only text is supported",
                         param="messages", code="unsupported_parameter")  # fmt: skip
    text: str = part["text"]
    return text
