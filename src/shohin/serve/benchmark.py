"""``shohin bench``: prefill and decode of random ids, beside what the memory of this machine allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shohin.devices import Device
from shohin.errors import BadRequest
from shohin.generate import SamplingParams, generate
from shohin.models import Model
from shohin.serve.bandwidth import read_bandwidth
from shohin.serve.peak_memory import peak_memory_bytes
from shohin.serve.waiting import wait_seconds

__all__ = ["Load", "run_bench"]

# A short pass before anything is timed: weights that lie in a mapped file are read from disk once, tapes are recorded.
WARM_PROMPT, WARM_TOKENS = 8, 2


@dataclass(frozen=True)
class Load:
    """What is measured: ``prompt`` random ids read, then ``generate`` picked greedily, ``repeat`` times.

    BadRequest: fewer than 1 prompt id or repetition, or 2 generated ids (the first belongs to the prefill).
    """

    prompt: int = 512
    generate: int = 128
    repeat: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("prompt", 1), ("generate", 2), ("repeat", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise BadRequest(
                    f"bench: {name} is {value!r}, a whole number of at least {least} was expected", param=name
                )


@dataclass(frozen=True)
class _Run:
    """Seconds of one repetition: until the first token, and for each of the following ones."""

    first: float
    each: float


def run_bench(
    model: Model,
    load: Load | None = None,
    *,
    progress: Callable[[str, int, int], None] | None = None,
    bandwidth: Callable[[Device], float] = read_bandwidth,
) -> dict[str, Any]:
    """Measure and return one flat object; times are medians over the repetitions.

    decode_tokens_per_s; prefill_tokens_per_s: prompt ids a second up to the first token's choice, first_token_s.
    bytes_per_token: of the file's format, all layers and the head. read_bandwidth_gb_s: 10^9 bytes a second, what the
    same threads read here and now. decode_over_floor: tokens a second over those that this bandwidth allows, so 1 is
    the best there is. peak_memory_bytes: of the process, before the bandwidth was measured.
    stream_floor_us: microseconds of a token's bytes at that bandwidth. phases: dependent calls of a decoded token;
    phase_us: what one costs empty, measured here and now; chain_floor_us: all of them; barrier_us: what a barrier over
    all blocks of one launch costs instead. The last three are None where the device has no such phases.
    device, kernels, threads (None where the device has none), activations, kv, prompt_tokens, generated_tokens, repeat.

    BadRequest where prompt and answer do not fit the context; errors of ``generate`` otherwise.
    """
    load = load or Load()
    if load.prompt + load.generate > model.context:
        raise BadRequest(
            f"bench: {load.prompt} prompt and {load.generate} generated tokens do not fit the context of "
            f"{model.context}; ask for fewer, or build the model with a larger context",
            param="prompt",
        )
    ids = np.random.default_rng(load.seed).integers(0, model.config.vocabulary, load.prompt)
    _warm(model, ids)
    runs = []
    for i in range(load.repeat):
        runs.append(_run(model, ids, load.generate))
        if progress is not None:
            progress("bench", i + 1, load.repeat)
    first, each = median(r.first for r in runs), median(r.each for r in runs)
    peak = peak_memory_bytes()
    speed = bandwidth(model.device)
    return {
        "decode_tokens_per_s": 1 / each,
        "prefill_tokens_per_s": load.prompt / first,
        "bytes_per_token": model.bytes_per_token,
        "read_bandwidth_gb_s": speed / 1e9,
        "decode_over_floor": model.bytes_per_token / speed / each,
        "stream_floor_us": model.bytes_per_token / speed * 1e6,
        **_chain(model),
        "first_token_s": first,
        "peak_memory_bytes": peak,
        "device": model.device.name,
        "kernels": model.device.kernels,
        "threads": getattr(model.device, "threads", None),
        "activations": model.activations,
        "kv": model.kv,
        "prompt_tokens": load.prompt,
        "generated_tokens": load.generate,
        "repeat": load.repeat,
    }


def _chain(model: Model) -> dict[str, Any]:
    """What the phases of a decoded token would cost if they did nothing."""
    phases = len(model.tape("decode", 1, wanted=1).calls)
    empty, inside = (wait_seconds(model.device, inside=kind) for kind in (False, True))
    return {
        "phases": phases,
        "phase_us": None if empty is None else empty * 1e6,
        "chain_floor_us": None if empty is None else phases * empty * 1e6,
        "barrier_us": None if inside is None else inside * 1e6,
    }


def _warm(model: Model, ids: NDArray[np.integer]) -> None:
    model.tape("prefill", min(len(ids), 512), wanted=1)
    if model.context >= WARM_PROMPT + WARM_TOKENS:
        for _ in generate(model, ids[:WARM_PROMPT], SamplingParams(max_tokens=WARM_TOKENS)):
            pass


def _run(model: Model, ids: NDArray[np.integer], count: int) -> _Run:
    generation = generate(model, ids, SamplingParams(max_tokens=count))
    for _ in generation:
        pass
    times = generation.timings
    return _Run(times.prefill_seconds, times.decode_seconds / (times.generated_tokens - 1))
