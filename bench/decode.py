"""Decode and prefill of shohin beside llama.cpp in one run, round by round, and beside what the memory allows.

    python bench/decode.py MODEL.gguf [--threads N] [-p 128] [-n 32] [--rounds 5] [--alone]
    python bench/decode.py --synthetic bonsai-1.7b --format q1_0

Both engines read the same random ids. Rounds alternate, so that what else the machine does hits both; medians are
reported. ``decode_speedup`` and ``prefill_speedup`` are shohin's over llama.cpp's. llama.cpp is left out, by name,
where llama-cpp-python is not installed or with --alone. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import numpy as np

from shohin.devices import device
from shohin.formats import open, write_synthetic
from shohin.models import build
from shohin.serve.benchmark import Load, run_bench

sys.path.insert(0, str(Path(__file__).parent))

# An engine's idle threads may spin for a moment after their work.
PAUSE = 0.3


@dataclass(frozen=True)
class Speeds:
    """Tokens a second of one round."""

    decode: float
    prefill: float


class Peer:
    """llama.cpp, timed as ``run_bench`` times shohin: prompt up to the first choice, then one id at a time."""

    def __init__(self, path: Path, load: Load, threads: int) -> None:
        from llama_peer import Llama, version

        self.version = version()
        self._llama = Llama(path, context=load.prompt + load.generate, threads=threads)
        self._load = load
        self._prompt = np.random.default_rng(load.seed).integers(0, self._llama.rows, load.prompt).tolist()
        self._llama.feed(self._prompt[:8])

    def measure(self) -> Speeds:
        """One round."""
        self._llama.reset()
        begin = perf_counter()
        token = int(self._llama.feed(self._prompt).argmax())
        first = perf_counter()
        for _ in range(self._load.generate - 1):
            token = int(self._llama.feed([token]).argmax())
        end = perf_counter()
        return Speeds((self._load.generate - 1) / (end - first), self._load.prompt / (first - begin))


def peer_of(path: Path, load: Load, threads: int, alone: bool) -> Peer | None:
    """The peer, or None with a remark where there is none."""
    if alone:
        return None
    try:
        return Peer(path, load, threads)
    except ImportError as error:
        print(f"llama.cpp is left out: {error}", file=sys.stderr)
        return None


def measure(path: Path, load: Load, threads: int, rounds: int, peer: Peer | None) -> dict[str, Any]:
    """Alternate the engines and put the medians side by side."""
    weights = open(path)
    model = build(weights, device("cpu", threads=threads), context=load.prompt + load.generate)
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(run_bench(model, load))
        sleep(PAUSE)
        if peer is not None:
            theirs.append(peer.measure())
            sleep(PAUSE)
    found = dict(ours[0])
    for name in ("decode_tokens_per_s", "prefill_tokens_per_s", "first_token_s"):
        found[name] = median(run[name] for run in ours)
    found["read_bandwidth_gb_s"] = max(run["read_bandwidth_gb_s"] for run in ours)
    allowed = found["read_bandwidth_gb_s"] * 1e9 / found["bytes_per_token"]
    found["decode_over_floor"] = found["decode_tokens_per_s"] / allowed
    found |= {"model": path.name, "format": weights.format, "rounds": rounds}
    if peer is not None:
        decode, prefill = median(s.decode for s in theirs), median(s.prefill for s in theirs)
        found["llama_cpp"] = {"decode_tokens_per_s": decode, "prefill_tokens_per_s": prefill, "version": peer.version}
        found["decode_speedup"] = median(o["decode_tokens_per_s"] / t.decode for o, t in zip(ours, theirs, strict=True))
        found["prefill_speedup"] = median(
            o["prefill_tokens_per_s"] / t.prefill for o, t in zip(ours, theirs, strict=True)
        )
    return found


def main() -> None:
    """Parse, make a synthetic model if asked for, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--synthetic")
    parser.add_argument("--format", default="q1_0")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-p", "--prompt", type=int, default=128)
    parser.add_argument("-n", "--generate", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--alone", action="store_true", help="without llama.cpp")
    arguments = parser.parse_args()
    if (arguments.model is None) == (arguments.synthetic is None):
        parser.error("give a model file or --synthetic, one of the two")
    load = Load(arguments.prompt, arguments.generate)
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.model or write_synthetic(
            Path(folder) / f"{arguments.synthetic}-{arguments.format}.gguf", arguments.synthetic, arguments.format
        )
        peer = peer_of(path, load, arguments.threads, arguments.alone)
        print(json.dumps(measure(path, load, arguments.threads, arguments.rounds, peer)))


if __name__ == "__main__":
    main()
