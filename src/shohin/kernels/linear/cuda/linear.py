"""What a projection on a GPU is, whichever kernel multiplies."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shohin.devices import Buffer, Weight

__all__ = ["TILES", "Linear"]

# Layouts of weights in fragment order (``devices/cuda/packing.py``).
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
