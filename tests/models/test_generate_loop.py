"""The loop against a scripted model: what is played and fetched, how answers end, and that pages always come back."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shohin.devices import Step, Ticket
from shohin.errors import BadRequest, BadState, Cancelled, ContextFull, DeviceFailed, OutOfMemory
from shohin.generate import Hooks, SamplingParams, Session, generate, page_pool
from shohin.kernels.attend import PAGE

VOCABULARY = 12


@dataclass
class ScriptedTape:
    model: ScriptedModel
    role: str
    rows: int

    def play(self, step: Step, fetch: Sequence[str] = ()) -> Ticket:
        assert step.rows <= self.rows
        self.model.plays.append((self.role, step, tuple(fetch)))
        self.model.fault(len(self.model.plays) - 1)
        places = [int(step.pages[0, p // PAGE]) * PAGE + p % PAGE for p in range(int(step.positions.max()) + 1)]
        for position, token in zip(step.positions, step.tokens, strict=True):
            self.model.rows[places[position]] = int(token)
        seen = [self.model.rows[place] for place in places]
        return Ticket({name: self.model.output(name, seen) for name in fetch}, 0.0, 0.0)


@dataclass(eq=False)
class ScriptedModel:
    """The best next token is ``script(ids so far)``, where the ids are read back through the page table."""

    context: int = 256
    pages: int = 4
    script: Callable[[list[int]], int] = lambda ids: (sum(ids) + len(ids)) % 10
    fault: Callable[[int], None] = lambda play: None
    poisoned: int = -1
    plays: list[tuple[str, Step, tuple[str, ...]]] = field(default_factory=list)
    rows: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Two rows more than ids that may be picked, the best of all: the loop must never see them.
        self.config = SimpleNamespace(vocabulary=VOCABULARY, rows=VOCABULARY + 2)
        self.cache = SimpleNamespace(pages=self.pages)
        self.device = SimpleNamespace(name="scripted", runs_ahead=False)

    def tape(self, role: str, rows: int, *, wanted: int | None = None, outputs: Sequence[str] = ()) -> ScriptedTape:
        assert wanted == 1
        return ScriptedTape(self, role, rows)

    def output(self, name: str, seen: list[int]) -> np.ndarray:
        best = self.script(seen)
        if name == "status":
            return np.array([len(seen) - 1 == self.poisoned], np.int32)
        if name == "ids":
            return np.array([best], np.int32)
        logits = np.full((1, VOCABULARY + 2), -1.0, np.float32)
        logits[0, best] = 2.0
        logits[0, VOCABULARY:] = 9.0
        return logits


def run(model: Any, ids: Any, session: Session | None = None, hooks: Hooks | None = None, **settings: Any) -> list[int]:
    kwargs = {k: settings.pop(k) for k in ("stop_ids", "prefill_chunk") if k in settings}
    settings.setdefault("max_tokens", 8)
    return [t.id for t in generate(model, ids, SamplingParams(**settings), session=session, hooks=hooks, **kwargs)]


def collect(tokens: Any, into: list[int]) -> None:
    for token in tokens:
        into.append(token.id)


def plain(model: ScriptedModel, ids: list[int], n: int) -> list[int]:
    text = list(ids)
    for _ in range(n):
        text.append(model.script(text))
    return text[len(ids) :]


@pytest.mark.row("E.6", "E.9")
@pytest.mark.parametrize("chunk", [1, 3, 8, 16, 100, 512])
def test_one_submission_a_chunk_and_a_token(chunk: int) -> None:
    model = ScriptedModel()
    prompt = [i % 7 for i in range(33)]
    assert run(model, prompt, prefill_chunk=chunk) == plain(model, prompt, 8)
    chunks = -(-33 // chunk)
    assert [role for role, _, _ in model.plays] == ["prefill"] * chunks + ["decode"] * 7
    positions = np.concatenate([step.positions for _, step, _ in model.plays])
    assert positions.tolist() == list(range(33 + 7))
    assert page_pool(model).free == 4


def test_greedy_fetches_an_id_and_nothing_more() -> None:
    model = ScriptedModel()
    run(model, [1, 2, 3], prefill_chunk=2)
    assert [fetch for _, _, fetch in model.plays] == [("status",)] + [("status", "ids")] * 8
    for settings in ({"temperature": 0.5}, {"logprobs": 0}, {"repetition_penalty": 1.5}, {"logit_bias": {1: 1}}):
        model.plays.clear()
        run(model, [1, 2, 3], **settings)
        assert {fetch for _, _, fetch in model.plays} == {("status", "logits")}


def test_rows_beyond_the_vocabulary_are_never_picked() -> None:
    model = ScriptedModel()
    for settings in ({"logprobs": 20}, {"temperature": 2.0, "seed": 1}):
        tokens = list(generate(model, [1], SamplingParams(max_tokens=40, **settings)))
        assert all(t.id < VOCABULARY for t in tokens)
        assert all(i < VOCABULARY for t in tokens for i, _ in t.top)


def test_finish_reasons_and_stop_ids() -> None:
    model = ScriptedModel(script=lambda ids: len(ids) % 10)

    def finish(**kwargs: Any) -> list[tuple[int, str | None]]:
        stop_ids = kwargs.pop("stop_ids", ())
        params = SamplingParams(**({"max_tokens": 6} | kwargs))
        return [(t.id, t.finish) for t in generate(model, [0, 0], params, stop_ids=stop_ids)]

    assert finish() == [(2, None), (3, None), (4, None), (5, None), (6, None), (7, "length")]
    assert finish(stop_ids=[4, 9]) == [(2, None), (3, None), (4, "stop")]
    assert finish(max_tokens=1) == [(2, "length")]
    assert finish(max_tokens=1, stop_ids=[2]) == [(2, "stop")], "an end id on the last allowed token is a stop"


def test_stop_ids_of_the_request_and_the_model() -> None:
    model = ScriptedModel(script=lambda ids: len(ids) % 10)

    def last(params: SamplingParams, ends: Any) -> tuple[int, str | None]:
        token = list(generate(model, [0, 0], params, stop_ids=ends))[-1]
        return token.id, token.finish

    assert last(SamplingParams(max_tokens=6, stop_ids=[5]), [4]) == (4, "stop")
    assert last(SamplingParams(max_tokens=6, stop_ids=[4]), [5]) == (4, "stop")
    assert last(SamplingParams(max_tokens=6, stop_ids=[5], ignore_eos=True), [4]) == (5, "stop")
    assert last(SamplingParams(max_tokens=6, ignore_eos=True), frozenset({4})) == (7, "length")


@pytest.mark.row("C27")
def test_context_limit() -> None:
    model = ScriptedModel(context=100)
    for n in (101, 100):
        with pytest.raises(ContextFull, match=f"{n} tokens and the context holds 100") as caught:
            generate(model, [1] * n, SamplingParams(max_tokens=10))
        assert (caught.value.prompt_tokens, caught.value.context) == (n, 100)
        assert caught.value.code == "context_length_exceeded"
    assert model.plays == [], "nothing runs for a refused prompt"
    tokens = list(generate(model, [1] * 99, SamplingParams(max_tokens=10)))
    assert [t.finish for t in tokens] == ["length"]
    for most in (None, 10**12):
        tokens = list(generate(model, [1] * 90, SamplingParams(max_tokens=most)))
        assert [t.finish for t in tokens] == [None] * 9 + ["length"]


@pytest.mark.row("C28")
def test_nothing_to_read() -> None:
    model = ScriptedModel()
    for empty in ([], (), np.zeros(0, np.int32)):
        with pytest.raises(BadRequest, match="empty") as caught:
            generate(model, empty)
        assert caught.value.param == "prompt"
    for bad in (
        [[]],
        [[1]],
        [[1], [1, 2]],
        "",
        "12",
        None,
        5,
        [1.0],
        ["1"],
        [None],
        [True],
        [1, -1],
        [12],
        [13],
        [10**30],
        {1},
    ):
        with pytest.raises(BadRequest) as caught:
            generate(model, bad)  # type: ignore[arg-type]
        assert caught.value.param == "prompt", bad
    with pytest.raises(BadRequest, match="id 12 at index 1 is outside the vocabulary of 12"):
        generate(model, [1, 12])
    assert model.plays == []


def test_other_arguments_are_checked_before_anything_runs() -> None:
    model = ScriptedModel()
    for kwargs in ({"prefill_chunk": 0}, {"prefill_chunk": 513}, {"prefill_chunk": True}, {"stop_ids": [-1]}):
        with pytest.raises(BadRequest, match=next(iter(kwargs))):
            generate(model, [1], **kwargs)  # type: ignore[arg-type]
    for settings in ({"logit_bias": {12: 1}}, {"stop_ids": [12]}):
        with pytest.raises(BadRequest, match="12 ids"):
            generate(model, [1], SamplingParams(**settings))
    with pytest.raises(BadRequest, match="SamplingParams"):
        generate(model, [1], {"max_tokens": 3})  # type: ignore[arg-type]
    assert model.plays == []


def test_no_tokens_asked_reads_the_prompt_only() -> None:
    model = ScriptedModel()
    with Session(model) as session:
        assert run(model, [1, 2, 3], session, max_tokens=0) == []
        assert (len(model.plays), session.ids.tolist()) == (1, [1, 2, 3])
    assert page_pool(model).free == 4


class Broken(Exception):
    pass


@pytest.mark.row("R.4")
@pytest.mark.parametrize("at", [0, 1, 2, 5])
@pytest.mark.parametrize("error", [DeviceFailed("gone"), Broken("?"), KeyboardInterrupt()])
def test_an_error_ends_the_answer_and_frees_the_pages(at: int, error: BaseException) -> None:
    def fault(play: int) -> None:
        if play == at:
            raise error

    model = ScriptedModel(fault=fault)
    expected = plain(model, [1, 2, 3], 8)
    got: list[int] = []
    generation = generate(model, [1, 2, 3], SamplingParams(max_tokens=8), prefill_chunk=2)
    with pytest.raises(type(error)):
        collect(generation, got)
    assert got == expected[: max(0, at - 1)], "tokens before the fault are right, and none follows it"
    assert list(generation) == []
    assert page_pool(model).free == 4


@pytest.mark.row("H.20")
@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0}])
def test_a_poisoned_row_names_its_token(settings: dict[str, Any]) -> None:
    model = ScriptedModel(poisoned=4)
    got: list[int] = []
    with pytest.raises(DeviceFailed, match="position 4, for generated token 2"):
        collect(generate(model, [1, 2, 3], SamplingParams(max_tokens=8, **settings)), got)
    assert len(got) == 2
    with pytest.raises(DeviceFailed, match="position 4, for generated token 0"):
        run(ScriptedModel(poisoned=4), [0] * 9, prefill_chunk=5)
    assert run(model, [1, 2], max_tokens=2) == plain(model, [1, 2], 2), "others go on"
    assert page_pool(model).free == 4


@pytest.mark.parametrize(("kv", "hinted"), [("f16", True), ("int8", False), ("f32", False)])
def test_an_f16_cache_is_named_as_a_possible_cause(kv: str, hinted: bool) -> None:
    model: Any = ScriptedModel(poisoned=4)
    model.kv = kv
    with pytest.raises(DeviceFailed) as caught:
        run(model, [1, 2, 3], max_tokens=8)
    assert ("--kv int8" in str(caught.value)) == hinted


def test_a_pick_outside_the_vocabulary_is_an_error() -> None:
    model = ScriptedModel(script=lambda ids: VOCABULARY)
    with pytest.raises(BadState, match="id 12"):
        run(model, [1])
    assert page_pool(model).free == 4


def test_pages_come_back_from_every_early_end() -> None:
    model = ScriptedModel()
    pool = page_pool(model)
    closed = generate(model, [1, 2])
    next(closed)
    assert pool.free == 3
    closed.close()
    closed.close()
    assert (pool.free, list(closed)) == (4, [])
    with generate(model, [1, 2]) as used:
        next(used)
    assert pool.free == 4
    dropped = generate(model, [1, 2])
    next(dropped)
    del dropped
    gc.collect()
    assert pool.free == 4
    generate(model, [1, 2]).close()
    assert pool.free == 4


@pytest.mark.row("E.6")
def test_cancelling() -> None:
    model = ScriptedModel()
    asked = []

    def cancel() -> bool:
        asked.append(len(model.plays))
        return len(asked) > 4

    got: list[int] = []
    generation = generate(model, [1, 2, 3, 4], prefill_chunk=2, hooks=Hooks(cancel=cancel))
    with pytest.raises(Cancelled, match="after 3 generated tokens"):
        collect(generation, got)
    assert asked == [0, 1, 2, 3, 4], "asked before every submission"
    assert (len(got), page_pool(model).free) == (3, 4)


def test_progress_and_timings() -> None:
    model, seen = ScriptedModel(), []
    hooks = Hooks(progress=lambda done, total: seen.append((done, total)))
    generation = generate(model, [1] * 10, SamplingParams(max_tokens=5), prefill_chunk=4, hooks=hooks)
    assert len(list(generation)) == 5
    assert seen == [(4, 10), (8, 10), (10, 10)]
    times = generation.timings
    assert (times.prompt_tokens, times.cached_tokens, times.generated_tokens) == (10, 0, 5)
    assert times.prefill_seconds > 0
    assert times.decode_seconds > 0


def test_a_play_hook_sees_every_step() -> None:
    model, rows = ScriptedModel(), []

    def play(tape: Any, step: Step, fetch: Sequence[str]) -> Ticket:
        rows.append(step.rows)
        return tape.play(step, fetch)

    assert run(model, [1] * 5, hooks=Hooks(play=play), max_tokens=3) == plain(model, [1] * 5, 3)
    assert rows == [5, 1, 1]


def test_two_answers_at_once_share_the_pool() -> None:
    model = ScriptedModel(context=128, pages=3)
    first = generate(model, [1] * 70, SamplingParams(max_tokens=4))
    next(first)
    second = generate(model, [2] * 70, SamplingParams(max_tokens=4))
    with pytest.raises(OutOfMemory, match="2 more pages of 64 positions, 1 of the cache's 3 are free"):
        next(second)
    assert len(model.plays) == 1, "a prompt without pages is refused before it is read"
    assert len(list(first)) == 3
    assert len(run(model, [2] * 70)) == 8


@pytest.mark.row("C29", "E.16")
def test_a_session_reads_only_what_is_new() -> None:
    model = ScriptedModel()

    def ask(ids: list[int], session: Session, n: int = 3) -> tuple[list[int], int]:
        model.plays.clear()
        generation = generate(model, ids, SamplingParams(max_tokens=n), session=session)
        answer = [t.id for t in generation]
        assert answer == plain(model, ids, n)
        read = sum(step.rows for role, step, _ in model.plays if role == "prefill")
        assert generation.timings.cached_tokens == len(ids) - read
        return answer, read

    with Session(model) as session:
        first, read = ask([1, 2, 3, 4], session)
        assert read == 4
        assert session.ids.tolist() == [1, 2, 3, 4, *first[:-1]], "the last token was never played"
        assert ask([1, 2, 3, 4, *first, 9, 9], session)[1] == 3, "the last token of the answer and what follows it"
        assert ask([1, 2, 3, 4], session)[1] == 1, "a fully cached prompt computes its last token"
        assert ask([1, 2, 5], session)[1] == 1
        assert ask([7, 7], session)[1] == 2
        assert ask([7] * 130, session)[1] == 128
        assert ask([7] * 3, session)[1] == 1
        assert page_pool(model).free == 3
        session.reset()
        assert (session.ids.tolist(), page_pool(model).free) == ([], 4)
        assert ask([7] * 3, session)[1] == 3
    assert page_pool(model).free == 4


def test_what_a_session_keeps_after_an_early_end() -> None:
    model = ScriptedModel()
    session = Session(model)
    generation = generate(model, [1, 2, 3], session=session)
    first, second = next(generation), next(generation)
    with pytest.raises(BadState, match="generates"):
        next(generate(model, [1], session=session))
    with pytest.raises(BadState, match="generates"):
        session.close()
    generation.close()
    assert session.ids.tolist() == [1, 2, 3, first.id]
    assert second.id == plain(model, [1, 2, 3], 2)[1]

    def broken(play: int) -> None:
        raise DeviceFailed("gone")

    model.fault = broken
    with pytest.raises(DeviceFailed):
        run(model, [1, 2, 3], session)
    assert session.ids.tolist() == [], "nobody knows what a failed device left behind"
    session.close()
    session.close()
    assert page_pool(model).free == 4
    with pytest.raises(BadState, match="closed"):
        run(model, [1], session)
    with pytest.raises(BadState, match="closed"):
        session.reset()


def test_a_cancelled_answer_keeps_its_finished_rows() -> None:
    model = ScriptedModel()
    with Session(model) as session:
        with pytest.raises(Cancelled):
            run(model, [1, 2, 3, 4], session, Hooks(cancel=lambda: len(model.plays) >= 1), prefill_chunk=3)
        assert session.ids.tolist() == [1, 2, 3]
        assert run(model, [1, 2, 3, 4], session) == plain(model, [1, 2, 3, 4], 8)


def test_a_session_belongs_to_its_model_and_is_not_leaked() -> None:
    model, other = ScriptedModel(), ScriptedModel()
    session = Session(model)
    with pytest.raises(BadState, match="one model"):
        run(other, [1], session)
    run(model, [1], session)
    assert page_pool(model).free == 3
    del session
    gc.collect()
    assert page_pool(model).free == 4


@pytest.mark.row("C23")
def test_seeds_repeat_and_choices_differ() -> None:
    flat = ScriptedModel()
    flat.output = lambda name, seen: (  # type: ignore[method-assign]
        np.zeros(1, np.int32) if name == "status" else np.zeros((1, VOCABULARY), np.float32)
    )

    def ask(session: Session | None = None, **settings: Any) -> tuple[int, ...]:
        return tuple(run(flat, [1, 2, 3], session, temperature=1.0, max_tokens=12, **settings))

    alone = ask(seed=42)
    for _ in range(100):
        run(flat, [1], temperature=1.0, max_tokens=1)
    assert ask(seed=42) == alone
    with Session(flat) as session:
        assert [ask(session, seed=42) for _ in range(2)] == [alone, alone], "after a cached prefix"
    assert len({ask(seed=42, choice=c) for c in range(3)}) == 3
    assert len({ask(seed=s) for s in (None, None, -1, -1)}) == 4
