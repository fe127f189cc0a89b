"""``webgpu``: any GPU that WebGPU reaches. A tape is encoded into one command buffer, and a play is one submission."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shohin.devices.apart import Apart
from shohin.devices.buffer import Weight
from shohin.devices.kernel_blocks import TERNARY, kernel_blocks
from shohin.devices.step import Step
from shohin.devices.tape import Call, Run, Tape, Timing
from shohin.devices.webgpu.adapters import Adapter, choose
from shohin.devices.webgpu.dispatch import Target
from shohin.devices.webgpu.follower import TailFollower
from shohin.devices.webgpu.gpu import Gpu, Memory
from shohin.devices.webgpu.packing import DENSE, HEADS, pack
from shohin.devices.webgpu.program import Program
from shohin.devices.webgpu.shader import Shader
from shohin.devices.webgpu.slots import assign_slots
from shohin.errors import BadShape, NoDevice
from shohin.formats.blocks import BlockFormat
from shohin.formats.tensor import Tensor

__all__ = ["WebGpu"]


class WebGpu(Apart):
    """One adapter, the first by default. tier: one of ``tiers``, by default the last one; binding: bytes of a storage
    binding, by default what the adapter allows.
    """

    name: ClassVar[str] = "webgpu"

    def __init__(self, adapter: Adapter | None = None, tier: str | None = None, binding: int | None = None) -> None:
        super().__init__()
        self.adapter = adapter or choose()
        if tier is not None and tier not in self.tiers:
            raise NoDevice(f"kernel tier {tier!r} does not run on {self.adapter}; available: {', '.join(self.tiers)}")
        self.tier = tier or self.tiers[-1]
        self.gpu = Gpu(self.adapter, "subgroups" in self.tier, "f16" in self.tier, binding)
        self.workgroups = self.adapter.workgroups
        self._slots: list[Memory] = []
        self._workspace: list[Memory] = []

    @property
    def kernels(self) -> str:
        """The adapter, the interface behind WebGPU, and the tier."""
        return f"{self.adapter}, {self.tier}"

    @property
    def tiers(self) -> tuple[str, ...]:
        """``plain`` everywhere; ``f16``, ``subgroups`` and both where the adapter has these features."""
        names = ["plain"]
        names += ["f16"] * self.adapter.f16 + ["subgroups"] * self.adapter.subgroups
        return (*names, "subgroups+f16") if self.adapter.f16 and self.adapter.subgroups else tuple(names)

    def accepts(self, fmt: BlockFormat) -> str:
        """Ternary containers become PQ2_0; the rest is read in its own codes, or refused."""
        if fmt.name in TERNARY:
            return "repacked"
        return "native" if fmt.name in HEADS or fmt.name in DENSE else "refused"

    @property
    def largest_buffer(self) -> int:
        """What one binding holds."""
        return self.gpu.limits.binding

    # Memory

    def _allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Zeroed memory of the GPU for a buffer, which ``buffer`` counts."""
        with self.lock:
            return self.gpu.allocate(prod(shape) * dtype.itemsize, f"an array of shape {list(shape)}")

    def memory(self, nbytes: int, what: str) -> Memory:
        """Zeroed memory of the GPU, counted as an allocation."""
        with self.lock:
            made = self.gpu.allocate(nbytes, what)
            self.allocations += 1
        return made

    def _upload(self, storage: Any, offset: int, raw: NDArray[np.uint8]) -> None:
        # The GPU is written in words of four bytes: what else lies in the first and the last one stays.
        begin, end = offset // 4 * 4, -(-(offset + len(raw)) // 4) * 4
        if end - begin != len(raw):
            words = self.gpu.download(storage, begin, end - begin).copy()
            words[offset - begin : offset - begin + len(raw)] = raw
            raw = words
        self.gpu.upload(storage, begin, raw)

    def _download(self, storage: Any, raw: NDArray[np.uint8]) -> None:
        raw[:] = self.gpu.download(storage, 0, len(raw))

    def plan(self, calls: Sequence[Call], kept: set[int]) -> int:
        """Give every scratch buffer memory, sharing where lives don't overlap; returns the bytes in use."""
        with self.lock:
            slots = assign_slots(calls, kept)
            self._grow(self._slots, [slot[0].nbytes for slot in slots], "scratch of a tape")
            for slot, memory in zip(slots, self._slots, strict=False):
                for buffer in slot:
                    buffer.storage = memory
        return sum(slot[0].nbytes for slot in slots)

    def workspace(self, sizes: Sequence[int]) -> list[Memory]:
        """Buffers that all tapes share; a tape keeps those that it was given."""
        with self.lock:
            self._grow(self._workspace, sizes, "workspace of kernels")
            return self._workspace[: len(sizes)]

    def _grow(self, held: list[Memory], sizes: Sequence[int], what: str) -> None:
        for i, nbytes in enumerate(sizes):
            if i == len(held):
                held.append(self.memory(nbytes, what))
            elif held[i].size < nbytes:
                held[i] = self.memory(nbytes, what)

    # Weights

    def pack(self, tensor: Tensor) -> Weight:
        """Upload a tensor's codes and scales, in parts where one binding does not hold it."""
        if self.accepts(tensor.format) == "refused" and len(tensor.shape) > 1:
            raise self._refuse(tensor)
        if prod(tensor.shape) == 0:
            raise BadShape(f"weight {tensor.name!r} of shape {list(tensor.shape)} holds no bytes")
        with self.lock:
            fmt, raw = kernel_blocks(tensor)
            parts = pack(self.gpu, tensor.name, raw, fmt)
        tensor.release()
        return self._track(Weight(self, tensor.name, tensor.shape, fmt, tensor.format, raw.nbytes, parts))

    # Tapes

    def target(self, rows: int, wanted: int) -> Target:
        """What plans may know of this device."""
        features = ("subgroups" in self.tier, "f16" in self.tier)
        return Target(rows, wanted, *features, self.gpu.limits, self.workgroups)

    def compile_shaders(self, shaders: Sequence[Shader]) -> None:
        """Build pipelines, each once, and tell ``progress``."""
        distinct = list(dict.fromkeys(shaders))
        for i, shader in enumerate(distinct):
            self.gpu.pipeline(shader)
            if self.progress is not None:
                self.progress(i + 1, len(distinct))

    def compile(self, calls: Sequence[Call], rows: int, wanted: int) -> Any:
        """Plan, build and bind the kernels of a tape."""
        with self.lock:
            return Program(self, calls, rows, wanted)

    def run(self, program: Any, first: int, last: int, step: Step) -> None:
        """One command buffer, complete on return."""
        program.run(first, last, step)

    def timed(self, program: Any, first: int, last: int, step: Step, apart: bool) -> Timing:
        """By the adapter's timestamps where it has any; apart: every call in passes of its own."""
        found: Timing = program.timed(first, last, step, apart)
        return found

    def follow(self, tape: Tape, program: Any, run: Run) -> Iterator[tuple[int, int]]:
        """Steps that feed on each other's ids, a few in flight ahead of the host."""
        ids, status = (tape.outputs[name][0] for name in ("ids", "status"))
        with self.lock:
            tail = program.tail(ids, status)
        return TailFollower(program, tail, run).run()
