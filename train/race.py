"""Several runs on one machine: recipes are taken from a list by worker processes until the time is over."""

from __future__ import annotations

import json
import time
import traceback
from dataclasses import replace
from pathlib import Path

import torch

from train import fit, speak, tokens
from train.export import save_codes

LAST_STEPS = 12.0  # seconds for the last evaluation and for saving


def race(recipes: list[dict[str, object]], data: Path, out: Path, keep: Path, workers: int, seconds: float) -> None:
    """Run all, first come first served. out: results, small. keep: checkpoints. seconds: all are cooled down by then.

    A recipe whose teachers are ``("best", "3")`` waits for the recipes without teachers and learns from the best three.
    """
    context = torch.multiprocessing.get_context("spawn")
    queue = context.Queue()
    for recipe in recipes:
        queue.put(recipe)
    for _ in range(workers):
        queue.put(None)
    out.mkdir(parents=True, exist_ok=True)
    keep.mkdir(parents=True, exist_ok=True)
    end = time.time() + seconds
    pupils = [str(r["name"]) for r in recipes if r.get("teachers")]
    first = [str(r["name"]) for r in recipes if str(r["name"]) not in pupils]
    runners = [context.Process(target=_work, args=(queue, data, out, keep, end, first)) for _ in range(workers)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()


def _work(queue: object, data: Path, out: Path, keep: Path, end: float, first: list[str]) -> None:
    while (values := queue.get()) is not None:  # type: ignore[attr-defined]
        try:
            recipe = fit.Recipe.from_json(values)
            if recipe.teachers:
                recipe = replace(recipe, teachers=_best(first, int(recipe.teachers[1]), out, keep))
            left = end - time.time() - LAST_STEPS
            if left > 0:
                _run(replace(recipe, seconds=min(recipe.seconds, left)), data, out, keep)
        except Exception:
            (out / f"{values['name']}.error").write_text(traceback.format_exc())
            print(f"{values['name']}: failed\n{traceback.format_exc()[-900:]}", flush=True)


def _best(first: list[str], count: int, out: Path, keep: Path) -> tuple[str, ...]:
    """Checkpoints of the best runs by held-out loss of the plays, once all of them are over."""
    while not all((keep / f"{name}.pt").exists() or (out / f"{name}.error").exists() for name in first):
        time.sleep(0.2)
    done = {name: json.loads((out / f"{name}.json").read_text()) for name in first if (keep / f"{name}.pt").exists()}
    ranked = sorted(done, key=lambda name: float(done[name]["held_out"]["play.validation"]))
    return tuple(str(keep / f"{name}.pt") for name in ranked[:count])


def _run(recipe: fit.Recipe, data: Path, out: Path, keep: Path) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer, streams = tokens.load(data / f"v{recipe.shape.vocabulary}")
    log = (out / f"{recipe.name}.log").open("w", buffering=1)
    model, outcome = fit.fit(recipe, streams, device, compiled=device == "cuda", say=lambda line: print(line, file=log))
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
    for prompt in speak.PROMPTS if recipe.speaks else ():
        said = speak.speak(model, tokenizer, prompt, count=110)
        log.write(f"\n--- {prompt!r}\n{said}\n")
