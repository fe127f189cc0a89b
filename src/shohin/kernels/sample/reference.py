"""The meaning of ``sample``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shohin.devices import Step
from shohin.kernels.sample.random import uniform
from shohin.kernels.sample.settings import BIAS, GREEDY, PICKED, SETTINGS, Choice, unpack_choice
from shohin.kernels.sample.stages import History, draw, likeliest, survivors

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
        with np.errstate(all="ignore"):
            ids[i] = _choose(tables.logits[i, : op.vocabulary], unpack_choice(row, tables.biases[i].view(BIAS)), seen)
        seen[ids[i]] += 2
        row["index"] += 1


def _choose(logits: Floats, choice: Choice, seen: Ints) -> int:
    history = History.of(seen != 0, seen >> 1)
    if choice.kind == GREEDY:
        return likeliest(logits, choice, history)
    found = survivors(logits, choice, history)
    return found.id(draw(found.logits, uniform(choice.seed, choice.choice, choice.index)))
