"""Draws on the device against the host's sampler, id by id, and against the probabilities they are drawn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mutants
import numpy as np
import pytest
from emulated import REAL
from numpy.typing import NDArray
from opening import CUDA, WEBGPU, open_device

from shohin.devices import Device, Step, Tape
from shohin.devices.webgpu import shader
from shohin.errors import BadShape
from shohin.generate.params import SamplingParams
from shohin.generate.sampling import Sampler
from shohin.kernels.pick import pick
from shohin.kernels.sample import BIASES, GREEDY, PICKED, SAMPLED, Choice, pack_choices, sample
from shohin.kernels.sample.op import Drawing
from shohin.kernels.sample.random import uniform
from shohin.kernels.sample.settings import SETTINGS
from shohin.kernels.sample.stages import survivors

ROWS, SLOTS = 3, 5
Floats = NDArray[np.float32]


@dataclass
class Bench:
    """A tape of ``pick`` and ``sample``, and what it reads."""

    device: Device
    vocabulary: int
    width: int

    def __post_init__(self) -> None:
        d = self.device
        self.logits = d.buffer("logits", (ROWS, self.width))
        self.drawing = Drawing.on(d, ROWS, SLOTS, self.vocabulary)
        self.tape = self._tape()

    def _tape(self) -> Tape:
        tape = self.device.recorder("test", ROWS)
        ids, status = (self.device.buffer(name, (ROWS,), np.int32) for name in ("ids", "status"))
        pick(tape, self.logits, ids, status, vocabulary=self.vocabulary)
        sample(tape, self.logits, self.drawing, ids, status, vocabulary=self.vocabulary)
        for name, buffer in (("ids", ids), ("status", status), ("settings", self.drawing.settings)):
            tape.output(name, buffer, "all")
        tape.output("history", self.drawing.history, "all")
        return tape.finish()

    def choose(self, choices: Sequence[Choice], logits: Floats | None = None) -> None:
        """What the next plays draw by, and from."""
        self.drawing.write(choices)
        if logits is not None:
            self.device.write(self.logits, logits)

    def remember(self, history: NDArray[np.int32]) -> None:
        """The whole history."""
        self.device.write(self.drawing.history, history)

    def play(self, wanted: int = ROWS) -> Mapping[str, NDArray[Any]]:
        """One step."""
        step = Step.of(np.zeros(ROWS, int), wanted=np.arange(wanted))
        return self.tape.play(step, ("ids", "status", "settings", "history")).outputs


def logits_of(rng: np.random.Generator, vocabulary: int, kind: str) -> Floats:
    """peaked: like a model's; flat: all tokens likely; tied: many equal logits; equal: nothing but ties."""
    x = rng.standard_normal((ROWS, vocabulary))
    if kind == "peaked":
        x = x * 2.5
        x[np.arange(ROWS)[:, None], rng.integers(0, vocabulary, (ROWS, 12))] += rng.uniform(3, 12, (ROWS, 12))
    if kind == "tied":
        x = np.round(x * 2) / 2
    if kind == "equal":
        x[:] = np.round(x[:, :1] * 4)
    return x.astype(np.float32)


def choices_of(rng: np.random.Generator, vocabulary: int) -> SamplingParams:
    """Settings in which every filter and every penalty is off now and then."""

    def maybe(value: Any, off: Any) -> Any:
        return value if rng.random() < 0.6 else off

    ids = rng.choice(vocabulary, min(vocabulary, 9), replace=False)
    plain = rng.random() < 0.4
    return SamplingParams(
        temperature=float(maybe(rng.uniform(0.2, 2), 1.0)),
        top_k=int(maybe(rng.integers(1, vocabulary + 1) if rng.random() < 0.3 else rng.integers(1, 60), 0)),
        top_p=float(maybe(rng.uniform(0, 1), 1.0)),
        min_p=float(maybe(rng.uniform(0, 0.3), 0.0)),
        repetition_penalty=1.0 if plain else float(maybe(rng.uniform(0.5, 2), 1.0)),
        presence_penalty=0.0 if plain else float(maybe(rng.uniform(-2, 2), 0.0)),
        frequency_penalty=0.0 if plain else float(maybe(rng.uniform(-2, 2), 0.0)),
        logit_bias={} if plain else maybe({int(i): float(rng.uniform(-9, 9)) for i in ids}, {}),
        seed=int(rng.integers(0, 2**63)) * 2 + int(rng.integers(2)),
        choice=int(rng.integers(0, 2**32)),
    )


def choice_of(p: SamplingParams, index: int, slot: int) -> Choice:
    kind = (GREEDY if p.penalised else PICKED) if p.greedy else SAMPLED
    filters = {n: getattr(p, n) for n in ("temperature", "top_k", "top_p", "min_p", "logit_bias", "choice")}
    penalties = {n: getattr(p, n) for n in ("repetition_penalty", "presence_penalty", "frequency_penalty")}
    return Choice(kind, seed=p.seed or 0, index=index, slot=slot, **filters, **penalties)


def is_rounding(device: Device, sampler: Sampler, logits: Floats, index: int, got: int) -> bool:
    """Whether the draw falls so near the border of two ids that float rounding decides between them.

    cuda computes in float64 and rounds each share to SHARE_BITS, 63 less those of the vocabulary. webgpu computes a
    share in float32: its argument, up to 24 where the share matters, is rounded twice, and exp adds four units.
    """
    if device.name == "host":
        return False
    room = len(logits) * 2.0 ** (len(logits).bit_length() - 63) if device.name == "cuda" else (2 * 24 + 4) * 2.0**-24
    p, number = sampler.params, uniform(sampler.seed, sampler.params.choice, index)
    if p.greedy:
        x = survivors(logits, p, sampler.history, ("penalties",)).logits
        return bool(x[got] >= x.max() - 4 * 2.0**-24 * np.abs(x).max())
    for top_p in {p.top_p, p.top_p * (1 - room), min(1, p.top_p * (1 + room))}:
        for min_p in {p.min_p, p.min_p * (1 - room), min(1, p.min_p * (1 + room))}:
            found = survivors(logits, replace(p, top_p=top_p, min_p=min_p), sampler.history)
            sums = np.exp(found.logits - found.logits.max(), dtype=np.float64).cumsum()
            at = np.searchsorted(found.of(np.arange(len(logits))), got)
            if at < len(sums) and found.id(int(at)) == got:
                before = sums[at - 1] if at else 0.0
                if before / sums[-1] - room <= number <= sums[at] / sums[-1] + room:
                    return True
    return False


def played_like_the_host(
    device: Device, rng: np.random.Generator, vocabulary: int, kind: str, settings: int, steps: int = 3
) -> int:
    """Every id of some steps is the host sampler's; returns how many would be others with temperature first."""
    bench = Bench(device, vocabulary, vocabulary + 3)
    others = 0
    for _ in range(settings):
        logits = np.full((ROWS, bench.width), 1e9, np.float32)
        logits[:, :vocabulary] = logits_of(rng, vocabulary, kind)
        params = [choices_of(rng, vocabulary) for _ in range(ROWS)]
        slots = rng.permutation(SLOTS)[:ROWS]
        prompts = [rng.integers(0, vocabulary, 20).astype(np.int32) for _ in range(ROWS)]
        samplers = [Sampler(p, vocabulary, prompt) for p, prompt in zip(params, prompts, strict=True)]
        history = np.zeros((SLOTS, vocabulary), np.int32)
        for slot, prompt in zip(slots, prompts, strict=True):
            history[slot, prompt] = 1
        bench.remember(history)
        start = int(rng.integers(0, 2**40))
        bench.choose([choice_of(p, start, int(s)) for p, s in zip(params, slots, strict=True)], logits)
        for index in range(start, start + steps):
            got = bench.play()["ids"]
            for i, sampler in enumerate(samplers):
                want = sampler.choose(logits[i, :vocabulary], index)
                if got[i] != want:
                    told = f"{kind} row {i}, token {index - start}, {got[i]} for {want}: {sampler.params}"
                    assert is_rounding(device, sampler, logits[i, :vocabulary], index, int(got[i])), told
                first = Sampler(
                    replace(sampler.params, order=("temperature", "penalties", "min_p", "top_p", "top_k")),
                    vocabulary,
                    prompts[i],
                )
                first.history = sampler.history
                others += first.choose(logits[i, :vocabulary], index) != want
                sampler.history.add(int(got[i]))
    return others


@pytest.fixture(params=["host-float32", *CUDA, *WEBGPU])
def sampling(request: pytest.FixtureRequest) -> Device:
    return open_device(request.param)


@pytest.fixture(params=[*CUDA, *WEBGPU])
def gpu(request: pytest.FixtureRequest) -> Device:
    return open_device(request.param)


@pytest.mark.row("M.19")
@pytest.mark.parametrize("kind", ["peaked", "flat", "tied", "equal"])
@pytest.mark.parametrize("vocabulary", [1, 77, 5000])
def test_ids_are_those_of_the_host(sampling: Device, rng: np.random.Generator, vocabulary: int, kind: str) -> None:
    others = played_like_the_host(sampling, rng, vocabulary, kind, settings=12)
    assert others > 0 or vocabulary == 1 or kind == "equal", "another order of stages would show"


@pytest.mark.row("M.19")
@pytest.mark.parametrize("kind", ["peaked", "flat"])
def test_ids_over_a_real_vocabulary(gpu: Device, rng: np.random.Generator, kind: str) -> None:
    played_like_the_host(gpu, rng, 151936, kind, settings=3, steps=2)


@pytest.mark.row("M.19")
def test_a_full_bin_is_searched_without_a_list(gpu: Device, rng: np.random.Generator) -> None:
    """More equal logits than the list holds, and a cut in the middle of them."""
    vocabulary = 20000
    bench = Bench(gpu, vocabulary, vocabulary)
    logits = np.zeros((ROWS, vocabulary), np.float32)
    logits[:, 15000:] = np.float32(1e-3)
    sets = [dict(top_k=12345), dict(top_p=0.77), dict(top_k=9000, top_p=0.31)]
    params = [SamplingParams(temperature=1, seed=7, **s) for s in sets]
    samplers = [Sampler(p, vocabulary, np.empty(0, np.int32)) for p in params]
    bench.remember(np.zeros((SLOTS, vocabulary), np.int32))
    bench.choose([choice_of(p, 0, i) for i, p in enumerate(params)], logits)
    for index in range(4):
        got = bench.play()["ids"]
        assert [s.choose(logits[i], index) for i, s in enumerate(samplers)] == got.tolist()


@pytest.mark.row("M.19")
def test_greedy_with_penalties(sampling: Device, rng: np.random.Generator) -> None:
    bench = Bench(sampling, 3000, 3000)
    logits = logits_of(rng, 3000, "tied")
    tops = logits.argmax(axis=1)
    params = [
        SamplingParams(repetition_penalty=3.0),
        SamplingParams(logit_bias={int(tops[1]): -50.0, 2999: 30.0}),
        SamplingParams(frequency_penalty=2.0),
    ]
    samplers = [Sampler(p, 3000, tops[:1].astype(np.int32)) for p in params]
    history = np.zeros((SLOTS, 3000), np.int32)
    history[:ROWS, tops[0]] = 1
    bench.remember(history)
    bench.choose([choice_of(p, 0, i) for i, p in enumerate(params)], logits)
    for index in range(5):
        got = bench.play()["ids"].tolist()
        assert got == [s.choose(logits[i], index) for i, s in enumerate(samplers)]
        assert index > 0 or got[:2] != tops[:2].tolist(), "the penalties change something"
        for s, token in zip(samplers, got, strict=True):
            s.history.add(token)


@pytest.mark.row("H.20")
def test_rows_that_nobody_draws_stay_as_they_are(sampling: Device, rng: np.random.Generator) -> None:
    bench = Bench(sampling, 2500, 2500)
    logits = logits_of(rng, 2500, "flat")
    logits[1, 1234] = np.nan
    history = rng.integers(0, 5, (SLOTS, 2500)).astype(np.int32)
    bench.remember(history)
    drawn = Choice(SAMPLED, seed=3, index=9)
    bench.choose([Choice(PICKED), replace(drawn, slot=1), replace(drawn, slot=2)], logits)
    found = bench.play()
    assert found["ids"][0] == logits[0].argmax() and found["status"].tolist() == [0, 1, 0]
    assert found["ids"][1] == -1
    changed = history.copy()
    changed[2, found["ids"][2]] += 2
    np.testing.assert_array_equal(found["history"], changed)
    assert found["settings"].view(SETTINGS)[:, 0]["index"].tolist() == [0, 9, 10]
    again = bench.play(wanted=2)
    np.testing.assert_array_equal(again["history"], changed)  # row 2 is not wanted now


@pytest.mark.row("M.19")
def test_draws_have_their_probabilities(gpu: Device, rng: np.random.Generator) -> None:
    """Chi-squared over 1,500 draws from eight tokens; a temperature applied twice, or half of one, is far outside."""
    bench = Bench(gpu, 8, 8)
    logits = np.tile(np.linspace(0, 2.1, 8, dtype=np.float32), (ROWS, 1))
    bench.remember(np.zeros((SLOTS, 8), np.int32))
    seed = int(rng.integers(2**60))
    # Another choice in each row: equal rows would draw the same ids, and 500 would pass for 1,500.
    bench.choose([Choice(SAMPLED, temperature=0.7, seed=seed, choice=i, slot=i) for i in range(ROWS)], logits)
    counts = np.zeros(8)
    for _ in range(500):
        np.add.at(counts, bench.play()["ids"], 1)

    def squared(temperature: float) -> float:
        p = np.exp(logits[0].astype(np.float64) / temperature)
        expected = counts.sum() * p / p.sum()
        return float(((counts - expected) ** 2 / expected).sum())

    # 7 degrees of freedom: exceeded once in 10^6 draws of a seed.
    assert squared(0.7) < 40.5, counts
    assert squared(0.49) > 40.5 and squared(1.4) > 40.5


@pytest.mark.row("M.19")
@pytest.mark.parametrize("temperature", [1e-5, 1e6, 1e30])
def test_extreme_temperatures(sampling: Device, rng: np.random.Generator, temperature: float) -> None:
    """Cold, the best; hot, every id alike: the id is the whole part of the draw times the vocabulary."""
    bench = Bench(sampling, 4099, 4099)
    logits = logits_of(rng, 4099, "peaked")
    seed = int(rng.integers(2**60))
    bench.choose([Choice(SAMPLED, temperature=temperature, seed=seed, choice=i, slot=i) for i in range(ROWS)], logits)
    for index in range(12):
        got = bench.play()["ids"].tolist()
        places = [4099 * uniform(seed, i, index) for i in range(ROWS)]
        if temperature > 1:
            # 20 nats over a million move a border by 20 ids' shares of a millionth.
            assert all(abs(g + 0.5 - x) < 0.6 for g, x in zip(got, places, strict=True)), (got, places)
        else:
            assert got == logits.argmax(axis=1).tolist()


@pytest.mark.row("M.19")
def test_one_candidate_is_no_draw(sampling: Device, rng: np.random.Generator) -> None:
    """Each way to leave one candidate, among ties the lowest id."""
    bench = Bench(sampling, 3001, 3001)
    logits = np.round(logits_of(rng, 3001, "flat"))
    for settings in ({"top_k": 1}, {"top_p": 0.0}, {"top_p": 1e-12}, {"top_k": 7, "top_p": 1e-9, "min_p": 1.0}):
        bench.choose([Choice(SAMPLED, temperature=2.0, seed=i, slot=i, **settings) for i in range(ROWS)], logits)
        assert bench.play()["ids"].tolist() == logits.argmax(axis=1).tolist(), settings


@pytest.mark.row("H.20")
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_nothing_is_drawn_from_broken_logits(sampling: Device, rng: np.random.Generator, broken: float) -> None:
    bench = Bench(sampling, 2500, 2500)
    logits = logits_of(rng, 2500, "flat")
    logits[[0, 2], [2499, 0]] = broken
    bench.choose([Choice(SAMPLED, seed=i, slot=i, top_k=40, top_p=0.9) for i in range(ROWS)], logits)
    found = bench.play()
    assert found["status"].tolist() == [1, 0, 1] and found["ids"][[0, 2]].tolist() == [-1, -1]
    assert found["settings"].view(SETTINGS)[:, 0]["index"].tolist() == [0, 1, 0]
    assert found["history"].sum() == 2, "one id counted"


@pytest.mark.row("M.16", "M.19")
def test_a_draw_does_not_depend_on_the_rows_beside_it(sampling: Device, rng: np.random.Generator) -> None:
    """Nor on anything but its settings: again, the same ids, and alone, too."""
    bench = Bench(sampling, 5000, 5000)
    logits = logits_of(rng, 5000, "flat")
    params = [replace(choices_of(rng, 5000), temperature=1.0) for _ in range(ROWS)]
    choices = [choice_of(p, 3, i) for i, p in enumerate(params)]

    def ids(chosen: Sequence[Choice]) -> NDArray[np.int32]:
        bench.remember(np.zeros((SLOTS, 5000), np.int32))
        bench.choose(chosen, logits)
        return np.stack([bench.play()["ids"] for _ in range(4)])

    together = ids(choices)
    np.testing.assert_array_equal(ids(choices), together)
    for row in range(ROWS):
        alone = ids([c if i == row else Choice(PICKED) for i, c in enumerate(choices)])
        np.testing.assert_array_equal(alone[:, row], together[:, row])


def test_settings_are_checked() -> None:
    for wrong, message in (
        (Choice(slot=5), "slot 5 of a history of 5"),
        (Choice(logit_bias={77: 1.0}), "id 77 is biased"),
        (Choice(logit_bias=dict.fromkeys(range(BIASES + 1), 0.5)), f"{BIASES + 1} biased ids"),
        (Choice(SAMPLED, temperature=0.0), "a temperature of 0"),
    ):
        with pytest.raises(BadShape, match=message):
            pack_choices([wrong], 77 if "id 77" in message else 5000, SLOTS)


# What the comparison must notice: (name, file, what is there, what is put in its place).
CUDA_MUTANTS = [
    ("last of the equals lost", "sample.cu", "id <= s.cut_id", "id < s.cut_id"),
    ("another key schedule", "sample.cu", "right += 0xBB67AE85u", "right += 0xBB67AE86u"),
    ("frequency added", "sample.cu", "set.presence + set.frequency", "set.presence - set.frequency"),
    ("one candidate more", "sample.cu", "(U64)row.set.top_k :", "(U64)row.set.top_k + 1 :"),
]
WEBGPU_MUTANTS = [
    ("one of the equals more", "choose.wgsl", "if seen < cut.equals", "if seen <= cut.equals"),
    ("another key schedule", "choose.wgsl", "0xBB67AE85u", "0xBB67AE86u"),
    ("presence forgotten", "sample.wgsl", "f32(seen >> 1u), x - p.presence", "f32(seen >> 1u), x"),
    ("one candidate more", "search.wgsl", "U64(setting(row, TOP_K), 0u)", "U64(setting(row, TOP_K) + 1u, 0u)"),
    ("temperature forgotten at the cut", "choose.wgsl", "- top) / real(row, TEMPERATURE)", "- top)"),
]


def expect_notice(device: Device, rng: np.random.Generator) -> None:
    """Ties, where every count shows, and many settings."""
    with pytest.raises(AssertionError):
        played_like_the_host(device, rng, 3000, "tied", settings=60)


@pytest.mark.skipif(REAL, reason="mutants run under the emulator")
@pytest.mark.parametrize("mutant", CUDA_MUTANTS, ids=lambda m: m[0])
def test_a_changed_cuda_kernel_is_noticed(
    rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: tuple[str, str, str, str]
) -> None:
    name, file, old, new = mutant
    mutants.change(mutants.copied(tmp_path, monkeypatch, "sample", "pick") / file, name, old, new)
    expect_notice(open_device(CUDA[0]), rng)


@pytest.mark.parametrize("mutant", WEBGPU_MUTANTS, ids=lambda m: m[0])
def test_a_changed_webgpu_kernel_is_noticed(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, mutant: tuple[str, str, str, str]
) -> None:
    _, file, old, new = mutant
    read = shader._source

    def changed(path: str) -> str:
        text = read(path)
        if not path.endswith(f"sample/{file}"):
            return text
        assert text.count(old) == 1, "the line is no longer there"
        return text.replace(old, new)

    monkeypatch.setattr(shader, "_source", changed)
    expect_notice(open_device(WEBGPU[0]), rng)
