"""``cpu``: the native core. A tape becomes a native program, and a play is one native call without the GIL."""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shohin import _core
from shohin.devices.buffer import Buffer, Weight
from shohin.devices.device import Device
from shohin.devices.kernel_blocks import TERNARY, kernel_blocks
from shohin.devices.slab import Slab
from shohin.devices.step import Step
from shohin.devices.tape import Call
from shohin.errors import BadFile, BadRequest, BadShape, Cancelled, DeviceFailed, KernelBuild, NoDevice, OutOfMemory
from shohin.formats.blocks import FORMATS, BlockFormat
from shohin.formats.tensor import Tensor

MAX_THREADS = 1024
PROBE_ROWS = 33  # a tile and a row that fills none


def physical_cores() -> int:
    """Cores this process may use, hyper-threads not counted where the system tells."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    seen = set()
    for cpu in allowed:
        try:
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") as f:
                seen.add(f.read().strip())
        except OSError:
            return max(1, len(allowed))
    return max(1, len(seen))


class Cpu(Device):
    """threads: worker threads, physical cores by default. tier: one of ``tiers``; the best one by default."""

    name: ClassVar[str] = "cpu"

    def __init__(self, threads: int | None = None, tier: str | None = None) -> None:
        super().__init__()
        count = physical_cores() if threads is None else threads
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_THREADS:
            raise BadRequest(
                f"threads is {threads!r}, a whole number from 1 to {MAX_THREADS} was expected", param="threads"
            )
        available = _core.tiers()
        if tier is not None and tier not in available:
            raise NoDevice(f"kernel tier {tier!r} does not run on this machine; available: {', '.join(available)}")
        self.threads = count
        self.tier = tier or available[-1]
        self._slab = Slab()
        try:
            self._pool = _core.Pool(count)
        except (RuntimeError, MemoryError) as error:
            raise OutOfMemory(
                f"device cpu: the system does not start {count} threads ({error}); ask for fewer (threads=, --threads)"
            ) from None

    @property
    def kernels(self) -> str:
        """The instruction set in use and the number of threads."""
        return f"{self.tier}, {self.threads} threads"

    @property
    def tiers(self) -> tuple[str, ...]:
        """``generic``, then what the processor has of ``avx2`` and ``avx512`` (VNNI) or of ``neon`` (dot products)."""
        return tuple(_core.tiers())

    def accepts(self, fmt: BlockFormat) -> str:
        """Other ternary containers become PQ2_0 at load; what is native may be dealt into tiles, block for block."""
        if fmt.name in _core.formats():
            return "native"
        return "repacked" if fmt.name in TERNARY else "refused"

    def pack(self, tensor: Tensor) -> Weight:
        """Use the file's own blocks where a kernel reads them; repack the other ternary containers to PQ2_0.

        Vectors (norm weights) become F32, which is what kernels want of them. Formats that the tier reads in tiles
        (``format.hpp``) are dealt into them: the same blocks in another order, so the handle says nothing of it.
        """
        fmt, raw = _layout(tensor)
        if fmt.name not in _core.formats():
            raise self._refuse(tensor)
        if len(tensor.shape) == 1:
            # Where the matrix before it ends, so that what is asked of memory ahead of a matrix's end is this.
            raw = self._copy(raw)
        elif _core.tiles(self.tier, fmt.name):
            raw = self._tile(raw, fmt)
        if not np.may_share_memory(raw, tensor.data):
            tensor.release()
        return self._track(Weight(self, tensor.name, tensor.shape, fmt, tensor.format, raw.nbytes, raw))

    @property
    def layout(self) -> str:
        """Made of what the kernels do with a known matrix of each format, so no change of theirs can be forgotten."""
        known = np.random.default_rng(0)
        found = blake2b(digest_size=16)
        for name in _core.formats():
            if not _core.tiles(self.tier, name):
                continue
            rows = known.integers(0, 256, (PROBE_ROWS, 2 * FORMATS[name].block_bytes), np.uint8)
            found.update(name.encode() + self._tile(rows, FORMATS[name]).tobytes())
        return f"cpu {found.hexdigest()}"

    def adopt(self, tensor: Tensor, packed_format: str, raw: NDArray[np.uint8]) -> Weight:
        """The bytes are used where they lie."""
        possible = {tensor.format.name} | ({"PQ2_0"} if tensor.format.name in TERNARY else set())
        if packed_format not in possible.intersection(_core.formats()):
            raise BadFile(f"tensor {tensor.name!r} of {tensor.format.name} is never packed as {packed_format!r}")
        fmt = FORMATS[packed_format]
        row = fmt.nbytes(tensor.columns)
        if raw.nbytes != tensor.rows * row:
            raise BadFile(f"tensor {tensor.name!r}: {raw.nbytes} packed bytes, {tensor.rows * row} were expected")
        rows = raw.reshape(tensor.rows, row)
        return self._track(Weight(self, tensor.name, tensor.shape, fmt, tensor.format, raw.nbytes, rows))

    def _copy(self, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
        copied = self._slab.take(rows.nbytes).reshape(rows.shape)
        copied[:] = rows
        return copied

    def _tile(self, rows: NDArray[np.uint8], fmt: BlockFormat) -> NDArray[np.uint8]:
        packed = self._slab.take(rows.nbytes).reshape(rows.shape)
        if not _core.pack(self.tier, fmt.name, rows, packed, self._pool):
            raise Cancelled("packing was cancelled")
        return packed

    def compile(self, calls: Sequence[Call], rows: int, wanted: int) -> Any:
        """Resolve each op by name in the native registry; KernelBuild names what is missing."""
        native = []
        for call in calls:
            ints, floats = call.op.parameters()
            native.append((call.op.name, [_operand(o) for o in call.operands], list(ints), list(floats)))
        self.allocations += 1
        try:
            return _core.Program(native, rows, wanted, self._pool, self.tier)
        except LookupError as error:
            raise KernelBuild(f"device cpu ({self.tier}): {error}") from None
        except ValueError as error:
            raise BadShape(f"device cpu: {error}") from None

    def run(self, program: Any, first: int, last: int, step: Step) -> None:
        """One native call. Ctrl-C and ``cancel`` end it at the next piece of work and leave outputs half written."""
        try:
            finished = program.run(first, last, step.tokens, step.positions, step.sequences, step.pages, step.wanted)
        except ValueError as error:
            raise BadShape(f"device cpu: {error}") from None
        except RuntimeError as error:
            raise DeviceFailed(f"device cpu: {error}") from None
        if not finished:
            raise Cancelled("the submission was cancelled")

    def cancel(self) -> None:
        """Ask the play in progress to stop at the next phase; safe from another thread."""
        self._pool.cancel()


def _layout(tensor: Tensor) -> tuple[BlockFormat, NDArray[np.uint8]]:
    """The format and bytes [rows, bytes a row] that the kernels read."""
    fmt, raw = kernel_blocks(tensor)
    # Plain numbers are read in place, so they must lie at multiples of their size; a file need not see to that.
    return fmt, raw if fmt.quantised or raw.ctypes.data % fmt.block_bytes == 0 else raw.copy()


def _operand(operand: Buffer | Weight | None) -> tuple[Any, str, tuple[int, ...]] | None:
    """(array, dtype or format name, shape) as the native core takes it."""
    if operand is None:
        return None
    kind = operand.format.name if isinstance(operand, Weight) else operand.dtype.name
    return operand.storage, kind, operand.shape
