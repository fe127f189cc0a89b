"""What people meet when they serve a model from a GPU: floors, profiles, progress, several callers, what is refused."""

from __future__ import annotations

import io
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import test_tiny_models as tiny

from shohin.devices import Device, device
from shohin.devices.cuda import Cuda
from shohin.errors import BadRequest, OutOfMemory
from shohin.generate import SamplingParams, generate
from shohin.generate.loop import Hooks
from shohin.models import Model
from shohin.serve.benchmark import Load, run_bench
from shohin.serve.cli.bench import floors
from shohin.serve.loading import prepare
from shohin.serve.profile import LayerProfile, TokenProfile

sys.path.append(str(Path(__file__).parents[1] / "kernels"))
from emulated import REAL, emulated_cuda, real_gpu

GREEDY = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)
PROMPT = [1, 2, 3]


def fresh() -> Cuda:
    """A device that has loaded no kernel; one emulated multiprocessor, on which all of a launch's blocks can meet."""
    return Cuda(real_gpu()) if REAL else emulated_cuda(multiprocessors=1)


@pytest.fixture(scope="module")
def cuda() -> Cuda:
    return fresh()


@pytest.fixture
def model(cases: Path, cuda: Cuda) -> Model:
    return tiny.model_of(cases, "gguf/tiny_q1.gguf", cuda, activations="int8", kv="f16", context=64)


@pytest.mark.row("S0.36", "S0.37", "S0.39")
def test_token_profile(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    """Device times are submit to completion, one submission a token, and the ids are those of a run ahead."""
    want = [t.id for t in generate(model, PROMPT, GREEDY)]
    out = io.StringIO()
    profile = TokenProfile(model.bytes_per_token, out)
    before = model.device.submissions
    assert [t.id for t in generate(model, PROMPT, GREEDY, hooks=Hooks(play=profile.play))] == want
    assert model.device.submissions - before == len(want)
    profile.finish()
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("prefill of 3 rows: wall ")
    assert [line.split(":")[0] for line in lines[1:-1]] == [f"token {i}" for i in range(4)]
    assert re.search(r"^4 tokens, average .*, \d+\.\d GB/s$", lines[-1])
    for wall, _encode, seconds, _over in profile.records:
        assert 0 < seconds <= wall
    assert capsys.readouterr().out == ""


@pytest.mark.row("S0.32", "S0.33", "S0.34", "S0.35", "S0.39")
def test_layer_profile(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    want = [t.id for t in generate(model, PROMPT, GREEDY)]
    out = io.StringIO()
    profile, layers = LayerProfile(out), model.config.layers
    before = model.device.submissions
    assert [t.id for t in generate(model, PROMPT, GREEDY, hooks=Hooks(play=profile.play))] == want
    assert model.device.submissions - before == len(want) * (layers + 2), "embed, every layer, tail"
    lines = out.getvalue().splitlines()
    assert len(lines) == len(want) * (layers + 3)
    assert [line.split(" = ")[0] for line in lines[1 : 1 + layers]] == [f"layer {i:02d}" for i in range(layers)]
    assert re.search(r"^layers: total .*, \d+\.\d GB/s$", lines[1 + layers])
    assert lines[2 + layers].startswith("tail (norm+lmhead+argmax) = ")
    assert capsys.readouterr().out == ""


def test_bench_has_both_floors(model: Model) -> None:
    found = run_bench(model, Load(4, 3), bandwidth=lambda _: 1e9)
    assert found["phases"] == 5 * model.config.layers + 3
    assert found["chain_floor_us"] == pytest.approx(found["phases"] * found["phase_us"])
    assert found["barrier_us"] >= 0 and len(floors(found)) == 2


def test_compiling_is_told_before_the_first_token(cases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is left to compile afterwards."""
    gpu = fresh()
    model = tiny.model_of(cases, "gguf/tiny_q1.gguf", gpu, activations="int8", kv="f16", context=64)
    built: list[int] = []
    build = gpu.driver.build

    def watched(sources, progress=None):  # type: ignore[no-untyped-def]
        built.append(len(sources))
        if progress is not None:
            progress(len(sources), len(sources))
        return build(sources)

    monkeypatch.setattr(gpu.driver, "build", watched)
    told: list[tuple[str, int, int]] = []
    prepare(model, len(PROMPT), progress=lambda *state: told.append(state))
    assert told == [("compile", n, n) for n in built] and len(built) == 2, "a prompt's tape and a token's"
    assert gpu.progress is None
    list(generate(model, PROMPT, GREEDY, hooks=Hooks(play=lambda tape, step, fetch: tape.play(step, fetch))))
    assert len(built) == 2
    prepare(model, len(PROMPT), progress=lambda *state: told.append(state))
    assert len(told) == 2, "what is there is not compiled again"


@pytest.mark.row("S3.3", "S0.9")
def test_threads_that_generate_on_one_model_do_not_mix(cases: Path, cuda: Device) -> None:
    model = tiny.model_of(cases, "gguf/tiny_q1.gguf", cuda, activations="int8", kv="f16", context=64, sequences=3)
    prompts = [[1, 2, 3], [4, 5], [6]]
    wants = [[t.id for t in generate(model, prompt, GREEDY)] for prompt in prompts]
    assert len({tuple(want) for want in wants}) > 1, "texts that mixed would show"
    found: dict[int, list[list[int]]] = {i: [] for i in range(3)}

    def talk(i: int) -> None:
        for _ in range(3):
            found[i].append([t.id for t in generate(model, prompts[i], GREEDY)])

    threads = [threading.Thread(target=talk, args=(i,)) for i in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert found == {i: [wants[i]] * 3 for i in found}


def test_what_does_not_fit_says_what_to_shrink(cases: Path) -> None:
    """Told before anything is packed: the cache of 64 contexts is larger than the GPU."""
    small = emulated_cuda(memory=1 << 20)
    with pytest.raises(OutOfMemory, match=r"needs .* cache .* are free and .* --ctx-size"):
        tiny.model_of(cases, "gguf/tiny_q1.gguf", small, activations="int8", kv="f16", context=64, sequences=4096)
    assert (small.uploads, small.allocations) == (0, 0)


@pytest.fixture
def open_second(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], object]:
    """Two GPUs that exist only by name, and what opening one of them would begin with."""
    core = pytest.importorskip("cuda.core", reason="cuda.core is not installed")
    from shohin.devices.cuda import gpu

    there = [SimpleNamespace(name=name, set_current=lambda: None) for name in ("First GPU", "Second GPU")]
    monkeypatch.setattr(core, "Device", SimpleNamespace(get_all_devices=lambda: there))
    return lambda name: gpu._open(int(name.partition(":")[2])).name


@pytest.mark.row("S3.1")
def test_a_gpu_is_chosen_by_index_and_a_wrong_one_lists_those_there_are(open_second: Callable[[str], object]) -> None:
    with pytest.raises(BadRequest, match=r"device cuda:9 does not exist; there are cuda:0 First GPU, cuda:1 Second"):
        device("cuda:9")
    assert open_second("cuda:1") == "Second GPU"


def test_free_memory_is_the_gpus() -> None:
    gpu = emulated_cuda(memory=1 << 24)
    free = gpu.free_memory()
    kept = gpu.buffer("kept", (1 << 20,), np.uint8)
    assert free - gpu.free_memory() == kept.nbytes
