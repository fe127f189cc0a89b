"""Logits of prompts, for tests: in one go, in chunks, and many sequences in one step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shohin.devices import Step
from shohin.kernels.attend import PAGE
from shohin.models import CAPACITIES, Model


def page_table(model: Model, sequences: int = 1) -> NDArray[np.int32]:
    """Each sequence's own pages, in an order that is not consecutive."""
    each = -(-model.context // PAGE)
    pages = np.arange(sequences * each, dtype=np.int32).reshape(each, sequences).T
    return np.ascontiguousarray(pages[:, ::-1])


def prompt_logits(model: Model, ids: Sequence[int], chunk: int | None = None) -> NDArray[np.floating]:
    """Logits after every position, [len(ids), rows], read in chunks (one after the other)."""
    chunk = min(chunk or len(ids), CAPACITIES[-1])
    tape = model.tape("prefill", min(chunk, len(ids)))
    found = []
    for start in range(0, len(ids), chunk):
        part = np.array(ids[start : start + chunk])
        step = Step.of(part, positions=np.arange(start, start + len(part)), pages=page_table(model))
        found.append(tape.play(step, fetch=("logits",))["logits"])
    return np.concatenate(found)


def batch_logits(model: Model, ids: Sequence[int], lengths: Sequence[int]) -> NDArray[np.floating]:
    """Logits after the first ``lengths[i]`` ids of ``ids`` in sequence i, whose last ids run in one step together."""
    pages = page_table(model, len(lengths))
    for i, length in enumerate(lengths):
        if length > 1:
            part = np.array(ids[: length - 1])
            step = Step.of(part, sequences=np.full(len(part), i), pages=pages, wanted=[])
            model.tape("prefill", len(part), wanted=1).play(step)
    last = np.array(lengths) - 1
    step = Step.of(np.array(ids)[last], positions=last, sequences=np.arange(len(lengths)), pages=pages)
    return model.tape("decode", len(lengths)).play(step, fetch=("logits",))["logits"]
