"""Prefill in chunks, then one submission a token: ids in, ids out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator
from collections.abc import Sequence as Ordered
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shohin.devices import Run, Step, Tape, Ticket
from shohin.errors import BadRequest, BadState, Cancelled, ContextFull, DeviceFailed
from shohin.generate.logprobs import logprobs
from shohin.generate.pages import Sequence, page_pool
from shohin.generate.params import SamplingParams, whole
from shohin.generate.sampling import Sampler
from shohin.generate.session import Session
from shohin.generate.token import Token

if TYPE_CHECKING:
    from shohin.models import Model

__all__ = ["Generation", "Hooks", "Timings", "generate"]

CHUNK = 512
# Steps that a device may be given at a time, and end ids that it can watch for.
RUN, MOST_ENDS = 64, 63


def _play(tape: Tape, step: Step, fetch: Ordered[str]) -> Ticket:
    return tape.play(step, fetch)


@dataclass(frozen=True)
class Hooks:
    """What a caller may watch or replace.

    progress(done, total): prompt tokens read so far, after every chunk. cancel(): asked before every submission, true
    ends the generation with Cancelled. play(tape, step, fetch): plays one step, ``tape.play`` by default; profiles
    hook in here.
    """

    progress: Callable[[int, int], None] | None = None
    cancel: Callable[[], bool] | None = None
    play: Callable[[Tape, Step, Ordered[str]], Ticket] = _play


@dataclass
class Timings:
    """Counts of tokens, and seconds spent in this generation (a slow consumer does not count).

    cached_tokens is the part of prompt_tokens that a session had read before. prefill_seconds ends with the first
    token's choice.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0


class Generation(Iterator[Token]):
    """The tokens of one answer, made as they are asked for.

    ``close``, leaving a ``with``, an error, Ctrl-C or the end all return the cache's pages.
    """

    def __init__(self, job: _Job) -> None:
        self.timings = job.timings
        self.seed = job.sampler.seed
        self._tokens = _answer(job)

    def __next__(self) -> Token:
        return next(self._tokens)

    def close(self) -> None:
        """End now; harmless at any time."""
        self._tokens.close()

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def generate(
    model: Model,
    ids: ArrayLike,
    params: SamplingParams | None = None,
    *,
    stop_ids: Collection[int] = (),
    session: Session | None = None,
    prefill_chunk: int = CHUNK,
    hooks: Hooks | None = None,
) -> Generation:
    """Read a prompt of ids [n] and return an iterator over the tokens that follow.

    stop_ids: the model's own end ids, to which ``params.stop_ids`` are added; ``params.ignore_eos`` leaves these out.
    session: a prompt cache to resume from and to leave the rows of this answer in. prefill_chunk: rows of one prefill
    step, 1 to 512; it changes time and memory, never the answer.

    Prompt and answer together never exceed the context: the answer then ends with ``length``.
    Raises, before anything runs, BadRequest for a bad prompt, chunk, biased or stop id, and ContextFull for a prompt
    that leaves no room for one token; while running, DeviceFailed, Cancelled, and OutOfMemory where other sequences
    hold the pages. After an error no token follows.
    """
    params = SamplingParams() if params is None else params
    if not isinstance(params, SamplingParams):
        raise BadRequest(f"params is a {type(params).__name__}, SamplingParams was expected", param="params")
    check_model(model)
    vocabulary = model.config.vocabulary
    prompt = check_prompt(ids, vocabulary)
    if len(prompt) >= model.context:
        raise ContextFull(len(prompt), model.context)
    room = model.context - len(prompt)
    limit = room if params.max_tokens is None else min(room, params.max_tokens)
    ends = frozenset(whole("stop_ids", i, 0, 2**31 - 1) for i in stop_ids)
    job = _Job(
        model,
        prompt,
        Sampler(params, vocabulary, prompt),
        limit,
        params.stop_ids if params.ignore_eos else params.stop_ids | ends,
        whole("prefill_chunk", prefill_chunk, 1, CHUNK),
        session,
        hooks or Hooks(),
        Timings(prompt_tokens=len(prompt)),
    )
    return Generation(job)


def check_model(model: object) -> None:
    """BadRequest unless ``model`` records tapes, as what ``build`` makes does."""
    if not hasattr(model, "tape"):
        raise BadRequest(f"model is of type {type(model).__name__}, what build() makes was expected", param="model")


def check_prompt(ids: ArrayLike, vocabulary: int) -> NDArray[np.int32]:
    """A prompt as int32 [n]; BadRequest for an empty one, anything but ids, and ids outside the vocabulary."""
    try:
        array = np.asarray(ids)
    except (ValueError, TypeError, OverflowError):
        array = np.empty(0, object)
    if array.size == 0 and array.ndim == 1 and array.dtype != object:
        raise BadRequest("the prompt is empty; at least one token is needed", param="prompt")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise BadRequest(
            f"the prompt is an array of {array.dtype} with {array.ndim} dimensions, a list of ids was expected",
            param="prompt",
        )
    wrong = np.flatnonzero((array < 0) | (array >= vocabulary))
    if len(wrong):
        at = int(wrong[0])
        raise BadRequest(
            f"prompt id {array[at]} at index {at} is outside the vocabulary of {vocabulary} ids", param="prompt"
        )
    return array.astype(np.int32)


@dataclass(frozen=True)
class _Job:
    """Everything one answer needs; only ``timings`` and the sampler's history change."""

    model: Model
    prompt: NDArray[np.int32]
    sampler: Sampler
    limit: int
    ends: frozenset[int]
    chunk: int
    session: Session | None
    hooks: Hooks
    timings: Timings = field(default_factory=Timings)


def _answer(job: _Job) -> Generator[Token, None, None]:
    """All tokens of an answer; the pages are returned however this ends."""
    times, sampler = job.timings, job.sampler
    with _sequence(job) as sequence:
        begin = perf_counter()
        times.cached_tokens = sequence.position
        ticket = _prefill(job, sequence)
        if job.limit == 0:
            times.prefill_seconds += perf_counter() - begin
            return
        token = _token(job, ticket, 0)
        times.prefill_seconds += perf_counter() - begin
        later = (_ahead if _runs_ahead(job) else _one_by_one)(job, sequence, token)
        for index in range(1, job.limit + 1):
            times.generated_tokens = index
            sampler.history.add(token.id)
            yield token
            if token.finish:
                later.close()
                return
            begin = perf_counter()
            token = next(later)
            times.decode_seconds += perf_counter() - begin


def _one_by_one(job: _Job, sequence: Sequence, token: Token) -> Generator[Token, None, None]:
    """The tokens after ``token``, each submitted when the one before is known."""
    for index in range(1, job.limit):
        sequence.grow(1)
        step = Step.one(token.id, sequence.position, sequence.table)
        ticket = _submit(job, sequence, "decode", step, last=True)
        token = _token(job, ticket, index)
        yield token


def _runs_ahead(job: _Job) -> bool:
    """Whether nothing on the host decides a token, so that a device may run ahead of it."""
    if not job.model.device.runs_ahead or job.hooks.play is not _play or len(job.ends) > MOST_ENDS:
        return False
    return not job.sampler.needs_logits or (job.model.draws and job.sampler.on_device(1) is not None)


def _ahead(job: _Job, sequence: Sequence, token: Token) -> Generator[Token, None, None]:
    """The tokens after ``token``, from a device that picks or draws them and keeps several steps in flight."""
    drawn = job.sampler.needs_logits
    index, tape = 1, job.model.tape("decode", 1, wanted=1, drawn=drawn)
    stops, begin = sorted(job.ends), (lambda: _hand_over(job)) if drawn else (lambda: None)
    while index < job.limit:
        count = min(RUN, job.limit - index)
        sequence.grow(count)
        step = Step.of([token.id], positions=[sequence.position], pages=sequence.table, wanted=[0])
        for chosen, status in tape.follow(Run(step, count, stops, begin)):
            _ask_cancel(job)
            _check_status(job, status, sequence.position)
            sequence.advance(np.array([token.id], np.int32))
            token = _named(job, chosen, index)
            yield token
            index += 1


def _hand_over(job: _Job) -> None:
    """Tell the device how to draw, from the first token on that the caller has not seen."""
    sampler = job.sampler
    choice = sampler.on_device(job.timings.generated_tokens)
    assert choice is not None, "asked before the run"
    job.model.drawing.write([choice], sampler.history.words()[None] if choice.penalised else None)


def _prefill(job: _Job, sequence: Sequence) -> Ticket:
    """Read what the sequence does not hold yet, chunk by chunk; the ticket of the last chunk."""
    total = len(job.prompt)
    # All pages at once: a prompt that does not fit what is free fails before it costs anything.
    sequence.grow(total - sequence.position)
    while True:
        first = sequence.position
        ids = job.prompt[first : first + job.chunk]
        rows = len(ids)
        step = Step.of(ids, positions=np.arange(first, first + rows), pages=sequence.table, wanted=[rows - 1])
        ticket = _submit(job, sequence, "prefill", step, last=first + rows == total)
        if job.hooks.progress:
            job.hooks.progress(sequence.position, total)
        if sequence.position == total:
            return ticket


def _submit(job: _Job, sequence: Sequence, role: str, step: Step, *, last: bool) -> Ticket:
    """One submission over rows that follow the sequence; their last row's outputs, checked to be finite."""
    _ask_cancel(job)
    fetch = ["status"] if not last else ["status", "logits"] if job.sampler.needs_logits else ["status", "ids"]
    ticket = job.hooks.play(job.model.tape(role, step.rows, wanted=1), step, fetch)
    _check_status(job, int(ticket["status"][0]), sequence.position + step.rows - 1)
    sequence.advance(step.tokens)
    return ticket


def _ask_cancel(job: _Job) -> None:
    if job.hooks.cancel and job.hooks.cancel():
        raise Cancelled(f"cancelled after {job.timings.generated_tokens} generated tokens")


def _check_status(job: _Job, status: int, position: int) -> None:
    if status != 0:
        raise DeviceFailed(
            f"device {job.model.device.name}: the logits after position {position}, for generated token "
            f"{job.timings.generated_tokens}, are not finite{_overflow(job.model)}; "
            f"the model's weights or the device are faulty"
        )


def _overflow(model: Model) -> str:
    """A cache of float16 ends at 65504, which keys of some models pass."""
    if getattr(model, "kv", None) != "f16":
        return ""
    return ", perhaps because a key or value is too large for the f16 cache: try --kv int8 (kv=)"


def _token(job: _Job, ticket: Ticket, index: int) -> Token:
    """Choose generated token ``index`` from a step's outputs."""
    sampler, vocabulary = job.sampler, job.model.config.vocabulary
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    if sampler.needs_logits:
        logits = ticket["logits"][0, :vocabulary]
        chosen = sampler.choose(logits, index)
        if sampler.params.logprobs is not None:
            logprob, top = logprobs(logits, chosen, sampler.params.logprobs)
    else:
        chosen = int(ticket["ids"][0])
    return _named(job, chosen, index, logprob, top)


def _named(
    job: _Job, chosen: int, index: int, logprob: float | None = None, top: tuple[tuple[int, float], ...] = ()
) -> Token:
    """Generated token ``index``, and whether the answer ends with it."""
    vocabulary = job.model.config.vocabulary
    if not 0 <= chosen < vocabulary:
        raise BadState(f"the device picked id {chosen}, outside the vocabulary of {vocabulary} ids")
    finish = "stop" if chosen in job.ends else "length" if index + 1 == job.limit else None
    return Token(chosen, logprob, top, finish)


@contextmanager
def _sequence(job: _Job) -> Iterator[Sequence]:
    """The session's sequence, or one of its own that ends with the answer."""
    if job.session is not None:
        with job.session.lend(job.model, job.prompt) as sequence:
            yield sequence
        return
    sequence = Sequence(page_pool(job.model))
    try:
        yield sequence
    finally:
        sequence.release()
