"""The command as a user runs it: a process of its own, on the tiny models of the case files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# The fields of `shohin bench --json` that other tools read.
BENCH_KEYS = {
    "decode_tokens_per_s",
    "prefill_tokens_per_s",
    "bytes_per_token",
    "read_bandwidth_gb_s",
    "decode_over_floor",
    "first_token_s",
    "peak_memory_bytes",
    "device",
    "kernels",
}


@dataclass(frozen=True)
class Done:
    """What a finished command printed."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as the one JSON object that ``--json`` promises."""
        assert len(self.out.splitlines()) == 1, self.out
        return json.loads(self.out)


Shohin = Callable[..., Done]


@pytest.fixture(scope="session")
def shohin() -> Shohin:
    """Run ``shohin`` with arguments; ``stdin`` is text or bytes, ``env`` is added to the environment."""
    pytest.importorskip("shohin._core", reason="the native core is not built")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SHOHIN_", "HF_"))}

    def run(*args: object, stdin: str | bytes = b"", env: dict[str, str] | None = None) -> Done:
        raw = stdin.encode() if isinstance(stdin, str) else stdin
        command = [sys.executable, "-m", "shohin", *map(str, args)]
        done = subprocess.run(
            command, input=raw, capture_output=True, env={**clean, **(env or {})}, timeout=120, check=False
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture(scope="session")
def tiny(cases: Path) -> Path:
    """The tiny Qwen3-shaped model in Q1_0."""
    return cases / "gguf" / "tiny_q1.gguf"
