"""What rounding activations to 8 bits changes: KL divergence from exact over a fixed text (chapter 1 of Alice, 1865).

    python bench/fidelity.py MODEL.gguf [--threads N] [--tokens N] [--llama]

Every position of the text gives one distribution over the vocabulary; KL(exact || rounded) is in nats. With --llama
the same is measured for llama.cpp: its answers to the file as it is, against its own re-encoding to F32 with an f32
cache. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shohin.devices import Step, device
from shohin.formats import open
from shohin.formats.text import tokenizer_from_metadata
from shohin.models import Model, build

HERE = Path(__file__).parent
CHUNK = 128

Logits = NDArray[np.floating]


def log_softmax(logits: Logits) -> NDArray[np.float64]:
    """Natural logarithms of the probabilities, row by row."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


class Tally:
    """KL(exact || other) of every position, whether the best id is the same, and both perplexities' sums."""

    def __init__(self) -> None:
        self.divergence: list[float] = []
        self.same: list[bool] = []
        self.losses: list[float] = []
        self.exact_losses: list[float] = []

    def add(self, exact: Logits, other: Logits, following: NDArray[np.integer]) -> None:
        """One chunk of positions; ``following`` are the ids that the text goes on with, one fewer at its end."""
        p, q = log_softmax(exact), log_softmax(other)
        self.divergence += (np.exp(p) * (p - q)).sum(axis=1).tolist()
        self.same += (exact.argmax(axis=1) == other.argmax(axis=1)).tolist()
        at = np.arange(len(following))
        self.losses += (-q[at, following]).tolist()
        self.exact_losses += (-p[at, following]).tolist()

    def report(self) -> dict[str, float]:
        """Mean, median and largest KL in nats, share of equal best ids, change of perplexity."""
        kl = np.array(self.divergence)
        return {
            "mean_kl": float(kl.mean()),
            "median_kl": float(np.median(kl)),
            "p99_kl": float(np.quantile(kl, 0.99)),
            "max_kl": float(kl.max()),
            "same_best": float(np.mean(self.same)),
            "perplexity": float(np.exp(np.mean(self.losses))),
            "exact_perplexity": float(np.exp(np.mean(self.exact_losses))),
        }


def reader(model: Model) -> Callable[[list[int], int], Logits]:
    """A function from (ids, first position) to the logits after each id."""
    pages = np.arange(model.cache.pages)[None]

    def read(ids: list[int], first: int) -> Logits:
        step = Step.of(ids, positions=np.arange(first, first + len(ids)), pages=pages)
        return model.tape("prefill", len(ids)).play(step, fetch=("logits",))["logits"]

    return read


def tally(
    exact: Callable[[list[int], int], Logits], other: Callable[[list[int], int], Logits], ids: list[int]
) -> dict[str, float]:
    """Both engines over the same ids, chunk by chunk."""
    found = Tally()
    for start in range(0, len(ids), CHUNK):
        part = ids[start : start + CHUNK]
        following = np.array(ids[start + 1 : start + 1 + len(part)])
        found.add(exact(part, start), other(part, start), following)
    return found.report()


def peer(path: Path, ids: list[int], threads: int) -> dict[str, float]:
    """llama.cpp on the file as it is, against llama.cpp on its own F32 re-encoding."""
    sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "fixtures")]
    from llama_recording import Llama, reencode

    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "f32.gguf"
        reencode(path, plain, 0)
        context = -(-len(ids) // 256) * 256
        exact = Llama(plain, context=context, threads=threads, kv="f32")
        other = Llama(path, context=context, threads=threads)
        return tally(lambda part, _: exact.feed(part, every=True), lambda part, _: other.feed(part, every=True), ids)


def main() -> None:
    """Measure int8 activations, then an int8 cache beside them, then the peer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, help="only so many of the text's ids")
    parser.add_argument("--llama", action="store_true", help="measure llama.cpp's own rounding too")
    arguments = parser.parse_args()
    weights = open(arguments.model)
    ids = tokenizer_from_metadata(weights.metadata, weights.source).encode((HERE / "text.txt").read_text("utf-8"))
    ids = ids[: arguments.tokens]
    place = device("cpu", threads=arguments.threads)

    def built(activations: str, kv: str) -> Callable[[list[int], int], Logits]:
        return reader(build(weights, place, activations=activations, kv=kv, context=len(ids)))

    exact = built("exact", "f32")
    found: dict[str, Any] = {
        "model": arguments.model.name,
        "tokens": len(ids),
        "kernels": place.kernels,
        "int8": tally(exact, built("int8", "f16"), ids),
        "int8_and_int8_cache": tally(exact, built("int8", "int8"), ids),
        "f16_cache_only": tally(exact, built("exact", "f16"), ids),
    }
    if arguments.llama:
        found["llama.cpp"] = peer(arguments.model, ids, arguments.threads)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
