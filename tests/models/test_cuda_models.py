"""Whole models on CUDA, emulated or real: recorded answers, cpu, counters, and steps that run ahead of the host."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sampled
import test_smollm2
import test_stage
import test_tiny_models as tiny
import test_webgpu_models as equality
from forwarding import batch_logits, page_table, prompt_logits
from llama_recorded import logits_along

from shohin.devices import Device, Step
from shohin.errors import DeviceFailed
from shohin.formats import synthetic_weights
from shohin.generate import SamplingParams, generate
from shohin.generate.loop import Hooks
from shohin.models import Model

sys.path.append(str(Path(__file__).parents[1] / "kernels"))
from emulated import REAL, emulated_cuda, real_gpu

from shohin.devices.cuda import Cuda

Open = Callable[[str], Device]
# An emulated GPU takes a second for what a real one does in a millisecond.
STEPS, RUNS = (256, 100) if REAL else (6, 3)
FILES = list(tiny.FILES) if REAL else ["tiny_q1", "tiny_yarn"]
MODES = ("exact", "int8") if REAL else ("int8",)
CHUNKS = (1, 8, 129) if REAL else (50,)
LENGTHS = [1, 2, 9, 17, 33, 64, 65, 129] if REAL else [1, 9, 65]


@pytest.fixture(scope="module")
def cuda() -> Device:
    """One device, so that kernels are built once."""
    return Cuda(real_gpu()) if REAL else emulated_cuda()


@pytest.fixture
def tiny_model(cases: Path, cuda: Device) -> Callable[..., Model]:
    def made(file: str, **options: object) -> Model:
        return tiny.model_of(cases, f"gguf/{file}.gguf", cuda, **options)

    return made


@pytest.mark.row("C01", "C02", "C40", "C41", "C42", "S0.19", "S0.24", "S0.13", "S3.44")
@pytest.mark.parametrize("file", FILES)
def test_every_file_gives_its_logits(cases: Path, tiny_model: Callable[..., Model], file: str) -> None:
    ids, after = tiny.answers(cases, tiny.FILES[file])
    found = prompt_logits(tiny_model(file), ids)
    for length, logits in after.items():
        np.testing.assert_allclose(found[length - 1], logits, rtol=0, atol=tiny.SINGLE, err_msg=f"length {length}")


@pytest.mark.row("M.16", "E.5", "E.9", "H.10")
@pytest.mark.parametrize("activations", MODES)
@pytest.mark.parametrize("kv", ["f16", "int8"] if REAL else ["int8"])
def test_the_bits_of_a_row_do_not_depend_on_its_company(
    cases: Path, tiny_model: Callable[..., Model], activations: str, kv: str
) -> None:
    ids, _ = tiny.answers(cases, "tiny_yarn")
    options = {"activations": activations, "kv": kv}
    whole = prompt_logits(tiny_model("tiny_yarn", **options), ids)
    for chunk in CHUNKS:
        np.testing.assert_array_equal(prompt_logits(tiny_model("tiny_yarn", **options), ids, chunk), whole)
    many = tiny_model("tiny_yarn", sequences=len(LENGTHS), context=130, **options)
    np.testing.assert_array_equal(batch_logits(many, ids, LENGTHS), whole[np.array(LENGTHS) - 1])


@pytest.mark.row("S0.2", "S0.21", "S0.23", "S0.28", "S0.29", "S0.31", "E.6", "E.8", "M.16")
def test_one_submission_a_step_nothing_allocated_and_the_same_bits(
    tiny_model: Callable[..., Model], cuda: Device
) -> None:
    model = tiny_model("tiny_q1", kv="f16", activations="int8")
    pages = page_table(model)

    def step() -> np.ndarray:
        tape = model.tape("decode", 1)
        return tape.play(Step.of([3], positions=[0], pages=pages), fetch=("logits", "ids"))["logits"]

    first = step()
    before = cuda.submissions, cuda.allocations, cuda.uploads
    for _ in range(RUNS):
        np.testing.assert_array_equal(step(), first)
    assert (cuda.submissions, cuda.allocations, cuda.uploads) == (before[0] + RUNS, *before[1:])


@pytest.mark.row("F.60", "E.13", "S0.23")
def test_steps_ahead_of_the_host_are_the_steps_one_by_one(tiny_model: Callable[..., Model], cuda: Device) -> None:
    """Also across several runs of 64, beside another generation on the same tape, and after an early end."""
    model = tiny_model("tiny_q1", activations="int8", kv="f16", context=192, sequences=3)
    params = SamplingParams(max_tokens=130, temperature=0.0)
    one_by_one = Hooks(play=lambda tape, step, fetch: tape.play(step, fetch))
    want = [t.id for t in generate(model, [1, 2, 3], params, hooks=one_by_one)]
    before = cuda.submissions
    assert [t.id for t in generate(model, [1, 2, 3], params)] == want
    assert cuda.submissions - before == 130, "a submission a token, none of them thrown away"
    first, second = (generate(model, prompt, params) for prompt in ([1, 2, 3], [5, 6]))
    found = [(next(first).id, next(second).id) for _ in range(20)]
    assert [a for a, _ in found] == want[:20]
    second.close()
    assert [t.id for t in first] == want[20:]
    stop = want[7]
    ended = [t.id for t in generate(model, [1, 2, 3], params, stop_ids=[stop])]
    assert ended == want[: want.index(stop) + 1]
    assert [t.id for t in generate(model, [1, 2, 3], params)] == want, "what was in flight has left no trace"


@pytest.mark.row("M.19", "S0.23")
@pytest.mark.parametrize("settings", sampled.SETTINGS, ids="-".join)
def test_drawn_tokens_are_those_of_the_host(
    tiny_model: Callable[..., Model], cuda: Device, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """Across several runs of 64, again with the same seed, and beside a second answer on the same tape."""
    model = tiny_model("tiny_q1", activations="int8", kv="f16", context=192, sequences=3)
    sampled.expect_the_hosts_ids(model, cuda, monkeypatch, settings)


@pytest.mark.row("M.19", "M.17")
@pytest.mark.parametrize("settings", [{}, {"top_p": 0.9, "repetition_penalty": 1.1}], ids=["plain", "filtered"])
def test_drawn_text_of_a_shipped_model_is_that_of_cpu(
    cuda: Device, open_device: Open, settings: dict[str, Any]
) -> None:
    name = test_stage.NAMES[0]
    pair = equality.Pair.of(test_stage.weights(name), cuda, open_device("cpu"), "exact")
    params = SamplingParams(max_tokens=STEPS, temperature=0.8, seed=12, **settings)
    prompt = test_stage.RECORDED[name][test_stage.PROMPTS[0]]["prompt"]
    at = sampled.parted_at_a_near_tie(pair.ours, pair.theirs, prompt, params)
    assert at is None or at > STEPS // 2, "float noise moves few draws"


@pytest.mark.row("H.20", "R.4")
def test_a_broken_model_ends_a_run_ahead(cases: Path, cuda: Device) -> None:
    """A key of infinity in the cache: the step that reads it reports, and no token follows."""
    model = tiny.model_of(cases, "gguf/tiny_q1.gguf", cuda, activations="int8", kv="f16", context=64)
    tokens = generate(model, [1, 2, 3], SamplingParams(max_tokens=40, temperature=0.0))
    next(tokens)
    for layer in model.cache:
        cuda.write(layer.values, np.full(layer.values.shape, np.inf, np.float16))
    with pytest.raises(DeviceFailed, match="not finite"):
        for _ in tokens:
            pass


@pytest.mark.row("M.17", "M.18")
@pytest.mark.parametrize("activations", MODES)
@pytest.mark.parametrize("name", test_stage.NAMES)
def test_the_shipped_models_are_equal_to_cpu(
    cuda: Device, open_device: Open, monkeypatch: pytest.MonkeyPatch, name: str, activations: str
) -> None:
    monkeypatch.setattr(equality, "STEPS", STEPS)
    pair = equality.Pair.of(test_stage.weights(name), cuda, open_device("cpu"), activations)
    pair.compare(test_stage.RECORDED[name][test_stage.PROMPTS[0]]["prompt"]).expect_equal()


@pytest.mark.row("M.17")
@pytest.mark.skipif(not REAL, reason="a model of 1.7 billion weights is for a real GPU")
@pytest.mark.parametrize("fmt", ["q1_0", "pq2_0"])
def test_a_synthetic_model_is_equal_to_cpu(
    cuda: Device, open_device: Open, monkeypatch: pytest.MonkeyPatch, fmt: str
) -> None:
    monkeypatch.setattr(equality, "STEPS", STEPS)
    pair = equality.Pair.of(synthetic_weights("bonsai-1.7b", fmt), cuda, open_device("cpu"), "int8")
    pair.compare(list(range(3, 40))).expect_equal()


@pytest.mark.row("M.17")
@pytest.mark.skipif(not REAL, reason="SmolLM2's 135 million weights are for a real GPU")
@equality.smollm2_is_here
def test_smollm2_is_equal_to_cpu(cuda: Device, open_device: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on WebGPU: in int8 a code that falls to the other side moves the logits of this model by as much as int8 moves
    them from exact, so the distance from exact tells a right quantiser from a wrong one.
    """
    monkeypatch.setattr(equality, "STEPS", STEPS)
    prompt = test_smollm2.GREEDY["raw"]["prose"]["prompt"]
    exact = equality.Pair.of(equality.smollm2(), cuda, open_device("cpu"), "exact").compare(prompt)
    exact.expect_equal()
    exact.expect_telling()
    pair = equality.Pair.of(equality.smollm2(), cuda, open_device("cpu"), "int8")
    pair.compare(prompt).expect_equal()
    ours, theirs = (
        np.sqrt(np.square(logits_along(m, prompt, exact.reference) - exact.there).mean())
        for m in (pair.ours, pair.theirs)
    )
    print(f"int8 from exact: {ours:.3g} here, {theirs:.3g} on cpu")
    assert 0.5 * theirs < ours < 1.5 * theirs
