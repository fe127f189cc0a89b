"""What decides the tokens of a row, as the words that a device reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shohin.errors import BadShape

__all__ = [
    "BIASES",
    "BIAS_WORDS",
    "GREEDY",
    "PICKED",
    "SAMPLED",
    "SETTINGS",
    "WORDS",
    "Choice",
    "pack_choices",
    "unpack_choice",
]

# How a row's id is chosen: as ``pick`` did; the best after penalties; drawn.
PICKED, GREEDY, SAMPLED = 0, 1, 2
# Biased ids that a row can have.
BIASES = 512

# least: the logarithm of min_p. top_k: 0 is off. slot: the row's line of the history.
SETTINGS = np.dtype(
    [
        *((name, "<f8") for name in ("temperature", "top_p", "least", "repetition", "presence", "frequency")),
        *((name, "<u8") for name in ("seed", "index")),
        ("choice", "<u4"),
        *((name, "<i4") for name in ("top_k", "slot", "biases", "kind", "unused")),
    ]
)
BIAS = np.dtype([("value", "<f8"), ("id", "<i4"), ("unused", "<i4")])
WORDS = SETTINGS.itemsize // 4
BIAS_WORDS = BIASES * BIAS.itemsize // 4


@dataclass(frozen=True)
class Choice:
    """How the tokens of one row are chosen; the meanings are those of ``SamplingParams``, seed and choice fixed.

    kind: PICKED leaves the id of ``pick``, GREEDY takes the best after penalties and bias, SAMPLED draws. index: the
    number of the next generated token. slot: the row of the history that belongs to the sequence.
    """

    kind: int = PICKED
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    seed: int = 0
    choice: int = 0
    index: int = 0
    slot: int = 0

    @property
    def penalised(self) -> bool:
        """Whether any setting changes logits before the choice."""
        return (
            bool(self.logit_bias)
            or self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )


def pack_choices(choices: Sequence[Choice], vocabulary: int, slots: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Settings int32 [n, WORDS], biases int32 [n, BIAS_WORDS]; BadShape for a slot, a bias or a count out of range."""
    settings = np.zeros(len(choices), SETTINGS)
    biases = np.zeros((len(choices), BIASES), BIAS)
    for row, biased, c in zip(settings, biases, choices, strict=True):
        _check(c, vocabulary, slots)
        row["temperature"], row["top_p"] = c.temperature, c.top_p
        row["least"] = log(c.min_p) if c.min_p > 0 else -np.inf
        row["repetition"], row["presence"], row["frequency"] = (
            c.repetition_penalty,
            c.presence_penalty,
            c.frequency_penalty,
        )
        row["seed"], row["index"], row["choice"] = c.seed, c.index, c.choice
        row["top_k"] = c.top_k if 0 < c.top_k < vocabulary else 0
        row["slot"], row["biases"], row["kind"] = c.slot, len(c.logit_bias), c.kind
        for entry, (token, value) in zip(biased, sorted(c.logit_bias.items()), strict=False):
            entry["id"], entry["value"] = token, value
    return (
        np.ascontiguousarray(settings).view(np.int32).reshape(-1, WORDS),
        np.ascontiguousarray(biases).view(np.int32).reshape(-1, BIAS_WORDS),
    )


def unpack_choice(row: Any, biases: NDArray[Any]) -> Choice:
    """The choice that a row of SETTINGS and its BIAS entries were packed from; min_p within a rounding."""
    return Choice(
        kind=int(row["kind"]),
        temperature=float(row["temperature"]),
        top_k=int(row["top_k"]),
        top_p=float(row["top_p"]),
        min_p=exp(row["least"]),
        repetition_penalty=float(row["repetition"]),
        presence_penalty=float(row["presence"]),
        frequency_penalty=float(row["frequency"]),
        logit_bias={int(entry["id"]): float(entry["value"]) for entry in biases[: row["biases"]]},
        seed=int(row["seed"]),
        choice=int(row["choice"]),
        index=int(row["index"]),
        slot=int(row["slot"]),
    )


def _check(c: Choice, vocabulary: int, slots: int) -> None:
    if not 0 <= c.slot < slots:
        raise BadShape(f"sample: slot {c.slot} of a history of {slots}")
    if len(c.logit_bias) > BIASES:
        raise BadShape(f"sample: {len(c.logit_bias)} biased ids, a device takes {BIASES}")
    wrong = [i for i in c.logit_bias if not 0 <= i < vocabulary]
    if wrong:
        raise BadShape(f"sample: id {wrong[0]} is biased, the vocabulary has {vocabulary} ids")
    if c.kind == SAMPLED and not c.temperature > 0:
        raise BadShape(f"sample: a temperature of {c.temperature} draws nothing; take the best token instead")
