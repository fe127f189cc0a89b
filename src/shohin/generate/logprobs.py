"""Log-probabilities of the model's own distribution, before any sampling setting changes it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shohin.kernels.sample.stages import best

__all__ = ["logprobs"]


def logprobs(logits: NDArray[Any], chosen: int, count: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Log-softmax in float64 of logits [vocabulary]: that of ``chosen``, and the ``count`` best as (id, logprob)."""
    x = logits.astype(np.float64)
    top = x.max()
    with np.errstate(all="ignore"):  # also where the caller made an exception of a share that rounds to zero
        total = top + np.log(np.exp(x - top).sum())
    ranked = best(logits, count) if count else np.zeros(0, np.int64)
    return float(x[chosen] - total), tuple((int(i), float(x[i] - total)) for i in ranked)
