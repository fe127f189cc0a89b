"""The meaning of ``pick``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shohin.devices import Step

if TYPE_CHECKING:
    from shohin.kernels.pick.op import Pick


def pick(op: Pick, logits: NDArray[Any], ids: NDArray[np.int32], status: NDArray[np.int32], step: Step) -> None:
    """ids[i] = lowest index of the largest live logit, or -1 with status 1 when any live logit is NaN or infinite."""
    n = len(step.wanted)
    live = logits[:n, : op.vocabulary]
    finite = np.isfinite(live).all(axis=1)
    ids[:n] = np.where(finite, live.argmax(axis=1), -1)
    status[:n] = ~finite
