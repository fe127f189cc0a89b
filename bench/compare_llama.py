"""Are our logits llama.cpp's? Greedy ids and a walk along random ids, on any file that both engines load.

    python bench/compare_llama.py MODEL.gguf [--threads N] [--exact]
    python bench/compare_llama.py --synthetic bonsai-1.7b --format q1_0 [--exact]

Free run: 32 greedy ids after 24 random ones; the first that differs is shown with both engines' logits. Walk: 64 random
ids, so that a model with random weights, which repeats itself when free, is compared where its logits change. Every id
of the vocabulary counts. int8 activations and an f16 cache on both sides; --exact also compares without any rounding,
with llama.cpp's own re-encoding of the matrices to F32 (needs the memory: 4 bytes a weight). The last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shohin.devices import Step, device
from shohin.formats import Weights, open, write_synthetic
from shohin.generate import SamplingParams, generate
from shohin.models import Model, build

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "tests" / "fixtures")]
from llama_recording import Llama, reencode, version  # noqa: E402

PROMPT, GREEDY, WALK, CONTEXT = 24, 32, 64, 256

Logits = NDArray[np.floating]


def ours_along(model: Model, prompt: list[int], ids: list[int]) -> Logits:
    """Our logits from which each of ``ids`` would be picked."""
    row = [*prompt, *ids[:-1]]
    step = Step.of(row, pages=np.arange(model.cache.pages)[None], wanted=np.arange(len(prompt) - 1, len(row)))
    return model.tape("prefill", len(row), wanted=len(ids)).play(step, fetch=("logits",))["logits"]


def theirs_along(llama: Llama, prompt: list[int], ids: list[int]) -> Logits:
    """llama.cpp's logits from which each of ``ids`` would be picked."""
    llama.reset()
    return llama.feed([*prompt, *ids[:-1]], every=True)[len(prompt) - 1 :]


def distance(ours: Logits, theirs: Logits) -> dict[str, Any]:
    """How far apart the logits are, over the whole vocabulary, and whether that explains every other best id."""
    largest = float(np.abs(ours - theirs).max())
    best = theirs.argmax(axis=1)
    top = np.sort(theirs, axis=1)[:, -2:]
    gap = top[:, 1] - top[:, 0]
    other = ours.argmax(axis=1) != best
    return {
        "steps": len(ours),
        "same_best": int((~other).sum()),
        "unexplained": int((other & (gap >= 2 * largest)).sum()),
        "largest_gap_at_a_difference": float(gap[other].max()) if other.any() else None,
        "median_gap": float(np.median(gap)),
        "rms_difference": float(np.sqrt(np.mean(np.square(ours - theirs)))),
        "largest_difference": largest,
        "spread_of_logits": float(theirs.std()),
    }


def free_run(model: Model, llama: Llama, prompt: list[int]) -> dict[str, Any]:
    """Greedy on both sides; at the first difference, both ids with both engines' logits."""
    pairs = list(llama.greedy(prompt, GREEDY))
    theirs = [token for token, _ in pairs]
    params = SamplingParams(max_tokens=len(theirs))
    ours = [token.id for token in generate(model, prompt, params)]
    step = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), None)
    found: dict[str, Any] = {"ids": len(theirs), "equal": len(theirs) if step is None else step}
    if step is not None:
        logits = ours_along(model, prompt, theirs[: step + 1])[step]
        a, b = ours[step], theirs[step]
        found["first_difference"] = {
            "ours": {"id": a, "logit": float(logits[a]), "llama_cpp_logit": float(pairs[step][1][a])},
            "llama_cpp": {"id": b, "logit": float(logits[b]), "llama_cpp_logit": float(pairs[step][1][b])},
            "largest_difference": float(np.abs(logits - pairs[step][1]).max()),
        }
    return found


def compare(path: Path, weights: Weights, threads: int, exact: bool) -> dict[str, Any]:
    """All comparisons of one file."""
    place = device("cpu", threads=threads)
    model = build(weights, place, context=CONTEXT)
    ids = np.random.default_rng(7).integers(0, model.config.vocabulary, PROMPT + WALK).tolist()
    prompt, walk = ids[:PROMPT], ids[PROMPT:]
    llama = Llama(path, context=CONTEXT, threads=threads)
    found: dict[str, Any] = {"model": path.name, "format": weights.format, "kernels": place.kernels}
    found |= {"free_run": free_run(model, llama, prompt)}
    ours, theirs = ours_along(model, prompt, walk), theirs_along(llama, prompt, walk)
    found["int8"] = distance(ours, theirs)
    llama.close()
    if exact:
        plain = build(weights, place, activations="exact", kv="f32", context=CONTEXT)
        exactly = ours_along(plain, prompt, walk)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            reencode(path, Path(folder) / "f32.gguf", 0)
            llama = Llama(Path(folder) / "f32.gguf", context=CONTEXT, threads=threads, kv="f32")
            reference = theirs_along(llama, prompt, walk)
            llama.close()
        found["exact"] = distance(exactly, reference)
        found["our_int8_from_exact"] = distance(ours, reference)
        found["their_int8_from_exact"] = distance(theirs, reference)
    return found | {"llama_cpp": version()}


def main() -> None:
    """Parse, make a synthetic model if asked for, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--synthetic")
    parser.add_argument("--format", default="q1_0")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--exact", action="store_true")
    arguments = parser.parse_args()
    if (arguments.model is None) == (arguments.synthetic is None):
        parser.error("give a model file or --synthetic, one of the two")
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.model or write_synthetic(
            Path(folder) / f"{arguments.synthetic}-{arguments.format}.gguf", arguments.synthetic, arguments.format
        )
        print(json.dumps(compare(path, open(path), arguments.threads, arguments.exact)))


if __name__ == "__main__":
    main()
