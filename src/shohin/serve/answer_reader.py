"""What the tokens of a chat answer say: thinking, text of the answer, tool calls, and why it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shohin.formats.text import Tokenizer
from shohin.generate import Token
from shohin.serve.parsing import Parsed, Said, StopMatcher, ThinkingSplitter, ToolCall, ToolCallParser, opens_thinking

__all__ = ["AnswerReader", "Piece"]


@dataclass(frozen=True)
class Piece:
    """What became certain with one token. aloud: the token is not part of the thinking, nor the end id.

    finish: None, ``stop``, ``length`` or ``tool_calls``; nothing comes after it.
    """

    reasoning: str = ""
    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    aloud: bool = False
    finish: str | None = None


class AnswerReader:
    """Reads one choice. Stop strings are looked for in the answer only, not in the thinking."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stop: list[str], *, calls: bool) -> None:
        markers = tokenizer.think_ids
        opened = opens_thinking(prompt, markers, tokenizer.token_bytes)
        self._decoder = tokenizer.stream()
        self._thinking = ThinkingSplitter(markers, prompt_opened=opened)
        self._stops = StopMatcher(stop)
        self._calls = ToolCallParser(enabled=calls)
        self.reasoning_tokens = 0

    def push(self, token: Token) -> Piece:
        """One generated token."""
        before = self._thinking.thinking
        said = Said() if token.finish == "stop" else self._thinking.push(token.id, self._decoder.push(token.id))
        quiet = before or self._thinking.thinking
        self.reasoning_tokens += quiet
        aloud = not quiet and token.finish != "stop"
        parsed = self._calls.push(self._stops.push(said.content))
        if self._stops.stopped is None and token.finish is None:
            return Piece(said.reasoning, parsed.content, parsed.calls, aloud)
        return self._end(said.reasoning, parsed, aloud, token.finish or "stop")

    def _end(self, reasoning: str, parsed: Parsed, aloud: bool, finish: str) -> Piece:
        rest = Parsed()
        if self._stops.stopped is None:
            said = self._thinking.finish(self._decoder.flush())
            reasoning += said.reasoning
            rest = self._calls.push(self._stops.push(said.content) + self._stops.flush())
        last = self._calls.finish()
        if self._stops.stopped is not None:
            finish = "stop"
        if self._calls.calls and finish == "stop":
            finish = "tool_calls"
        content = parsed.content + rest.content + last.content
        return Piece(reasoning, content, parsed.calls + rest.calls + last.calls, aloud, finish)
