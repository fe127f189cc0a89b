"""The meaning of ``copy``."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from shohin.devices import Step


def copy(x: NDArray[Any], out: NDArray[Any], step: Step) -> None:
    """out[m] = x[m] for every live row."""
    out[: step.rows] = x[: step.rows]
