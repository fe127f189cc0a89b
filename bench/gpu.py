"""Speeds of one NVIDIA GPU, each beside its floor: decode, verify, batch decode, long contexts and prefill.

    python bench/gpu.py [--models bonsai-8b:q1_0,bonsai-1.7b:pq2_0] [--device cuda] [--sections decode,phases,...]

Device times are those of many replays of one captured step, back to back, so the host does not count; the line
``generate`` is what a caller of ``shohin.generate`` sees. The floor of a step is its bytes over the read bandwidth
measured in the same process. One JSON line a model; medians of ``--rounds`` rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from shohin.devices import Device, Step, Tape, device
from shohin.devices.follower import release
from shohin.formats import synthetic_weights
from shohin.generate import SamplingParams, generate
from shohin.generate.sampling import Sampler
from shohin.models import Model, build
from shohin.serve.bandwidth import read_bandwidth

MODELS = "bonsai-8b:q1_0,bonsai-4b:q1_0,bonsai-1.7b:q1_0,bonsai-8b:pq2_0,bonsai-1.7b:pq2_0"
PHASES = ("norm_linear", "attend", "linear_add", "norm_swiglu", "linear_add down")

# What a token may be drawn by: nothing but a temperature, one filter, all of them, penalties too.
DRAWN: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.8},
    "top_p": {"temperature": 0.8, "top_p": 0.9},
    "filters": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.02},
    "penalties": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "repetition_penalty": 1.1},
    "greedy_penalties": {"repetition_penalty": 1.1},
}


@dataclass(frozen=True)
class Setup:
    """A model and how often to repeat."""

    model: Model
    rounds: int
    speed: float

    @property
    def gpu(self) -> Any:
        return self.model.device


def step_of(model: Model, rows: int, position: int, sequences: int = 1) -> Step:
    """``rows`` rows that end at ``position``: of one sequence, or one of each of ``sequences``."""
    page, width = model.cache.page, -(-model.context // model.cache.page)
    tokens = np.random.default_rng(rows).integers(0, model.config.vocabulary, rows)
    pages = np.arange(sequences * width).reshape(sequences, width)[:, : position // page + 1]
    if sequences == 1:
        return Step.of(tokens, positions=np.arange(position - rows + 1, position + 1), pages=pages)
    return Step.of(tokens, positions=np.full(rows, position), sequences=np.arange(rows), pages=pages)


def replayed(setup: Setup, graph: Any, count: int) -> float:
    """Seconds of one replay of a graph: ``count`` of them back to back, the median round."""
    driver, found = setup.gpu.driver, []
    for _ in range(setup.rounds):
        driver.replay(graph)
        driver.synchronize()
        begin = perf_counter()
        for _ in range(count):
            driver.replay(graph)
        driver.synchronize()
        found.append((perf_counter() - begin) / count)
    return median(found)


def seconds(setup: Setup, tape: Tape, step: Step, count: int) -> float:
    """Device seconds of one play."""
    program = tape._program
    with setup.gpu.lock:
        release(program)
        program.upload(step)
        return replayed(setup, program.graph(0, len(tape.calls)), count)


def phases(setup: Setup, tape: Tape, step: Step, count: int = 20) -> dict[str, float]:
    """Microseconds of each of the five phases, averaged over all layers: their kernels alone, in the layers' order."""
    program, layers = tape._program, setup.model.config.layers
    calls = {name: range(1 + k, 1 + 5 * layers, 5) for k, name in enumerate(PHASES)}
    calls |= {"head": range(1 + 5 * layers, 2 + 5 * layers), "pick": range(2 + 5 * layers, 3 + 5 * layers)}
    found = {}
    with setup.gpu.lock:
        release(program)
        program.upload(step)
        for name, chosen in calls.items():
            graph = setup.gpu.driver.capture([launch for i in chosen for launch in program.bound(i, i + 1)])
            found[name] = round(replayed(setup, graph, count) / len(chosen) * 1e6, 2)
    return found


def decode(setup: Setup) -> dict[str, Any]:
    """One row at a short context."""
    tape = setup.model.tape("decode", 1, wanted=1)
    each = seconds(setup, tape, step_of(setup.model, 1, 64), 200)
    return {
        "decode_us": each * 1e6,
        "decode_tokens_per_s": 1 / each,
        "decode_over_floor": setup.model.bytes_per_token / setup.speed / each,
    }


def generated(setup: Setup) -> dict[str, Any]:
    """What a caller sees, run ahead and all."""
    return {"generate_tokens_per_s": median(generated_by(setup, {}) for _ in range(setup.rounds))}


def generated_by(setup: Setup, settings: dict[str, Any]) -> float:
    """Tokens a second of one answer of 256."""
    params = SamplingParams(max_tokens=257, ignore_eos=True, **settings)
    generation = generate(setup.model, np.arange(16), params)
    for _ in generation:
        pass
    return 256 / generation.timings.decode_seconds


def sampling(setup: Setup) -> dict[str, Any]:
    """A drawn token: device time of choosing it (``pick`` and what follows), of the step, and what a caller sees."""
    tape, step, found = setup.model.tape("decode", 1, wanted=1, drawn=True), step_of(setup.model, 1, 64), {}
    program, last = tape._program, len(tape.calls)
    tape.play(step)
    with setup.gpu.lock:
        release(program)
        program.upload(step)
        for name, settings in DRAWN.items():
            generated_by(setup, settings)
            program.upload(step)
            choice = Sampler(SamplingParams(seed=1, **settings), setup.model.config.vocabulary, step.tokens).on_device(
                0
            )
            setup.model.drawing.write([choice], np.ones((1, setup.model.config.vocabulary), np.int32))
            # Not without ``pick``, whose id is where the draw begins.
            each = [replayed(setup, program.graph(first, last), 200) for first in (last - 2, 0)]
            runs = [generated_by(setup, settings) for _ in range(setup.rounds)]
            found[name] = {"choice_us": each[0] * 1e6, "step_us": each[1] * 1e6, "generate_tokens_per_s": median(runs)}
    return {"sampling": {k: {n: round(v, 2) for n, v in values.items()} for k, values in found.items()}}


def context(setup: Setup) -> dict[str, Any]:
    """What a long context adds to a step."""
    tape = setup.model.tape("decode", 1, wanted=1)
    short = seconds(setup, tape, step_of(setup.model, 1, 64), 100)
    return {
        f"context_{n}_adds_us": (seconds(setup, tape, step_of(setup.model, 1, n - 1), 100) - short) * 1e6
        for n in (1024, 4096)
        if n <= setup.model.context
    }


def verify(setup: Setup) -> dict[str, Any]:
    """Eight drafted rows beside one."""
    one = seconds(setup, setup.model.tape("decode", 1, wanted=1), step_of(setup.model, 1, 64), 100)
    found = {}
    for rows in (2, 4, 8):
        each = seconds(setup, setup.model.tape("verify", rows, wanted=rows), step_of(setup.model, rows, 64), 100)
        found[f"verify_{rows}_over_1"] = each / one
    return found


def batch(setup: Setup) -> dict[str, Any]:
    """64 sequences of 512 tokens, one row each."""
    tape = setup.model.tape("decode", 64, wanted=64)
    each = seconds(setup, tape, step_of(setup.model, 64, 511, 64), 20)
    return {"batch_64_tokens_per_s": 64 / each, "batch_64_ms": each * 1e3}


def prefill(setup: Setup) -> dict[str, Any]:
    """A prompt of 4,096 tokens in chunks of 512, logits of the last."""
    tape, total = setup.model.tape("prefill", 512, wanted=1), 0.0
    for first in range(0, 4096, 512):
        step = step_of(setup.model, 512, first + 511)
        total += seconds(
            setup, tape, Step(step.tokens, step.positions, step.sequences, step.pages, step.wanted[-1:]), 3
        )
    return {"prefill_4096_tokens_per_s": 4096 / total}


def decode_phases(setup: Setup) -> dict[str, Any]:
    """One row, phase by phase."""
    return {"phases_us": phases(setup, setup.model.tape("decode", 1, wanted=1), step_of(setup.model, 1, 64))}


def prefill_phases(setup: Setup) -> dict[str, Any]:
    """512 rows in the middle of a prompt of 4,096, phase by phase."""
    step = step_of(setup.model, 512, 2047)
    last = Step(step.tokens, step.positions, step.sequences, step.pages, step.wanted[-1:])
    return {"prefill_phases_us": phases(setup, setup.model.tape("prefill", 512, wanted=1), last, 3)}


PARTS = {
    "phases": decode_phases,
    "prefill_phases": prefill_phases,
    "decode": decode,
    "generate": generated,
    "sampling": sampling,
    "context": context,
    "verify": verify,
    "batch": batch,
    "prefill": prefill,
}


def measure(gpu: Device, name: str, sections: list[str], rounds: int, kv: str) -> dict[str, Any]:
    """All sections of one model."""
    shape, fmt = name.split(":")
    begin = perf_counter()
    weights = synthetic_weights(shape, fmt)
    made = perf_counter()
    model = build(
        weights,
        gpu,
        context=4096 if "batch" not in sections else 1024,
        sequences=64 if "batch" in sections else 1,
        kv=kv,
    )
    built = perf_counter()
    setup = Setup(model, rounds, read_bandwidth(gpu))
    found: dict[str, Any] = {
        "model": name, "device": gpu.kernels, "kv": kv, "make_s": made - begin, "build_s": built - made,
        "read_bandwidth_gb_s": setup.speed / 1e9, "bytes_per_token": model.bytes_per_token,
    }  # fmt: skip
    for section in sections:
        begin = perf_counter()
        try:
            found |= PARTS[section](setup)
        except Exception as error:
            found[f"{section}_failed"] = f"{type(error).__name__}: {error}"[:300]
        print(f"{name} {section}: {perf_counter() - begin:.1f} s", file=sys.stderr)
    return found


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sections", default="decode,generate,phases,context,verify,prefill")
    parser.add_argument("--kv", default="f16")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    gpu = device(arguments.device)
    for name in arguments.models.split(","):
        found = measure(gpu, name, arguments.sections.split(","), arguments.rounds, arguments.kv)
        print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in found.items()}), flush=True)


if __name__ == "__main__":
    main()
