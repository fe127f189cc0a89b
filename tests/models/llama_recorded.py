"""llama.cpp's recorded answers (tests/fixtures/llama_*), and what it means that an engine agrees with them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from forwarding import prompt_logits
from numpy.typing import NDArray

from shohin.formats import Weights
from shohin.models import Model

FIXTURES = Path(__file__).parents[1] / "fixtures"

# Recordings keep four decimals.
ROUNDED = 0.5e-4
KEPT = ("best", "best_logits", "probe_logits")


def load(folder: str, name: str) -> dict[str, Any]:
    """A recording as it was dumped."""
    found: dict[str, Any] = json.loads((FIXTURES / folder / name).read_text(encoding="utf-8"))
    return found


def tensor_digest(weights: Weights) -> str:
    """sha256 over names, shapes, formats and bytes of all tensors: what llama.cpp computed with, metadata left out."""
    digest = hashlib.sha256()
    for tensor in weights.tensors.values():
        digest.update(f"{tensor.name} {tensor.shape} {tensor.format.name}".encode())
        digest.update(tensor.data)
    return digest.hexdigest()


def logits_along(model: Model, prompt: Sequence[int], ids: Sequence[int]) -> NDArray[np.floating]:
    """The logits from which each of ``ids`` would have been picked, [len(ids), rows]."""
    return prompt_logits(model, [*prompt, *ids[:-1]])[len(prompt) - 1 :]


@dataclass(frozen=True)
class Difference:
    """One engine's logits minus another's along the same ids, where the recording kept them.

    values: [steps, kept], the other's five best and the probes. ours, theirs: the picked id of every step.
    gap: the other's distance between its two best logits.
    """

    values: NDArray[np.floating]
    ours: NDArray[np.integer]
    theirs: NDArray[np.integer]
    gap: NDArray[np.floating]

    @property
    def largest(self) -> float:
        """The largest absolute difference."""
        return float(np.abs(self.values).max())

    @property
    def rms(self) -> float:
        """Root of the mean squared difference."""
        return float(np.sqrt(np.square(self.values).mean()))

    def unexplained(self) -> list[str]:
        """Steps that pick another id although the gap is not below twice the largest difference."""
        wrong = np.flatnonzero((self.ours != self.theirs) & (self.gap >= 2 * self.largest))
        return [
            f"step {i}: {self.ours[i]} instead of {self.theirs[i]}, gap {self.gap[i]:.4f}, largest difference "
            f"{self.largest:.4f}"
            for i in wrong
        ]


def difference(logits: NDArray[np.floating], recorded: Mapping[str, Any], probe: Sequence[int]) -> Difference:
    """``logits`` [steps, rows] against a recording along the same ids."""
    best = np.array(recorded["best"])
    top = np.array(recorded["best_logits"])
    values = np.concatenate(
        [np.take_along_axis(logits, best, axis=1) - top, logits[:, probe] - np.array(recorded["probe_logits"])], axis=1
    )
    return Difference(values, logits.argmax(axis=1), best[:, 0], top[:, 0] - top[:, 1])


def between(recorded: Mapping[str, Any], other: Mapping[str, Any]) -> Difference:
    """One recording against another along the same ids: the probes, and the best ids that both kept."""
    mine = [dict(zip(ids, values, strict=True)) for ids, values in zip(*_best(recorded), strict=True)]
    theirs = [dict(zip(ids, values, strict=True)) for ids, values in zip(*_best(other), strict=True)]
    shared = [[a[i] - b[i] for i in a.keys() & b.keys()] for a, b in zip(mine, theirs, strict=True)]
    probes = np.array(recorded["probe_logits"]) - np.array(other["probe_logits"])
    values = np.concatenate([np.array([v for step in shared for v in step]), probes.ravel()])
    top = np.array(other["best_logits"])
    ours, picked = np.array(recorded["best"])[:, 0], np.array(other["best"])[:, 0]
    return Difference(values, ours, picked, top[:, 0] - top[:, 1])


def _best(recorded: Mapping[str, Any]) -> tuple[list[list[int]], list[list[float]]]:
    return recorded["best"], recorded["best_logits"]


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """The first step at which two answers differ, or None; an answer that merely stops earlier differs there."""
    if list(ours) == list(theirs):
        return None
    pairs = zip(ours, theirs, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))


def explained(
    step: int, ours: Sequence[int], logits: NDArray[np.floating], recorded: Mapping[str, Any], probe: Sequence[int]
) -> str:
    """Both engines' logits of the two ids at the first step that differs; AssertionError unless it is a near-tie.

    ``logits`` are ours along the recorded ids, so both engines have read the same ids up to ``step``.
    """
    found = difference(logits[: step + 1], {k: recorded[k][: step + 1] for k in KEPT}, probe)
    best = dict(zip(recorded["best"][step], recorded["best_logits"][step], strict=True))
    a, b = ours[step], recorded["ids"][step]
    here = {i: f"{logits[step, i]:.4f} here" for i in (a, b)}
    shown = f"step {step}: id {a} ({here[a]}, {best.get(a)} there), id {b} ({here[b]}, {best[b]} there)"
    assert found.ours[step] == a, f"{shown}; one prefill over the same ids picks {found.ours[step]} here"
    assert a in best, f"{shown}: id {a} is not among llama.cpp's best"
    assert best[b] - best[a] < 2 * found.largest, f"{shown}: no near-tie, the largest difference is {found.largest:.4f}"
    return f"{shown}; largest difference {found.largest:.4f}"
