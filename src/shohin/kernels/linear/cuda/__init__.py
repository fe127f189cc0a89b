"""Which kernels multiply on a GPU: by the weight's layout, the activation mode and the number of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shohin.devices import Buffer, Weight
from shohin.devices.cuda.launch import Launch, Target

__all__ = ["Linear", "linear_launches"]

TILES = ("tiles1", "tiles2")


@dataclass(frozen=True, eq=False)
class Linear:
    """What the linear ops have in common: x [rows, K], normed where ``norm`` is given, times weights [N, K].

    epilogue: ``store`` (the weights' rows side by side in out), ``add`` (out += one weight's product) or ``swiglu``
    (weights are gate and up). gather: row i of out belongs to row ``wanted[i]`` of x. activations: ``int8``, ``exact``.
    column: where this weight's part of a stored row begins; width: values in a row of out.
    """

    x: Buffer
    norm: Weight | None
    weights: tuple[Weight, ...]
    out: Buffer
    epilogue: str
    activations: str
    eps: float = 1.0
    gather: bool = False
    column: int = 0

    def split(self, count: int) -> tuple[Linear, Linear]:
        """The first ``count`` stored weights, and the rest."""
        column = self.column + sum(w.shape[0] for w in self.weights[:count])
        return replace(self, weights=self.weights[:count]), replace(self, weights=self.weights[count:], column=column)

    @property
    def width(self) -> int:
        """Values in a row of out."""
        return self.out.shape[-1]

    @property
    def same_format(self) -> bool:
        """Whether all weights have one format."""
        return len({w.format.name for w in self.weights}) == 1

    @property
    def layout(self) -> str:
        """The layout that all weights share."""
        return str(self.weights[0].storage.layout)


def linear_launches(linear: Linear, target: Target) -> list[Launch]:
    """Launches of one projection, or of several formats one after the other."""
    parts = _by_layout(linear)
    if len(parts) > 1:
        return [launch for part in parts for launch in linear_launches(part, target)]
    from shohin.kernels.linear.cuda.decode import decode_launches, takes

    tiles = linear.layout in TILES and linear.activations == "int8" and linear.same_format
    if tiles and takes(linear, target):
        return decode_launches(linear, target)
    if tiles:
        from shohin.kernels.linear.cuda.gemm import gemm_launches

        return gemm_launches(linear, target)
    from shohin.kernels.linear.cuda.plain import plain_launches

    return plain_launches(linear, target)


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
