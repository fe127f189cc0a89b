"""The native core of the device ``cpu``. Only ``devices/cpu.py`` talks to it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_Operand = tuple[NDArray[Any], str, tuple[int, ...]] | None

def tiers() -> list[str]:
    """Kernel tiers that this machine runs, slowest first."""

def formats() -> list[str]:
    """Weight formats that the kernels read, by the names of the format table."""

def ops() -> list[str]:
    """Ops that have a kernel."""

def tiles(tier: str, format: str) -> bool:
    """Whether a tier reads a format in tiles, for which ``pack`` makes them; otherwise rows stay as in the file."""

def pack(tier: str, format: str, rows: NDArray[np.uint8], packed: NDArray[np.uint8], pool: Pool) -> bool:
    """Tiles of 32 rows from rows [N, bytes a row], into as many bytes; False if cancelled. ValueError: a bad size."""

class Pool:
    """A pool of ``threads`` threads, the caller included. One play at a time: others wait; works in a forked child."""

    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...
    def cancel(self) -> None:
        """End the play in progress at its next piece of work; safe from any thread, without effect when none runs."""

class Program:
    """A tape with its operands bound. It keeps their arrays alive, and the pool."""

    def __init__(
        self,
        calls: Sequence[tuple[str, Sequence[_Operand], Sequence[int], Sequence[float]]],
        rows: int,
        wanted: int,
        pool: Pool,
        tier: str,
    ) -> None:
        """calls: (op, operands, whole parameters, fractional parameters); an operand is (contiguous array, dtype or
        format name, shape) or None. ValueError: operands that don't fit the op; IndexError: an op without a kernel.
        """

    @property
    def scratch_bytes(self) -> int:
        """Bytes that the program holds for its kernels; nothing more is allocated when it runs."""

    def run(
        self,
        first: int,
        last: int,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        sequences: NDArray[np.int32],
        pages: NDArray[np.int32],
        wanted: NDArray[np.int32],
    ) -> bool:
        """Run calls ``first`` to ``last - 1`` without the interpreter's lock; False if cancelled.

        ValueError, before anything is written, for a step that would index outside an operand. An exception raised by
        a signal handler (KeyboardInterrupt) ends the run within about 50 ms.
        """
