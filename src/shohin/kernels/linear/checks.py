"""Checks shared by every op that multiplies a quantised matrix."""

from __future__ import annotations

import math

from shohin.devices import Device, Weight
from shohin.errors import BadRequest, BadShape

ACTIVATIONS = ("int8", "exact")


def check_activations(mode: str) -> int:
    """0 for exact, 1 for int8, as the native kernels take it; BadRequest for anything else."""
    if mode not in ACTIVATIONS:
        raise BadRequest(f"activations is {mode!r}, expected one of {', '.join(ACTIVATIONS)}", param="activations")
    return int(mode == "int8")


def check_eps(what: str, eps: float) -> None:
    """BadShape unless eps is a positive finite number (H.21)."""
    if not (eps > 0 and math.isfinite(eps)):
        raise BadShape(f"{what}: epsilon is {eps}, a positive number was expected")


def check_matrix(what: str, weight: Weight, rows: int | None, columns: int, device: Device) -> int:
    """BadShape unless weight is [rows, columns] on device, in whole blocks (H.5 to H.7); returns its rows."""
    if len(weight.shape) != 2:
        raise BadShape(f"{what}: weight {weight.name!r} has shape {list(weight.shape)}, a matrix was expected")
    if columns % weight.format.block:
        raise BadShape(
            f"{what}: weight {weight.name!r} has {columns} columns, "
            f"not a multiple of the {weight.format.block} of {weight.format.name}"
        )
    weight.expect(what, (weight.shape[0] if rows is None else rows, columns), device)
    return weight.shape[0]
