"""``read`` through WebGPU: a workgroup a chunk."""

from __future__ import annotations

from typing import cast

from shohin.devices import Buffer, Call
from shohin.devices.webgpu.dispatch import Binding, Dispatch, Target, grid


def dispatches(call: Call, target: Target) -> list[Dispatch]:
    """One dispatch over all chunks, four words at a time where chunks allow it."""
    words, out = cast(Buffer, call.operands[0]), cast(Buffer, call.operands[1])
    chunks, n = words.shape
    part, element, unit = ("one_word", "u32", 1) if n % 4 else ("four_words", "vec4<u32>", 4)
    bindings = (
        Binding("words", words, f"array<{element}>"),
        Binding("out", out, "array<u32>", write=True),
        Binding.step(),
    )
    sources = (f"kernels/read/{part}.wgsl", "kernels/read/read.wgsl")
    return [Dispatch(sources, "sum_chunks", {"CHUNKS": chunks, "UNITS": n // unit}, bindings, grid(chunks))]
