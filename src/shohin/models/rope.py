"""Rotary position embedding: inverse frequencies, YaRN, and the table of cosines and sines."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

from shohin.errors import BadShape

# Rows of the table that are computed at once, so that the float64 angles of a long context stay small.
CHUNK = 4096
# Contexts are u32 in model files.
LAST_POSITION = 2.0**32
# Turns over the original context that YaRN's ramp may begin or end at; published models have 1 to 32.
TURNS = (1e-6, 1e12)


@dataclass(frozen=True)
class Linear:
    """Positions divided by ``factor``."""

    factor: float


@dataclass(frozen=True)
class Yarn:
    """Static YaRN (Peng et al., "YaRN: Efficient Context Window Extension", 2023): it holds at every position.

    factor: how far the context is stretched. original_context: positions the model knew before. magnitude multiplies
    cosine and sine; None is the paper's 1 + 0.1 ln(factor). beta_fast and beta_slow are turns over the original
    context: pairs that turn more often keep their frequency, pairs that turn less often are interpolated.
    """

    factor: float
    original_context: int
    magnitude: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True)
class Rope:
    """base: theta. dim: head_dim, all of it rotated. pairing: ``half`` or ``adjacent``, as ``attend`` takes it.

    divisors: [dim / 2] numbers that divide the frequencies pair by pair (Llama 3's ``rope_freqs``), or empty.
    """

    base: float
    dim: int
    pairing: str = "half"
    scaling: Linear | Yarn | None = None
    divisors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.dim < 2 or self.dim % 2:
            raise BadShape(f"rope: a head of {self.dim} values has no pairs to rotate; an even number was expected")
        if not 0 < self.base < math.inf:
            raise BadShape(f"rope: base is {self.base}, a finite number above 0 was expected")
        if self.divisors and len(self.divisors) != self.dim // 2:
            raise BadShape(f"rope: {len(self.divisors)} divisors for the {self.dim // 2} pairs of a head")

    @property
    def magnitude(self) -> float:
        """What cosine and sine are multiplied by."""
        if not isinstance(self.scaling, Yarn):
            return 1.0
        given = self.scaling.magnitude
        return yarn_magnitude(self.scaling.factor) if given is None else given

    @property
    def computable(self) -> bool:
        """Whether every angle and every entry of the table is finite, at whatever position a file may promise."""
        with np.errstate(all="ignore"):
            angles = self.frequencies() * LAST_POSITION
            return bool(np.isfinite(angles).all() and np.isfinite(np.float32(self.magnitude)))

    def frequencies(self) -> NDArray[np.float64]:
        """Radians a position, float64 [dim / 2]."""
        extrapolated = self.base ** (-2 * np.arange(self.dim // 2) / self.dim)
        if self.divisors:
            extrapolated = extrapolated / np.array(self.divisors)
        if self.scaling is None:
            return extrapolated
        interpolated = extrapolated / self.scaling.factor
        if isinstance(self.scaling, Linear):
            return interpolated
        kept = self._kept(self.scaling)
        return interpolated * (1 - kept) + extrapolated * kept

    def table(self, positions: int, dtype: DTypeLike = np.float32) -> NDArray[np.floating]:
        """[positions, dim]: the cosine of every pair, then its sine, both times ``magnitude``; computed in float64."""
        out = np.empty((positions, self.dim), dtype)
        frequencies, magnitude = self.frequencies(), self.magnitude
        for start in range(0, positions, CHUNK):
            stop = min(start + CHUNK, positions)
            angles = np.arange(start, stop, dtype=np.float64)[:, None] * frequencies
            out[start:stop, : self.dim // 2] = np.cos(angles) * magnitude
            out[start:stop, self.dim // 2 :] = np.sin(angles) * magnitude
        return out

    def _kept(self, yarn: Yarn) -> NDArray[np.float64]:
        """Share of each pair's own frequency that stays: 1 for fast pairs, 0 for slow ones, a ramp between."""
        low = max(0, math.floor(self._pair_of(yarn.beta_fast, yarn)))
        high = min(self.dim - 1, math.ceil(self._pair_of(yarn.beta_slow, yarn)))
        ramp = (np.arange(self.dim // 2) - low) / max(0.001, high - low)
        return np.asarray(1 - np.clip(ramp, 0, 1))

    def _pair_of(self, turns: float, yarn: Yarn) -> float:
        """The pair that makes ``turns`` turns over the original context."""
        return self.dim * math.log(yarn.original_context / (2 * math.pi * turns)) / (2 * math.log(self.base))


def yarn_magnitude(factor: float) -> float:
    """YaRN's growth of cosine and sine for a context stretched by ``factor``."""
    return 1 + 0.1 * math.log(factor)
