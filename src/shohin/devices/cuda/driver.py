"""The handful of things that the ``cuda`` device asks of a GPU; the tests put an emulator in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Bound", "Driver", "Memory", "Source"]


class Memory:
    """Device memory that is given back when the last reference is dropped. pointer: its address on the device."""

    def __init__(self, pointer: int, nbytes: int, free: Callable[[int], None]) -> None:
        self.pointer, self.nbytes, self._free = pointer, nbytes, free

    def __del__(self) -> None:
        self._free(self.pointer)


@dataclass(frozen=True)
class Source:
    """A kernel to build: path of the ``.cu`` file, entry, macros in a fixed order, dynamic shared memory in bytes."""

    path: str
    entry: str
    macros: tuple[tuple[str, str], ...]
    shared: int = 0


@dataclass(frozen=True, eq=False)
class Bound:
    """A kernel with everything that one launch needs. arguments: numpy uint64 (pointers), int32 and float32 scalars."""

    kernel: Any
    grid: tuple[int, int, int]
    threads: int
    shared: int
    arguments: tuple[np.generic, ...]


class Driver(Protocol):
    """One GPU with one stream: everything is done in the order in which it is asked for.

    name, arch (compute capability times 10), multiprocessors, shared_limit (bytes a block may ask for).
    Failures are raised as OutOfMemory, KernelBuild or DeviceFailed.
    """

    name: str
    arch: int
    multiprocessors: int
    shared_limit: int

    def free_memory(self) -> int:
        """Bytes that can still be allocated."""
        ...

    def allocate(self, nbytes: int) -> Memory:
        """Device memory at a multiple of 256 bytes, not cleared."""
        ...

    def clear(self, pointer: int, nbytes: int) -> None:
        """Set bytes to zero."""
        ...

    def upload(self, pointer: int, values: NDArray[Any]) -> None:
        """Copy a C-contiguous host array to the device; the array may change once this returns."""
        ...

    def download(self, values: NDArray[Any], pointer: int) -> None:
        """Wait for all work, then copy from the device into a C-contiguous host array."""
        ...

    def pinned(self, nbytes: int) -> tuple[NDArray[np.uint8], int]:
        """Zeroed host memory that kernels can write to, and its address on the device; lives as long as the driver."""
        ...

    def upload_step(self, pointer: int, staged: NDArray[np.int32]) -> None:
        """Copy from ``pinned`` memory without waiting; the source must not change before the next ``synchronize``."""
        ...

    def build(self, sources: Sequence[Source], progress: Callable[[int, int], None] | None = None) -> list[Any]:
        """Compile (or take from the cache on disk) and load kernels; KernelBuild with the compiler's log."""
        ...

    def launch(self, bound: Bound) -> None:
        """Enqueue one kernel."""
        ...

    def capture(self, launches: Sequence[Bound], *, timed: bool = False) -> Any:
        """A graph of kernels that run one after the other, each allowed to start before its predecessor ends.

        timed: ``elapsed`` will be asked.
        """
        ...

    def elapsed(self, graph: Any) -> float:
        """Seconds of the last replay of a timed graph, by the GPU's clock; all work is done."""
        ...

    def replay(self, graph: Any) -> None:
        """Enqueue a captured graph: one submission."""
        ...

    def check(self) -> bool:
        """Whether all work is done; DeviceFailed if some of it failed."""
        ...

    def synchronize(self) -> None:
        """Wait until all work is done; DeviceFailed if any of it failed or does not end."""
        ...


def macros_of(constants: Mapping[str, int | float | str]) -> tuple[tuple[str, str], ...]:
    """Constants as the compiler takes them; floats exactly, as hexadecimal float literals."""
    return tuple((name, _literal(value)) for name, value in sorted(constants.items()))


def _literal(value: int | float | str) -> str:
    return f"{float(np.float32(value)).hex()}f" if isinstance(value, float) else str(value)
