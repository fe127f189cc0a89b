"""A GPU that is a CPU: the ``Driver`` of the ``cuda`` device over the emulator in tests/native/cuda."""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from emulator_build import build, location, runtime
from numpy.typing import NDArray

from shohin.devices.cuda.driver import Bound, Memory, Source
from shohin.errors import DeviceFailed, NoDevice, OutOfMemory

# Bytes of shared memory a block may have, by compute capability times 10.
SHARED_LIMITS = {80: 166912, 86: 101376, 89: 101376, 90: 232448, 100: 232448, 120: 101376}
# Of processor time for one launch, before it is taken for one that never ends.
SECONDS = 60


class _Launch(ctypes.Structure):
    """``emulator::Launch`` of runtime.hpp."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("invoke", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("dynamic", ctypes.c_void_p),
        ("seed", ctypes.c_uint64),
        ("size", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint),
        ("shared", ctypes.c_uint),
        ("shared_limit", ctypes.c_uint),
        ("in_graph", ctypes.c_uint),
        ("seconds", ctypes.c_uint),
    )


@dataclass(frozen=True, eq=False)
class Kernel:
    """One loaded kernel. kinds: a letter a parameter (p, i, f); base: where its library lies."""

    source: Source
    path: Path
    library: ctypes.CDLL
    kinds: str


@dataclass(eq=False)
class Graph:
    """Kernels in order, and what the last replay took."""

    launches: list[Bound]
    seconds: float = 0.0


class EmulatedDriver:
    """arch: compute capability times 10, which kernels see as __CUDA_ARCH__. memory: bytes it pretends to have.

    Work is done when it is asked for. seed: of the order of blocks and warps; SHOHIN_TEST_SEED, or 1.
    """

    name = "emulator"

    def __init__(
        self, arch: int = 90, multiprocessors: int = 4, memory: int = 1 << 32, seed: int | None = None
    ) -> None:
        self.arch, self.multiprocessors, self.memory = arch, multiprocessors, memory
        self.shared_limit = SHARED_LIMITS[arch]
        self.seed = int(os.environ.get("SHOHIN_TEST_SEED", "1")) if seed is None else seed
        try:
            self._runtime = runtime()
        except OSError as error:
            raise NoDevice(f"the emulator needs g++: {error}") from None
        self._used = 0
        self._sizes: dict[int, int] = {}
        self._pinned: list[NDArray[np.uint8]] = []
        self._count = itertools.count()

    def free_memory(self) -> int:
        return self.memory - self._used

    def allocate(self, nbytes: int) -> Memory:
        """Poisoned memory; what lies around it must not be touched."""
        pointer = self._runtime.emulator_allocate(max(nbytes, 1)) if nbytes <= self.free_memory() else None
        if pointer is None:
            raise OutOfMemory(
                f"device cuda (emulator): {nbytes:,} bytes are not available, {self.free_memory():,} are free"
            )
        self._used += nbytes
        self._sizes[pointer] = nbytes
        return Memory(pointer, nbytes, self._free)

    def _free(self, pointer: int) -> None:
        self._used -= self._sizes.pop(pointer)
        if not self._runtime.emulator_free(pointer):
            raise DeviceFailed(f"device cuda (emulator): {pointer:#x} is freed, but no allocation")

    def _bytes(self, pointer: int, nbytes: int) -> NDArray[np.uint8]:
        """Device memory as an array."""
        if not self._runtime.emulator_holds(pointer, nbytes):
            raise DeviceFailed(f"device cuda (emulator): {nbytes} bytes at {pointer:#x} are in no one allocation")
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(pointer))

    def clear(self, pointer: int, nbytes: int) -> None:
        self._bytes(pointer, nbytes)[:] = 0

    def upload(self, pointer: int, values: NDArray[Any]) -> None:
        assert values.flags.c_contiguous
        self._bytes(pointer, values.nbytes)[:] = values.reshape(-1).view(np.uint8)

    def download(self, values: NDArray[Any], pointer: int) -> None:
        assert values.flags.c_contiguous
        values.reshape(-1).view(np.uint8)[:] = self._bytes(pointer, values.nbytes)

    def pinned(self, nbytes: int) -> tuple[NDArray[np.uint8], int]:
        array = np.zeros(nbytes, np.uint8)
        self._pinned.append(array)
        return array, array.ctypes.data

    def upload_step(self, pointer: int, staged: NDArray[np.int32]) -> None:
        self.upload(pointer, staged)
        self._runtime.emulator_mark(pointer)

    def build(self, sources: Sequence[Source], progress: Callable[[int, int], None] | None = None) -> list[Kernel]:
        """Compile with g++, two at a time, or take from the cache."""
        with ThreadPoolExecutor(max_workers=2) as pool:
            paths = []
            for done, path in enumerate(pool.map(lambda source: build(source, self.arch), sources)):
                paths.append(path)
                if progress is not None:
                    progress(done + 1, len(sources))
        return [self._load(source, path) for source, path in zip(sources, paths, strict=True)]

    def _load(self, source: Source, path: Path) -> Kernel:
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise DeviceFailed(f"{source.path} ({source.entry}) does not load: {error}") from None
        library.emulated_kinds.restype = ctypes.c_char_p
        library.emulated_dynamic.restype = ctypes.c_void_p
        return Kernel(source, path, library, library.emulated_kinds().decode())

    def launch(self, bound: Bound) -> None:
        """Run a kernel to its end; DeviceFailed says what it did wrong."""
        self._run(bound, in_graph=False)

    def _run(self, bound: Bound, in_graph: bool) -> None:
        kernel: Kernel = bound.kernel
        _check(bound, kernel)
        values = [np.array([a]) for a in bound.arguments]
        arguments = (ctypes.c_void_p * len(values))(*(v.ctypes.data for v in values))
        launch = _Launch(
            f"{kernel.source.path} ({kernel.source.entry})".encode(),
            ctypes.cast(kernel.library.emulated_invoke, ctypes.c_void_p),
            ctypes.cast(arguments, ctypes.c_void_p),
            kernel.library.emulated_dynamic(),
            self.seed * 1_000_003 + next(self._count),
            bound.grid,
            bound.threads,
            bound.shared,
            self.shared_limit,
            in_graph,
            SECONDS,
        )
        code = ctypes.c_size_t()
        message = self._runtime.emulator_launch(ctypes.byref(launch), ctypes.byref(code))
        if message is not None:
            where = _location(kernel, code.value) if code.value else ""
            raise DeviceFailed(f"device cuda (emulator, seed {self.seed}): {message.decode()}{where}")

    def capture(self, launches: Sequence[Bound], *, timed: bool = False) -> Graph:
        for bound in launches:
            _check(bound, bound.kernel)
        return Graph(list(launches))

    def elapsed(self, graph: Graph) -> float:
        return graph.seconds

    def replay(self, graph: Graph) -> None:
        """Run the kernels in turn. Each block must call wait_for_previous, and may not reach what kernels are known to
        write before that.
        """
        self._runtime.emulator_learn(True)
        begin = perf_counter()
        try:
            for bound in graph.launches:
                self._run(bound, in_graph=True)
            graph.seconds = perf_counter() - begin
        finally:
            self._runtime.emulator_learn(False)

    def check(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


def _check(bound: Bound, kernel: Kernel) -> None:
    """What a real launch would refuse, or silently take for something else."""
    name = f"{kernel.source.path} ({kernel.source.entry})"
    letters = {np.uint64: "p", np.int32: "i", np.float32: "f"}
    given = "".join(letters.get(type(a), "?") for a in bound.arguments)
    if given != kernel.kinds:
        raise DeviceFailed(
            f"{name}: the parameters are {kernel.kinds!r}, the arguments {given!r} (pointer, int, float)"
        )
    if not 1 <= bound.threads <= 1024 or min(bound.grid) < 1 or max(bound.grid[1:]) > 65535:
        raise DeviceFailed(f"{name}: a grid of {bound.grid} blocks of {bound.threads} threads can't be launched")
    if bound.shared != kernel.source.shared:
        raise DeviceFailed(
            f"{name}: built for {kernel.source.shared} bytes of shared memory, launched with {bound.shared}"
        )


def _location(kernel: Kernel, code: int) -> str:
    """Where in the source a fault happened, if it was in the kernel."""
    with open("/proc/self/maps") as maps:
        starts = [int(line.split("-")[0], 16) for line in maps if line.rstrip().endswith(str(kernel.path))]
    return location(kernel.path, code - min(starts)) if starts else ""
