"""The meaning of ``sample``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shohin.devices import Step
from shohin.kernels.sample.settings import BIAS, GREEDY, PICKED, SETTINGS

if TYPE_CHECKING:
    from shohin.kernels.sample.op import Sample

Floats = NDArray[Any]
Ints = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Tables:
    """The op's inputs as arrays."""

    logits: Floats
    settings: Ints
    biases: Ints
    history: Ints


def sample(op: Sample, tables: Tables, ids: Ints, status: Ints, step: Step) -> None:
    """One row after the other; settings and history move on in place."""
    settings = tables.settings.view(SETTINGS)[:, 0]
    for i in range(len(step.wanted)):
        row = settings[i]
        if row["kind"] == PICKED or status[i] != 0:
            continue
        seen = tables.history[row["slot"]]
        biases = tables.biases[i].view(BIAS)[: row["biases"]]
        with np.errstate(all="ignore"):
            ids[i] = _choose(tables.logits[i, : op.vocabulary], row, seen, biases)
        seen[ids[i]] += 2
        row["index"] += 1


def _choose(logits: Floats, row: Any, seen: Ints, biases: Any) -> int:
    x = _penalised(logits, row, seen, biases)
    if row["kind"] == GREEDY:
        return int(x.argmax())
    kept = _survivors(x, row)
    y = x[kept].astype(np.float64) / row["temperature"]
    sums = np.exp(y - y.max()).cumsum()
    target = min(_uniform(row) * sums[-1], np.nextafter(sums[-1], 0))
    return int(kept[np.searchsorted(sums, target, side="right")])


def _penalised(logits: Floats, row: Any, seen: Ints, biases: Any) -> Floats:
    x = logits.astype(np.float64)
    there = seen != 0
    counts = seen >> 1
    x[there] = np.where(x[there] > 0, x[there] / row["repetition"], x[there] * row["repetition"])
    again = counts > 0
    x[again] -= row["presence"] + row["frequency"] * counts[again]
    x[biases["id"]] += biases["value"]
    return x


def _survivors(x: Floats, row: Any) -> NDArray[np.int64]:
    """Ids that may be drawn, ascending."""
    best = np.argsort(-x, kind="stable")[: row["top_k"] or len(x)]
    top = x[best[0]]
    if row["top_p"] < 1:
        goal = row["top_p"] * np.exp(x[np.sort(best)] - top).sum()
        best = best[: int(np.searchsorted(np.exp(x[best] - top).cumsum(), goal)) + 1]
    return np.sort(best[x[best] >= top + row["least"]])


def _uniform(row: Any) -> float:
    """The draw of a token, in [0, 1) with 53 bits: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011)."""
    index, seed = int(row["index"]), int(row["seed"])
    low = 0xFFFFFFFF
    a, b, c, d = index & low, index >> 32, int(row["choice"]), 0
    left, right = seed & low, seed >> 32
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = second >> 32 ^ b ^ left, second & low, first >> 32 ^ d ^ right, first & low
        left, right = left + 0x9E3779B9 & low, right + 0xBB67AE85 & low
    return float((a >> 5 << 26) + (b >> 6)) / 2.0**53
