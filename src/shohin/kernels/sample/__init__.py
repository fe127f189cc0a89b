"""A random choice among the likely tokens, made where the logits are."""

from __future__ import annotations

from shohin.kernels.sample.op import MOST_IDS, Drawing, Sample, sample
from shohin.kernels.sample.settings import BIASES, GREEDY, PICKED, SAMPLED, SETTINGS, Choice, pack_choices

__all__ = [
    "BIASES",
    "GREEDY",
    "MOST_IDS",
    "PICKED",
    "SAMPLED",
    "SETTINGS",
    "Choice",
    "Drawing",
    "Sample",
    "pack_choices",
    "sample",
]
