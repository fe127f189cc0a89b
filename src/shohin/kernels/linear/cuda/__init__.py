"""Which kernels multiply on a GPU: by the weight's layout, the activation mode and the number of rows."""

from __future__ import annotations

from dataclasses import replace

from shohin.devices.cuda.launch import Launch, Target
from shohin.kernels.linear.cuda import f32
from shohin.kernels.linear.cuda.decode import decode_launches, takes
from shohin.kernels.linear.cuda.gemm import gemm_launches
from shohin.kernels.linear.cuda.linear import TILES, Linear
from shohin.kernels.linear.cuda.plain import plain_launches

__all__ = ["Linear", "linear_launches"]


def linear_launches(linear: Linear, target: Target) -> list[Launch]:
    """Launches of one projection, or of several formats one after the other."""
    parts = _by_layout(linear)
    if len(parts) > 1:
        return [launch for part in parts for launch in linear_launches(part, target)]
    if linear.layout not in TILES or linear.activations != "int8" or not linear.same_format:
        return (f32.f32_launches if f32.takes(linear, target) else plain_launches)(linear, target)
    return decode_launches(linear, target) if takes(linear, target) else gemm_launches(linear, target)


def _by_layout(linear: Linear) -> list[Linear]:
    """Runs of stored weights that one kernel can take together: the same layout and format."""
    if linear.epilogue != "store":
        return [linear]
    runs: list[Linear] = []
    column = linear.column
    for weight in linear.weights:
        last = runs[-1].weights[-1] if runs else None
        if last is not None and (last.storage.layout, last.format.name) == (weight.storage.layout, weight.format.name):
            runs[-1] = replace(runs[-1], weights=(*runs[-1].weights, weight))
        else:
            runs.append(replace(linear, weights=(weight,), column=column))
        column += weight.shape[0]
    return runs
