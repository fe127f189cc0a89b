"""``cuda``: one NVIDIA GPU. A tape is captured once as a graph of kernels, and a play is one launch of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shohin.devices.apart import Apart
from shohin.devices.buffer import Weight
from shohin.devices.cuda.driver import Bound, Driver, Memory, Source, macros_of
from shohin.devices.cuda.launch import Target
from shohin.devices.cuda.packing import LAYOUTS, Packed, TileShape
from shohin.devices.cuda.program import Program, RingFollower
from shohin.devices.kernel_blocks import TERNARY, kernel_blocks
from shohin.devices.plan import plan_scratch
from shohin.devices.step import Step
from shohin.devices.tape import Call, Run, Tape, Timing
from shohin.errors import NoDevice
from shohin.formats.blocks import BlockFormat
from shohin.formats.tensor import Tensor

__all__ = ["Cuda", "Region"]

BLOCKS = ("Q2_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K")
DENSE = ("F32", "F16", "BF16")
TIERS = ("int8", "binary")


@dataclass(frozen=True, eq=False)
class Region:
    """A part of device memory, which it keeps alive."""

    memory: Memory
    offset: int = 0

    @property
    def pointer(self) -> int:
        """Address on the device."""
        return self.memory.pointer + self.offset


class Cuda(Apart):
    """One GPU. tier: ``binary`` (1-bit matrix units, sm_80 to sm_90) or ``int8``; the one that is faster by default."""

    name: ClassVar[str] = "cuda"

    def __init__(self, driver: Driver, tier: str | None = None) -> None:
        super().__init__()
        self.driver = driver
        if tier is not None and tier not in self._tiers():
            raise NoDevice(f"kernel tier {tier!r} does not run on {driver.name}; available: {', '.join(self._tiers())}")
        self.tier = tier or self._tiers()[-1]
        self._shared_workspace: Memory | None = None
        self._scratch: Memory | None = None
        self._loaded: dict[Source, Any] = {}

    def _tiers(self) -> tuple[str, ...]:
        # From sm_100 on the 1-bit product is emulated, and slow.
        return TIERS if self.driver.arch <= 90 else TIERS[:1]

    @property
    def kernels(self) -> str:
        """The GPU's name, its architecture and the tier."""
        return f"{self.driver.name}, sm_{self.driver.arch}, {self.tier}"

    @property
    def tiers(self) -> tuple[str, ...]:
        """``int8`` everywhere, ``binary`` where the hardware has 1-bit products."""
        return self._tiers()

    def accepts(self, fmt: BlockFormat) -> str:
        """Ternary containers become PQ2_0; everything else is read in its own codes."""
        if fmt.name in TERNARY:
            return "repacked"
        return "native" if fmt.name in LAYOUTS or fmt.name in BLOCKS or fmt.name in DENSE else "refused"

    def free_memory(self) -> int:
        """Bytes of the GPU's own memory that can still be had."""
        return self.driver.free_memory()

    # Memory

    def _allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Zeroed device memory."""
        with self.lock:
            return Region(self.cleared(prod(shape) * dtype.itemsize))

    def cleared(self, nbytes: int) -> Memory:
        """Zeroed device memory."""
        memory = self.driver.allocate(nbytes)
        self.driver.clear(memory.pointer, nbytes)
        return memory

    def workspace(self, nbytes: int) -> Memory:
        """The workspace that all tapes share; a tape keeps the one it was bound to."""
        held = self._shared_workspace
        if held is None or held.nbytes < nbytes:
            held = self._shared_workspace = self.driver.allocate(max(nbytes, 256))
            self.allocations += 1
        return held

    def _upload(self, storage: Any, offset: int, raw: NDArray[np.uint8]) -> None:
        self.driver.upload(storage.pointer + offset, raw)

    def _download(self, storage: Any, raw: NDArray[np.uint8]) -> None:
        self.driver.download(raw, storage.pointer)

    def plan(self, calls: Sequence[Call], kept: set[int]) -> int:
        """Give every scratch buffer device memory, sharing where lives don't overlap; returns the bytes in use."""
        offsets, total = plan_scratch(calls, kept)
        if not offsets:
            return 0
        with self.lock:
            if self._scratch is None or self._scratch.nbytes < total:
                self._scratch = self.cleared(total)
                self.allocations += 1
            for buffer, offset in offsets:
                buffer.storage = Region(self._scratch, offset)
        return total

    # Weights

    def pack(self, tensor: Tensor) -> Weight:
        """Upload a tensor's blocks and put them into tiles on the device; vectors become F32."""
        if self.accepts(tensor.format) == "refused":
            raise self._refuse(tensor)
        with self.lock:
            fmt, raw = kernel_blocks(tensor)
            if fmt.name in LAYOUTS and len(tensor.shape) > 1:
                packed = self._pack_tiles(raw, fmt)
            else:
                memory = self.driver.allocate(max(raw.nbytes, 1))
                self.driver.upload(memory.pointer, raw)
                packed = Packed("blocks" if fmt.quantised else "dense", {"data": memory})
        tensor.release()
        return self._track(Weight(self, tensor.name, tensor.shape, fmt, tensor.format, raw.nbytes, packed))

    def _pack_tiles(self, raw: NDArray[np.uint8], fmt: BlockFormat) -> Packed:
        layout, planes = LAYOUTS[fmt.name]
        rows, groups = raw.shape[0], raw.shape[1] // fmt.block_bytes
        shape = TileShape(rows, groups * fmt.block, planes)
        source = self.driver.allocate(raw.nbytes)
        self.driver.upload(source.pointer, raw)
        bits, scales = self.driver.allocate(shape.bits_bytes), self.driver.allocate(shape.scale_bytes)
        (kernel,) = self.load([Source("devices/cuda/packing.cu", "pack_tiles", macros_of({"PLANES": planes}))])
        pointers = tuple(np.uint64(m.pointer) for m in (source, bits, scales))
        sizes = tuple(np.int32(n) for n in (rows, groups, shape.chunks, shape.tiles))
        blocks = min(-(-shape.tiles * shape.chunks * 32 // 256), 8 * self.driver.multiprocessors)
        self.driver.launch(Bound(kernel, (blocks, 1, 1), 256, 0, (*pointers, *sizes)))
        self.driver.synchronize()  # the source's memory is given back now
        return Packed(layout, {"bits": bits, "scales": scales})

    # Tapes

    def target(self, rows: int, wanted: int) -> Target:
        """What plans may know of this device."""
        d = self.driver
        return Target(rows, wanted, d.arch, d.multiprocessors, d.shared_limit, self.tier)

    def load(self, sources: Sequence[Source]) -> list[Any]:
        """Kernels, each built once."""
        missing = [source for source in dict.fromkeys(sources) if source not in self._loaded]
        if missing:
            self._loaded |= zip(missing, self.driver.build(missing, self.progress), strict=True)
        return [self._loaded[source] for source in sources]

    def compile(self, calls: Sequence[Call], rows: int, wanted: int) -> Any:
        """Plan, build and bind the kernels of a tape."""
        with self.lock:
            self.allocations += 1
            return Program(self, calls, rows, wanted)

    def run(self, program: Any, first: int, last: int, step: Step) -> None:
        """One launch of a graph, complete on return."""
        program.run(first, last, step)

    def timed(self, program: Any, first: int, last: int, step: Step, apart: bool) -> Timing:
        """By the GPU's clock at both ends of the graph; between two kernels one would keep them from overlapping."""
        found: Timing = program.timed(first, last, step)
        return found

    def follow(self, tape: Tape, program: Any, run: Run) -> Iterator[tuple[int, int]]:
        """Steps that feed on each other's ids, several in flight ahead of the host."""
        ids, status = (tape.outputs[name][0] for name in ("ids", "status"))
        return RingFollower(program, (ids, status), run).run()
