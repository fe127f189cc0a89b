"""What multiplies through WebGPU: one dispatch for a single row, two for many, whatever the format."""

from __future__ import annotations

from dataclasses import replace

from shohin.devices import Weight
from shohin.devices.webgpu.dispatch import Dispatch, Target
from shohin.kernels.linear.webgpu.batch import batch_dispatches, combine
from shohin.kernels.linear.webgpu.decode import decode_dispatches, fits_decode
from shohin.kernels.linear.webgpu.projection import Linear, Piece

__all__ = ["Linear", "Piece", "linear_dispatches"]


def linear_dispatches(linear: Linear, target: Target) -> list[Dispatch]:
    """Weights of one format together; gate and up in two formats apart, and what joins them."""
    if linear.epilogue == "swiglu" and linear.weights[0].format is not linear.weights[1].format:
        places = [target.scratch(4 * target.rows * linear.width) for _ in linear.weights]
        apart = [
            replace(linear, weights=(weight,), out=place, epilogue="store")
            for weight, place in zip(linear.weights, places, strict=True)
        ]
        return [*(d for one in apart for d in linear_dispatches(one, target)), combine(linear, places, target)]
    dispatches: list[Dispatch] = []
    column = linear.column
    for run in _runs(linear.weights):
        one = replace(linear, weights=run, column=column)
        fused = linear.rows(target) == 1 and fits_decode(one, target)
        dispatches += decode_dispatches(one, target) if fused else batch_dispatches(one, target)
        column += sum(weight.shape[0] for weight in run)
    return dispatches


def _runs(weights: tuple[Weight, ...]) -> list[tuple[Weight, ...]]:
    """Neighbours of one format together."""
    runs: list[list[Weight]] = []
    for weight in weights:
        if runs and runs[-1][-1].format is weight.format:
            runs[-1].append(weight)
        else:
            runs.append([weight])
    return [tuple(run) for run in runs]
