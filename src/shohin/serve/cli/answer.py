"""``shohin run``: one prompt, one answer."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from shohin.errors import BadRequest
from shohin.generate import Hooks
from shohin.models import Model
from shohin.serve.cli.output import emit, note, progress_bar, watched, write_text
from shohin.serve.completion import Completion, Response, check_length, stream_generate
from shohin.serve.defaults import LoadedTokenizer, chat_options
from shohin.serve.loading import load, prepare
from shohin.serve.profile import LayerProfile, TokenProfile, parse_profile


@dataclass(frozen=True)
class Job:
    """What a command was asked: keyword arguments of ``load``, sampling settings and stop strings, profile, output."""

    loading: Mapping[str, Any]
    sampling: Mapping[str, Any]
    profile: str | None
    as_json: bool


@dataclass(frozen=True)
class Loaded:
    """A model ready to answer, and the seconds that took."""

    model: Model
    tokenizer: LoadedTokenizer
    seconds: float


def load_model(name: str, job: Job) -> Loaded:
    """Load with a progress bar where somebody watches."""
    begin = perf_counter()
    with progress_bar() as bar:
        model, tokenizer = load(name, progress=bar, **job.loading)
    return Loaded(model, tokenizer, perf_counter() - begin)


def prepare_answer(loaded: Loaded, prompt: int) -> None:
    """Compile what an answer needs, with a progress bar where somebody watches: the first time takes a while."""
    with progress_bar() as bar:
        prepare(loaded.model, prompt, progress=bar)


@contextmanager
def profiled(job: Job, model: Model) -> Iterator[Hooks]:
    """The hooks of the profile that was asked for; its summary comes at the end, also after Ctrl-C."""
    mode = parse_profile(job.profile)
    if mode is None:
        yield Hooks()
        return
    profile = TokenProfile(model.bytes_per_token) if mode == "token" else LayerProfile()
    try:
        yield Hooks(play=profile.play)
    finally:
        profile.finish()


def prompt_ids(loaded: Loaded, text: str, *, raw: bool, system: str | None, think: bool | None) -> list[int]:
    """The prompt's ids: through the chat template, or as it stands (control tokens in it count then)."""
    tokenizer = loaded.tokenizer
    if not raw and tokenizer.chat_template is None:
        note("shohin: the model has no chat template; the text is continued as it stands (--raw)")
        raw = True
    check_length(tokenizer, (text, system or ""), loaded.model.context)
    if raw:
        return tokenizer.encode(text, special=True)
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages.append({"role": "user", "content": text})
    return tokenizer.encode_chat(messages, **chat_options(None if think is None else {"enable_thinking": think}))


def answer(name: str, text: str, job: Job, *, raw: bool, system: str | None, think: bool | None) -> None:
    """Load, answer, print."""
    parse_profile(job.profile)
    if not text:
        raise BadRequest("the prompt is empty: give -p TEXT, or text on standard input", param="prompt")
    loaded = load_model(name, job)
    ids = prompt_ids(loaded, text, raw=raw, system=system, think=think)
    prepare_answer(loaded, len(ids))
    with profiled(job, loaded.model) as hooks:
        completion = stream_generate(loaded.model, loaded.tokenizer, ids, hooks=hooks, **job.sampling)
        with completion:
            responses = collect(completion, quiet=job.as_json)
    if job.as_json:
        emit(summary(loaded, completion, responses))
    else:
        write_text("\n")
        rates(completion)


def collect(completion: Completion, *, quiet: bool) -> list[Response]:
    """All responses, their text written as it comes; after Ctrl-C the terminal's line is ended."""
    responses = []
    try:
        for response in completion:
            if not quiet and response.text:
                write_text(response.text)
            responses.append(response)
    except KeyboardInterrupt:
        if not quiet:
            write_text("\n")
        raise
    return responses


def summary(loaded: Loaded, completion: Completion, responses: list[Response]) -> dict[str, Any]:
    """The object of ``shohin run --json``."""
    times = completion.timings
    return {
        "text": "".join(r.text for r in responses),
        "ids": [r.token for r in responses],
        "prompt_tokens": times.prompt_tokens,
        "generated_tokens": times.generated_tokens,
        "finish_reason": responses[-1].finish_reason if responses else "length",
        "seconds": {
            "load": round(loaded.seconds, 4),
            "prefill": round(times.prefill_seconds, 4),
            "decode": round(times.decode_seconds, 4),
        },
        "seed": completion.seed,
        "device": loaded.model.device.name,
        "kernels": loaded.model.device.kernels,
        "activations": loaded.model.activations,
    }


def rates(completion: Completion) -> None:
    """Tokens a second, where somebody watches."""
    times = completion.timings
    if not watched(sys.stderr) or not times.generated_tokens:
        return
    read = times.prompt_tokens - times.cached_tokens
    prefill = read / times.prefill_seconds if times.prefill_seconds else 0.0
    decode = (times.generated_tokens - 1) / times.decode_seconds if times.decode_seconds else 0.0
    note(f"[{read} tokens read, {prefill:.1f}/s; {times.generated_tokens} written, {decode:.1f}/s]")
