"""OpenAI's chat completion as a Python call: dicts in, a dict or an iterator of chunk dicts out."""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any

from shohin.formats.text import Tokenizer
from shohin.generate import Generation, Hooks, Session, Token, generate
from shohin.generate.loop import check_model
from shohin.generate.sampling import fresh_seed
from shohin.models import Model
from shohin.serve.answer_reader import AnswerReader, Piece
from shohin.serve.chat_request import ChatRequest, chat_request
from shohin.serve.defaults import check_kind
from shohin.serve.parsing import ToolCall

__all__ = ["create_chat_completion"]


def create_chat_completion(
    model: Model,
    tokenizer: Tokenizer,
    /,
    messages: Any = None,
    *,
    session: Session | None = None,
    hooks: Hooks | None = None,
    **fields: Any,
) -> dict[str, Any] | Iterator[dict[str, Any]]:
    """Answer a conversation with the model's own template; fields are those of OpenAI's chat completions.

    temperature, top_p, top_k, min_p, presence_penalty, frequency_penalty, repetition_penalty, logit_bias, seed,
    max_tokens or max_completion_tokens, stop, stop_token_ids, ignore_eos, n (at most 16), logprobs, top_logprobs,
    stream, stream_options.include_usage, tools, tool_choice (``auto``, ``none``), chat_template_kwargs; ``model`` and
    ``user`` are labels. Anything else is a BadRequest with the code ``unsupported_parameter``. Settings not given are
    those of ``stream_generate``; thinking is off unless ``chat_template_kwargs`` says ``enable_thinking: true``.

    Thinking comes as ``reasoning_content`` beside ``content``, calls as ``tool_calls``. ``logprobs.content`` has one
    entry for every token outside the thinking. session: a prompt cache, which the ``n`` choices share in any case.
    Everything about the request is checked before this returns; with ``stream`` the rest happens while chunks are
    taken, and closing the iterator ends it.
    """
    check_model(model)
    check_kind("tokenizer", tokenizer, Tokenizer)
    request = chat_request(tokenizer, messages, fields, model.context)
    if request.params.seed is None:
        # One draw for the request, so that its choices are sure to differ.
        request = replace(request, params=replace(request.params, seed=fresh_seed()))
    job = _Job(model, tokenizer, request, hooks, _Head(f"chatcmpl-{secrets.token_hex(12)}", int(time.time())))
    # The first choice checks prompt and settings against the model; it runs when its first token is asked for.
    first = job.generation(0, session)
    return job.stream(first, session) if request.stream else job.whole(first, session)


@dataclass(frozen=True)
class _Head:
    id: str
    created: int


@dataclass
class _Usage:
    """Tokens of all choices."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    reasoning: int = 0

    def add(self, generation: Generation, reader: AnswerReader, first: bool) -> None:
        """Count a finished choice; the prompt is counted once, and what a later choice reuses of it is no saving."""
        times = generation.timings
        if first:
            self.prompt, self.cached = times.prompt_tokens, times.cached_tokens
        self.completion += times.generated_tokens
        self.reasoning += reader.reasoning_tokens

    def shown(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        }


@dataclass(frozen=True)
class _Job:
    model: Model
    tokenizer: Tokenizer
    request: ChatRequest
    hooks: Hooks | None
    head: _Head

    def generation(self, choice: int, session: Session | None) -> Generation:
        r = self.request
        params = replace(r.params, choice=choice)
        ends = self.tokenizer.eos_ids
        return generate(self.model, r.prompt, params, stop_ids=ends, session=session, hooks=self.hooks)

    def whole(self, first: Generation, session: Session | None) -> dict[str, Any]:
        choices, usage = [_Choice() for _ in range(self.request.choices)], _Usage()
        for index, piece, entry in self._pieces(first, session, usage):
            choices[index].add(piece, entry)
        scored = self.request.params.logprobs is not None
        return self._shape(
            "chat.completion", [choice.shown(i, scored) for i, choice in enumerate(choices)], usage=usage.shown()
        )

    def stream(self, first: Generation, session: Session | None) -> Generator[dict[str, Any]]:
        usage, begun = _Usage(), -1
        extra: dict[str, Any] = {"usage": None} if self.request.include_usage else {}
        for index, piece, entry in self._pieces(first, session, usage):
            if index > begun:
                begun = index
                yield self._chunk(index, {"role": "assistant", "content": ""}, None, None, extra)
            delta = _delta(piece)
            if delta or entry:
                yield self._chunk(index, delta, entry, None, extra)
            if piece.finish:
                yield self._chunk(index, {}, None, piece.finish, extra)
        if self.request.include_usage:
            yield self._shape("chat.completion.chunk", [], usage=usage.shown())

    def _pieces(
        self, first: Generation, session: Session | None, usage: _Usage
    ) -> Iterator[tuple[int, Piece, dict[str, Any] | None]]:
        """Every piece of every choice, one choice after the other: (choice, piece, entry of its logprobs)."""
        own = Session(self.model) if session is None and self.request.choices > 1 else None
        try:
            for index in range(self.request.choices):
                shared = session or own
                generation = first if index == 0 and own is None else self.generation(index, shared)
                reader = AnswerReader(self.tokenizer, self.request.prompt, self.request.stop, calls=self.request.calls)
                yield from self._choice(index, generation, reader)
                usage.add(generation, reader, first=index == 0)
        finally:
            if own is not None:
                own.close()

    def _choice(
        self, index: int, generation: Generation, reader: AnswerReader
    ) -> Iterator[tuple[int, Piece, dict[str, Any] | None]]:
        with generation:
            for token in generation:
                piece = reader.push(token)
                entry = self._entry(token) if piece.aloud and token.logprob is not None else None
                yield index, piece, entry
                if piece.finish:
                    return
        yield index, Piece(finish="length"), None  # max_tokens 0

    def _entry(self, token: Token) -> dict[str, Any]:
        assert token.logprob is not None
        top = [self._scored(i, logprob) for i, logprob in token.top]
        return {**self._scored(token.id, token.logprob), "top_logprobs": top}

    def _scored(self, token: int, logprob: float) -> dict[str, Any]:
        raw = self.tokenizer.token_bytes(token)
        return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}

    def _chunk(
        self, index: int, delta: dict[str, Any], entry: dict[str, Any] | None, finish: str | None, extra: dict[str, Any]
    ) -> dict[str, Any]:
        logprobs = {"content": [entry], "refusal": None} if entry else None
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return self._shape("chat.completion.chunk", [choice], **extra)

    def _shape(self, kind: str, choices: list[dict[str, Any]], **extra: Any) -> dict[str, Any]:
        return {
            "id": self.head.id,
            "object": kind,
            "created": self.head.created,
            "model": self.request.name,
            "choices": choices,
            **extra,
        }


class _Choice:
    """Collects the pieces of one choice."""

    def __init__(self) -> None:
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[ToolCall] = []
        self._entries: list[dict[str, Any]] = []
        self._finish: str | None = None

    def add(self, piece: Piece, entry: dict[str, Any] | None) -> None:
        self._reasoning.append(piece.reasoning)
        self._content.append(piece.content)
        self._calls.extend(piece.calls)
        self._entries.extend([entry] if entry else [])
        self._finish = piece.finish

    def shown(self, index: int, scored: bool) -> dict[str, Any]:
        content, reasoning = "".join(self._content), "".join(self._reasoning)
        message: dict[str, Any] = {"role": "assistant", "content": content or (None if self._calls else "")}
        if reasoning:
            message["reasoning_content"] = reasoning
        if self._calls:
            message["tool_calls"] = [_call(call) for call in self._calls]
        logprobs = {"content": self._entries, "refusal": None} if scored else None
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": self._finish}


def _delta(piece: Piece) -> dict[str, Any]:
    delta: dict[str, Any] = {}
    if piece.reasoning:
        delta["reasoning_content"] = piece.reasoning
    if piece.content:
        delta["content"] = piece.content
    if piece.calls:
        delta["tool_calls"] = [{"index": call.index, **_call(call)} for call in piece.calls]
    return delta


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
