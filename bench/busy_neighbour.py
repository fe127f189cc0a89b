"""Decode with the machine to itself and with one other process that never rests, round by round.

    python bench/busy_neighbour.py MODEL.gguf [--threads N] [-n 32] [--rounds 5]
    python bench/busy_neighbour.py --synthetic bonsai-1.7b --format q1_0

The neighbour is a loop in a process of its own and takes the core that the system gives it. ``share_kept`` is the speed
beside it over the speed alone, medians of alternating rounds; an engine that waits by spinning loses far more than the
half of a core pair that the neighbour takes. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import numpy as np

from shohin.devices import device
from shohin.formats import open, write_synthetic
from shohin.generate import SamplingParams, generate
from shohin.models import Model, build

PROMPT = 16
# A new process and an ended one disturb for a moment.
PAUSE = 0.5


@contextmanager
def neighbour() -> Iterator[None]:
    """A process that computes until the end of the block."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        sleep(PAUSE)
        yield
    finally:
        busy.kill()
        busy.wait()
        sleep(PAUSE)


def decode_speed(model: Model, count: int) -> float:
    """Tokens a second after the first."""
    prompt = np.random.default_rng(0).integers(0, model.config.vocabulary, PROMPT)
    tokens = generate(model, prompt, SamplingParams(max_tokens=count + 1))
    next(tokens)
    begin = perf_counter()
    made = sum(1 for _ in tokens)
    return made / (perf_counter() - begin)


def measure(path: Path, threads: int, count: int, rounds: int) -> dict[str, Any]:
    """Alternate; one round before counts for nothing."""
    weights = open(path)
    model = build(weights, device("cpu", threads=threads), context=PROMPT + count + 1)
    decode_speed(model, count)
    alone, beside = [], []
    for _ in range(rounds):
        alone.append(decode_speed(model, count))
        with neighbour():
            beside.append(decode_speed(model, count))
    return {
        "model": path.name,
        "kernels": model.device.kernels,
        "alone_tokens_per_s": median(alone),
        "beside_tokens_per_s": median(beside),
        "share_kept": median(beside) / median(alone),
        "alone_rounds": [round(x, 2) for x in alone],
        "beside_rounds": [round(x, 2) for x in beside],
    }


def main() -> None:
    """Parse, make a synthetic model if asked for, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--synthetic", default="bonsai-1.7b")
    parser.add_argument("--format", default="q1_0")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-n", "--generate", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.model or write_synthetic(
            Path(folder) / f"{arguments.synthetic}-{arguments.format}.gguf", arguments.synthetic, arguments.format
        )
        print(json.dumps(measure(path, arguments.threads, arguments.generate, arguments.rounds)))


if __name__ == "__main__":
    main()
