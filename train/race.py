"""Several runs on one machine: recipes are taken from a list by worker processes until the time is over."""

from __future__ import annotations

import json
import time
import traceback
from pathlib import Path

import torch

from train import fit, speak, tokens
from train.export import save_codes


def race(recipes: list[dict[str, object]], data: Path, out: Path, keep: Path, workers: int, seconds: float) -> None:
    """Run all, first come first served. out: results, small. keep: checkpoints. seconds: none is begun after that."""
    context = torch.multiprocessing.get_context("spawn")
    queue = context.Queue()
    for recipe in recipes:
        queue.put(recipe)
    for _ in range(workers):
        queue.put(None)
    out.mkdir(parents=True, exist_ok=True)
    keep.mkdir(parents=True, exist_ok=True)
    end = time.time() + seconds
    runners = [context.Process(target=_work, args=(queue, data, out, keep, end)) for _ in range(workers)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()


def _work(queue: object, data: Path, out: Path, keep: Path, end: float) -> None:
    while (values := queue.get()) is not None:  # type: ignore[attr-defined]
        if time.time() > end:
            continue
        try:
            _run(fit.Recipe.from_json(values), data, out, keep)
        except Exception:
            (out / f"{values['name']}.error").write_text(traceback.format_exc())
            print(f"{values['name']}: failed\n{traceback.format_exc()[-900:]}", flush=True)


def _run(recipe: fit.Recipe, data: Path, out: Path, keep: Path) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer, streams = tokens.load(data / f"v{recipe.shape.vocabulary}")
    log = (out / f"{recipe.name}.log").open("w", buffering=1)
    # A recipe of a later stage waits for its teachers.
    while not all(Path(path).exists() for path in recipe.teachers):
        time.sleep(0.2)
    model, outcome = fit.fit(
        recipe, streams, device, compiled=device == "cuda", say=lambda line: log.write(line + "\n") and None
    )
    outcome.save(out / f"{recipe.name}.json")
    half = keep / f"{recipe.name}.part"
    fit.save(model, half)
    half.rename(keep / f"{recipe.name}.pt")
    if recipe.grid != "none":
        save_codes(model, keep / f"{recipe.name}.npz")
    best = min(held for _, _, held in outcome.curve)
    print(
        f"{recipe.name:14} {outcome.tokens / 1e6:6.1f}M {outcome.seconds:5.0f} s  loss {outcome.curve[-1][1]:.3f}  "
        f"held out {outcome.curve[-1][2]:.4f} (best {best:.4f})  {json.dumps(outcome.held_out)}",
        flush=True,
    )
    for prompt in speak.PROMPTS:
        said = speak.speak(model, tokenizer, prompt, count=110)
        log.write(f"\n--- {prompt!r}\n{said}\n")
