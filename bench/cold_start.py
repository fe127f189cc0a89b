"""From the start of a process to its first token on a GPU, with an empty and with a full cache of compiled kernels.

    python bench/cold_start.py [MODEL.gguf] [--synthetic bonsai-1.7b] [--format q1_0] [--device cuda] [--rounds 5]

Every run is a process of its own, timed from outside until its first token is printed; the model's file was written or
read before, so it is in the page cache. The first run finds no compiled kernels; those after it, of which medians are
given, find what it left. import_s: of ``shohin`` and the command line; device_s: opening the GPU; load_s: the file, the
tokenizer and packing; prepare_s: the two tapes, compiled or read from disk; token_s: reading a prompt of 8 ids.
kernels: how many were compiled. One JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

PROMPT = 8


def inside(path: str, name: str) -> None:
    """One fresh process: its first token, then what it measured."""
    times = [perf_counter()]
    import shohin.serve.cli
    from shohin.serve.loading import load, prepare

    times.append(perf_counter())
    device = shohin.device(name)
    times.append(perf_counter())
    compiled: dict[str, int] = {}
    model, _ = load(path, device=device, progress=lambda what, done, _: compiled.update({what: done}))
    times.append(perf_counter())
    counts: list[int] = []
    prepare(model, PROMPT, progress=lambda _what, done, _total: counts.append(done))
    times.append(perf_counter())
    token = next(iter(shohin.generate(model, range(PROMPT), shohin.SamplingParams(max_tokens=1, temperature=0.0))))
    print(token.id, flush=True)
    times.append(perf_counter())
    parts = ("import_s", "device_s", "load_s", "prepare_s", "token_s")
    found = {part: after - before for part, (before, after) in zip(parts, pairwise(times), strict=True)}
    found["kernels"] = compiled.get("compile", 0) + sum(1 for n in counts if n)
    print(json.dumps(found), flush=True)


def run(path: Path, device: str, home: str) -> dict[str, float]:
    """Seconds from the start of a process to its first token, and its parts. home: where compiled kernels are kept."""
    begin = perf_counter()
    command = [sys.executable, __file__, str(path), "--device", device, "--inside"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"HOME": home})
    assert process.stdout is not None
    process.stdout.readline()
    seconds = perf_counter() - begin
    found: dict[str, float] = json.loads(process.stdout.read())
    if process.wait():
        raise SystemExit(f"a run ended with status {process.returncode}")
    return {"first_token_s": seconds, **found}


def measure(path: Path, device: str, rounds: int) -> dict[str, Any]:
    """The first run and medians of those after it."""
    path.read_bytes()
    with tempfile.TemporaryDirectory() as home:
        first = run(path, device, home)
        later = [run(path, device, home) for _ in range(rounds)]
    warm = {name: median(each[name] for each in later) for name in first}
    return {"model": path.name, "rounds": rounds, "empty_cache": _short(first), "full_cache": _short(warm)}


def _short(found: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in found.items()}


def main() -> None:
    """Parse, make a synthetic model unless one is named, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--synthetic", default="bonsai-1.7b")
    parser.add_argument("--format", default="q1_0")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        inside(str(arguments.model), arguments.device)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.model
        if path is None:
            from shohin.formats import write_synthetic

            path = write_synthetic(Path(folder) / f"{arguments.synthetic}.gguf", arguments.synthetic, arguments.format)
        print(json.dumps(measure(path, arguments.device, arguments.rounds)), flush=True)


if __name__ == "__main__":
    main()
