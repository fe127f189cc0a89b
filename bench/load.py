"""From the call of ``load`` to the first token, and the memory it takes; each round in a fresh process.

    python bench/load.py MODEL.gguf [--threads N] [--rounds 5] [--packed-cache]
    python bench/load.py --synthetic bonsai-1.7b --format q1_0

The file is in the page cache: it was just written or read once. import_s: of ``shohin`` and the command line.
load_s: the call of ``load``; first_token_s: from that call to the first token of a prompt of 8 ids. anonymous_mb:
RssAnon then; idle_mb: of a process that holds only the tokenizer; anonymous_limit_mb: 1.15 times the packed weights,
the cache of those positions and 64 MB above idle. file_mb: the pages of files then. Medians. With --packed-cache rounds
alternate with two other kinds, given as packed_cache and packed_cache_hub: the packed weights of an earlier process are
mapped, and the model's file is told by reading it, or by its name in the hub's cache. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

PROMPT = 8


def resident(kind: str) -> float:
    """Megabytes (10^6 bytes) of ``RssAnon`` or ``RssFile`` of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise LookupError(f"/proc/self/status has no {kind}")


def full(path: str, threads: int) -> dict[str, float]:
    """What one fresh process measures; SHOHIN_PACKED_CACHE says whether it packs."""
    begin = perf_counter()
    import shohin.serve.cli

    imported = perf_counter()
    model, _ = shohin.load(path, threads=threads)
    loaded = perf_counter()
    next(iter(shohin.generate(model, range(PROMPT), shohin.SamplingParams(max_tokens=1))))
    done = perf_counter()
    return {
        "import_s": imported - begin,
        "load_s": loaded - imported,
        "first_token_s": done - imported,
        "anonymous_mb": resident("RssAnon"),
        "file_mb": resident("RssFile"),
        "weights_mb": model.weight_bytes / 1e6,
        "cache_mb": model.kv_bytes_per_token * model.cache.page / 1e6,
    }


def idle(path: str) -> dict[str, float]:
    """A process that holds the tokenizer and nothing else of the model."""
    import shohin
    from shohin.formats.text import tokenizer_from_metadata

    weights = shohin.open(path)
    tokenizer = tokenizer_from_metadata(weights.metadata, weights.source)
    return {"idle_mb": resident("RssAnon"), "vocabulary": tokenizer.vocab_size}


def fresh(what: str, path: Path, threads: int, kept: str = "0") -> dict[str, float]:
    """The answer of this script started anew; ``kept`` is a folder of packed weights, or 0."""
    command = [sys.executable, __file__, str(path), "--threads", str(threads), "--inside", what]
    env = os.environ | {"SHOHIN_PACKED_CACHE": kept}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure(path: Path, threads: int, rounds: int, kept: Path | None) -> dict[str, Any]:
    """Medians of the rounds, and the limit they are held against; ``kept``: an empty folder for packed weights."""
    path.read_bytes()
    kinds = {"": (path, "0")}
    if kept is not None:
        blob = kept / "blobs" / ("0" * 64)
        blob.parent.mkdir()
        shutil.copyfile(path, blob)
        kinds |= {"packed_cache": (path, str(kept / "packed")), "packed_cache_hub": (blob, str(kept / "packed"))}
        for file, folder in kinds.values():
            fresh("full", file, threads, folder)
    runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, (file, folder) in kinds.items():
            runs[kind].append(fresh("full", file, threads, folder))
    found: dict[str, Any] = _medians(runs.pop(""))
    found |= fresh("idle", path, threads)
    found["anonymous_limit_mb"] = found["idle_mb"] + 1.15 * found["weights_mb"] + found["cache_mb"] + 64
    return (
        {"model": path.name, "threads": threads, "rounds": rounds} | found | {k: _medians(r) for k, r in runs.items()}
    )


def _medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: median(run[name] for run in runs) for name in runs[0]}


def main() -> None:
    """Parse, make a synthetic model if asked for, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--synthetic", default="bonsai-1.7b")
    parser.add_argument("--format", default="q1_0")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--packed-cache", action="store_true")
    parser.add_argument("--inside", choices=("full", "idle"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        path = str(arguments.model)
        print(json.dumps(full(path, arguments.threads) if arguments.inside == "full" else idle(path)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.model
        if path is None:
            from shohin.formats import write_synthetic

            name = f"{arguments.synthetic}-{arguments.format}.gguf"
            path = write_synthetic(Path(folder) / name, arguments.synthetic, arguments.format)
        kept = Path(folder) if arguments.packed_cache else None
        print(json.dumps(measure(path, arguments.threads, arguments.rounds, kept)))


if __name__ == "__main__":
    main()
