"""Text in, text out: a prompt continued as it stands, token by token or whole."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from shohin.errors import BadRequest, ContextFull
from shohin.formats.text import Tokenizer
from shohin.generate import Generation, Hooks, Session, Timings
from shohin.generate import generate as generate_ids
from shohin.generate.loop import check_model
from shohin.models import Model
from shohin.serve.defaults import check_kind, settings
from shohin.serve.parsing import StopMatcher
from shohin.serve.peak_memory import peak_memory_bytes

__all__ = ["Completion", "Response", "check_length", "check_stops", "complete", "stream_generate"]

MOST_STOPS = 64
LONGEST_STOP = 1024
# Characters that are cut into tokens without a thought.
CUT_AT_ONCE = 1 << 16
SHORTENED = 4


@dataclass(frozen=True)
class Response:
    """One generated token, in the shape of mlx-lm's responses.

    text: what became certain with it, possibly nothing; all texts together are the answer. logprobs: of the token,
    None unless asked for; top_logprobs: the best (id, logprob) pairs. from_draft: whether a draft proposed it (never
    yet). prompt_tps, generation_tps: tokens a second, 0 before there is one to measure. peak_memory: of the process,
    10^9 bytes. finish_reason: None, ``stop`` or ``length``; with it the answer ends.
    """

    text: str
    token: int
    logprobs: float | None
    top_logprobs: tuple[tuple[int, float], ...]
    from_draft: bool
    prompt_tokens: int
    prompt_tps: float
    generation_tokens: int
    generation_tps: float
    peak_memory: float
    finish_reason: str | None


class Completion(Iterator[Response]):
    """The responses of one answer, made as they are asked for; ``close`` or a ``with`` ends it early.

    prompt: its ids. timings: counts and seconds so far. seed: the one in use, drawn where none was given.
    """

    def __init__(self, generation: Generation, prompt: list[int] | ArrayLike, responses: Generator[Response]) -> None:
        self.prompt = prompt
        self.timings: Timings = generation.timings
        self.seed = generation.seed
        self._responses = responses

    def __next__(self) -> Response:
        return next(self._responses)

    def close(self) -> None:
        """End now; harmless at any time."""
        self._responses.close()

    def __enter__(self) -> Completion:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def stream_generate(
    model: Model,
    tokenizer: Tokenizer,
    prompt: str | ArrayLike,
    *,
    stop: str | list[str] | None = None,
    special: bool = False,
    session: Session | None = None,
    hooks: Hooks | None = None,
    **params: Any,
) -> Completion:
    """Continue a prompt, text or ids, as it stands (no chat template); an iterator of ``Response``.

    stop: strings before which the answer ends, at most 64 of at most 1024 characters; they match generated text only.
    special: read control tokens that a text prompt spells out; otherwise they are ordinary characters. session: a
    prompt cache. params: settings of ``SamplingParams`` by name, and ``prefill_chunk``; what is not given comes from
    the model's file, else it is temperature 0.5, top_p 0.85, top_k 20. The answer ends at the model's end ids (not
    with ``ignore_eos``), before a stop string, at ``max_tokens``, or with the context.

    Errors as ``shohin.generate`` over ids, before the first response where they concern the request.
    """
    check_model(model)
    check_kind("tokenizer", tokenizer, Tokenizer)
    matcher = StopMatcher(check_stops(stop))
    chunk = {"prefill_chunk": params.pop("prefill_chunk")} if "prefill_chunk" in params else {}
    wanted = settings(tokenizer, params)
    if isinstance(prompt, str):
        check_length(tokenizer, (prompt,), model.context)
    ids = tokenizer.encode(prompt, special=special) if isinstance(prompt, str) else prompt
    generation = generate_ids(model, ids, wanted, stop_ids=tokenizer.eos_ids, session=session, hooks=hooks, **chunk)
    return Completion(generation, ids, _responses(generation, tokenizer, matcher))


def complete(model: Model, tokenizer: Tokenizer, prompt: str | ArrayLike, **params: Any) -> str:
    """The whole text that ``stream_generate`` gives in pieces."""
    return "".join(response.text for response in stream_generate(model, tokenizer, prompt, **params))


def check_length(tokenizer: Tokenizer, texts: Iterable[str], context: int) -> None:
    """ContextFull for texts that have more tokens than the context even if each were the longest of the vocabulary.

    Cutting them first would take minutes. Normal forms of Unicode shorten a text by less than ``SHORTENED``.
    """
    size = sum(len(text) for text in texts) // SHORTENED
    if size <= CUT_AT_ONCE:
        return
    least = size // max(len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size))
    if least >= context:
        raise ContextFull(least, context)


def check_stops(stop: object) -> list[str]:
    """Stop strings as a list; BadRequest for anything else, an empty one, too many and too long ones."""
    listed = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(listed, list | tuple) or len(listed) > MOST_STOPS:
        shown = f"{len(listed)} strings" if isinstance(listed, list | tuple) else f"of type {type(stop).__name__}"
        raise BadRequest(f"stop is {shown}, text or a list of at most {MOST_STOPS} was expected", param="stop")
    for entry in listed:
        if not isinstance(entry, str) or not 1 <= len(entry) <= LONGEST_STOP:
            shown = f"text of {len(entry)} characters" if isinstance(entry, str) else f"of type {type(entry).__name__}"
            raise BadRequest(f"a stop is {shown}, text of 1 to {LONGEST_STOP} characters was expected", param="stop")
    return list(listed)


def _responses(generation: Generation, tokenizer: Tokenizer, matcher: StopMatcher) -> Generator[Response]:
    decoder = tokenizer.stream()
    with generation:
        for token in generation:
            # An end id is no text, whatever its spelling.
            text = matcher.push("" if token.finish == "stop" else decoder.push(token.id))
            if token.finish and matcher.stopped is None:
                text += matcher.push(decoder.flush())
                text += matcher.flush()
            finish = "stop" if matcher.stopped is not None else token.finish
            times = generation.timings
            yield Response(
                text=text,
                token=token.id,
                logprobs=token.logprob,
                top_logprobs=token.top,
                from_draft=False,
                prompt_tokens=times.prompt_tokens,
                prompt_tps=_rate(times.prompt_tokens - times.cached_tokens, times.prefill_seconds),
                generation_tokens=times.generated_tokens,
                generation_tps=_rate(times.generated_tokens - 1, times.decode_seconds),
                peak_memory=peak_memory_bytes() / 1e9,
                finish_reason=finish,
            )
            if finish:
                return


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
