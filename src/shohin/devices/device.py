"""What every device owes the rooms below it; it knows no op by name."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from math import prod
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from shohin.devices.buffer import Buffer, Weight
from shohin.devices.lock import Lock
from shohin.devices.plan import plan_scratch
from shohin.devices.pool import Pool
from shohin.devices.step import Step
from shohin.devices.tape import Call, Recorder, Run, Tape, Timing
from shohin.errors import BadFile, BadShape, OutOfMemory, UnsupportedFormat
from shohin.formats.blocks.base import BlockFormat
from shohin.formats.tensor import Tensor


class Device(ABC):
    """One place to run. Counters are observable and tested.

    submissions: plays so far. allocations: buffers and scratch arenas obtained so far. uploads: tensors packed so far.
    resident_bytes: bytes of packed weights still referenced by somebody. lock: held for the whole of a play.
    """

    name: ClassVar[str]
    float_type: np.dtype[Any] = np.dtype(np.float32)

    def __init__(self) -> None:
        self.submissions = 0
        self.allocations = 0
        self.uploads = 0
        self.resident_bytes = 0
        self.lock = Lock()
        self._pools: dict[str, Pool] = {}
        self._arena: NDArray[np.uint8] | None = None

    @property
    @abstractmethod
    def kernels(self) -> str:
        """The kernel tier in use, for ``info`` and ``bench``."""

    @property
    def tiers(self) -> tuple[str, ...]:
        """The kernel tiers that this machine can run, slowest first."""
        return (self.kernels,)

    @abstractmethod
    def accepts(self, fmt: BlockFormat) -> str:
        """How a format is run: ``native``, ``repacked``, ``dequantised`` or ``refused``."""

    @abstractmethod
    def pack(self, tensor: Tensor) -> Weight:
        """Repack a tensor once into this device's layout. Handles are owned by the caller: no cache, no keys."""

    @property
    def layout(self) -> str | None:
        """A key of the byte order of packed matrices, for whoever keeps them in a file; None where nobody can."""
        return None

    def adopt(self, tensor: Tensor, packed_format: str, raw: NDArray[np.uint8]) -> Weight:
        """The weight of bytes that ``pack`` made of the same tensor in an earlier process, for a device with a layout.

        BadFile unless they have a format and a size that ``pack`` might have given them.
        """
        raise BadFile(f"device {self.name} keeps no packed weights; tensor {tensor.name!r} must be packed")

    @abstractmethod
    def compile(self, calls: Sequence[Call], rows: int, wanted: int) -> Any:
        """Turn calls into whatever ``run`` plays; KernelBuild when an op has no kernel here."""

    @abstractmethod
    def run(self, program: Any, first: int, last: int, step: Step) -> None:
        """Run calls ``first`` to ``last - 1`` and return when they are complete."""

    def timed(self, program: Any, first: int, last: int, step: Step, apart: bool) -> Timing:
        """``run``, and how long it took; apart: each call's share as well, where the device has a clock of its own."""
        begin = perf_counter()
        self.run(program, first, last, step)
        return Timing(0.0, perf_counter() - begin)

    def follow(self, tape: Tape, program: Any, run: Run) -> Iterator[tuple[int, int]]:
        """``Tape.follow``; here one play after the other, with nothing ahead of the caller."""
        step = run.step
        for _ in range(run.count):
            with self.lock:
                run.begin()
                ticket = tape.play(step, ("ids", "status"))
            token, status = int(ticket["ids"][0]), int(ticket["status"][0])
            yield token, status
            if status != 0 or token in run.stops:
                return
            step = step.reading(token)

    @property
    def runs_ahead(self) -> bool:
        """Whether ``follow`` keeps steps in flight ahead of its caller."""
        return False

    def free_memory(self) -> int | None:
        """Bytes of a memory of its own that the device can still give, or None where it lives in the system's."""
        return None

    @property
    def largest_buffer(self) -> int | None:
        """Bytes of the largest buffer that the device has, or None where only its memory is a limit."""
        return None

    def recorder(self, role: str, rows: int, wanted: int | None = None) -> Recorder:
        """Start a tape for a role with a row capacity; ``wanted`` output rows, all of them by default."""
        if rows < 1:
            raise BadShape(f"tape {role!r}: {rows} rows asked, at least 1 is needed")
        return Recorder(self, role, rows, rows if wanted is None else wanted)

    def buffer(self, name: str, shape: tuple[int, ...], dtype: DTypeLike | None = None) -> Buffer:
        """A zeroed buffer that lives until it is dropped; BadShape for zero bytes (SC.2)."""
        kind = self.float_type if dtype is None else np.dtype(dtype)
        if min(shape, default=0) < 1:
            raise BadShape(f"buffer {name!r}: shape {list(shape)} holds no bytes")
        made = Buffer(self, name, shape, kind, self._allocate(shape, kind))
        self.allocations += 1
        return made

    def pool(self, name: str) -> Pool:
        """The device's grow-only pool of that name; hold ``lock`` from upload to download (S3.19)."""
        return self._pools.setdefault(name, Pool(self, name))

    def view(self, buffer: Buffer, shape: tuple[int, ...]) -> Buffer:
        """The first values of a flat buffer under another shape, without a copy."""
        n = prod(shape)
        if n > prod(buffer.shape):
            raise BadShape(f"buffer {buffer.name!r} holds {prod(buffer.shape)} values, {list(shape)} needs {n}")
        return Buffer(self, buffer.name, shape, buffer.dtype, self._first(buffer, shape))

    def _first(self, buffer: Buffer, shape: tuple[int, ...]) -> Any:
        """Storage of the first values of a buffer."""
        return buffer.storage.reshape(-1)[: prod(shape)].reshape(shape)

    def write(self, buffer: Buffer, values: NDArray[Any], first: int = 0) -> None:
        """Copy host values into rows ``first`` and on; BadShape unless they fit and have the buffer's row shape."""
        self._check_rows(buffer, values, first)
        buffer.storage[first : first + len(values)] = values

    def _check_rows(self, buffer: Buffer, values: NDArray[Any], first: int) -> None:
        if values.shape[1:] != buffer.shape[1:] or first < 0 or first + len(values) > buffer.shape[0]:
            where = f" from row {first}" if first else ""
            raise BadShape(
                f"buffer {buffer.name!r} of shape {list(buffer.shape)} can't take {list(values.shape)}{where}"
            )

    def read(self, buffer: Buffer, rows: int | None = None) -> NDArray[Any]:
        """A copy of the first ``rows`` rows, or of all."""
        return np.array(buffer.storage[:rows])

    def plan(self, calls: Sequence[Call], kept: set[int]) -> int:
        """Give every scratch buffer memory, sharing where lives don't overlap; returns the bytes in use."""
        offsets, total = plan_scratch(calls, kept)
        if not offsets:
            return 0
        with self.lock:
            if self._arena is None or len(self._arena) < total:
                self._arena = self._allocate((total,), np.dtype(np.uint8))
                self.allocations += 1
            for buffer, offset in offsets:
                raw = self._arena[offset : offset + buffer.nbytes]
                buffer.storage = raw.view(buffer.dtype).reshape(buffer.shape)
        return total

    def _allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Zeroed memory at a multiple of 64 bytes; the system commits it page by page on first touch."""
        nbytes = prod(shape) * dtype.itemsize
        try:
            raw = np.zeros(nbytes + 64, np.uint8)
        except (MemoryError, ValueError):
            raise OutOfMemory(
                f"device {self.name}: {nbytes} bytes for an array of shape {list(shape)} are not available; "
                f"ask for a smaller context or batch"
            ) from None
        start = -raw.ctypes.data % 64
        return raw[start : start + nbytes].view(dtype).reshape(shape)

    def _track(self, weight: Weight) -> Weight:
        """Count a new handle's bytes as resident until it is dropped (H.16); BadShape for no bytes at all (SC.3)."""
        if weight.nbytes < 1:
            raise BadShape(f"weight {weight.name!r} of shape {list(weight.shape)} holds no bytes")
        self.uploads += 1
        self.resident_bytes += weight.nbytes
        weakref.finalize(weight, self._forget, weight.nbytes)
        return weight

    def _forget(self, nbytes: int) -> None:
        self.resident_bytes -= nbytes

    def _refuse(self, tensor: Tensor) -> UnsupportedFormat:
        where = f"{tensor.source}: " if tensor.source else ""
        return UnsupportedFormat(f"{where}tensor {tensor.name!r}: device {self.name} does not run {tensor.format.name}")
