"""The meaning of ``embed``."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from shohin.devices import Step
from shohin.devices.host import HostWeight


def embed(table: HostWeight, out: NDArray[Any], step: Step) -> None:
    """out[m] = decoded row ``tokens[m]`` of the table."""
    out[: step.rows] = table.rows(step.tokens)
