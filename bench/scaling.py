"""The cost of one decoded token by model size, context and threads, beside what the memory allows.

    python bench/scaling.py [--models bonsai-1.7b bonsai-4b bonsai-8b] [--format q1_0] [--kv f16]
        [--context 0 1024 4096 16384] [--threads 1 2] [--tokens 8] [--markdown]

Synthetic weights in the real shapes. The cache before the token is filled with random numbers instead of a prompt,
which takes as long to read. ``over_floor`` is the time over that of reading the weights and the cache once at the
bandwidth measured in the same process. --markdown prints the table of ``docs/performance.md`` before the last line,
which is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from shohin.devices import Step, device
from shohin.formats.synthetic import SHAPES, synthetic_weights
from shohin.formats.weights import Weights
from shohin.models import Model, build
from shohin.serve.bandwidth import read_bandwidth

sys.path.insert(0, str(Path(__file__).parent))
from attention import fill


def token_seconds(model: Model, context: int, tokens: int) -> float:
    """Median time of a greedy token after ``context`` others; two tokens warm up."""
    tape = model.tape("decode", 1)
    pages = np.arange(model.cache.pages)[None]
    times = []
    for i in range(-2, tokens):
        step = Step.of([17], positions=[context], pages=pages)
        begin = perf_counter()
        tape.play(step, fetch=("ids", "status"))
        if i >= 0:
            times.append(perf_counter() - begin)
    return median(times)


def measure(weights: Weights, threads: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One model on so many threads, every context."""
    place = device("cpu", threads=threads)
    model = build(weights, place, context=max(arguments.context) + 1, kv=arguments.kv)
    for layer in model.cache:
        fill(layer, np.random.default_rng(0))
    found = []
    for context in arguments.context:
        each = token_seconds(model, context, arguments.tokens)
        found.append(
            {"threads": threads, "context": context, "ms": each * 1e3}
            | {"bytes": model.bytes_per_token + context * model.kv_bytes_per_token}
        )
    speed = read_bandwidth(place)
    for entry in found:
        entry |= {"read_bandwidth_gb_s": speed / 1e9, "over_floor": entry["ms"] / 1e3 * speed / entry["bytes"]}
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a row a model and number of threads, a column a context."""
    contexts = sorted({row["context"] for row in rows})
    lines = ["| model | threads | " + " | ".join(f"context {c}" for c in contexts) + " |"]
    lines.append("|---" * (2 + len(contexts)) + "|")
    for name, threads in dict.fromkeys((row["model"], row["threads"]) for row in rows):
        own = {r["context"]: r for r in rows if (r["model"], r["threads"]) == (name, threads)}
        cells = (f"{own[c]['ms']:.1f} ms, {own[c]['over_floor']:.2f} ×" for c in contexts)
        lines.append(f"| {name} | {threads} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Parse, measure each combination, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", nargs="+", choices=sorted(SHAPES), default=["bonsai-1.7b", "bonsai-4b", "bonsai-8b"]
    )
    parser.add_argument("--format", default="q1_0")
    parser.add_argument("--kv", default="f16")
    parser.add_argument("--context", type=int, nargs="+", default=[0, 1024, 4096, 16384])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.models:
        weights = synthetic_weights(name, arguments.format)
        for threads in arguments.threads:
            rows += [{"model": name} | row for row in measure(weights, threads, arguments)]
    if arguments.markdown:
        print(table(rows))
    print(json.dumps({"format": arguments.format, "kv": arguments.kv, "scaling": rows}))


if __name__ == "__main__":
    main()
