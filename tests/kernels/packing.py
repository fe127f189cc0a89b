"""Weights and tapes for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shohin.devices import Buffer, Device, Recorder, Step, Weight
from shohin.formats.blocks import FORMATS
from shohin.formats.tensor import Tensor

QUANTISED = tuple(name for name, fmt in FORMATS.items() if fmt.quantised)
FLOATS = ("F32", "F16", "BF16")

# Where the 2-bit formats keep their codes; the other bytes are the scale.
CODE_BYTES = {"Q2_0": slice(2, 18), "Q2_0_G128": slice(2, 34), "PQ2_0": slice(2, 34), "TQ2_0_G128": slice(0, 32)}


@dataclass(frozen=True)
class Matrix:
    """A packed weight, its raw bytes and what it decodes to."""

    weight: Weight
    raw: NDArray[np.uint8]

    @property
    def dense(self) -> NDArray[np.float64]:
        return self.weight.source_format.decode(self.raw).astype(np.float64)


def tensor(name: str, fmt: str, values: NDArray[Any]) -> Tensor:
    raw = FORMATS[fmt].encode(values.astype(np.float32))
    return Tensor(name, values.shape, FORMATS[fmt], np.ascontiguousarray(raw).reshape(-1))


def pack(device: Device, name: str, fmt: str, values: NDArray[Any]) -> Matrix:
    """Encode and pack; skips where the device refuses the format."""
    if device.accepts(FORMATS[fmt]) == "refused":
        pytest.skip(f"device {device.name} refuses {fmt}")
    made = tensor(name, fmt, values)
    return Matrix(device.pack(made), made.raw())


def matrix(device: Device, rng: np.random.Generator, fmt: str, n: int, k: int) -> Matrix:
    """Random weights that use every code of the format: 2-bit blocks get random bits, so that code 11 occurs."""
    values = rng.standard_normal((n, k)) * np.exp(rng.standard_normal((n, 1)) * 0.5) * 0.2
    if fmt not in CODE_BYTES:
        return pack(device, "w", fmt, values)
    if device.accepts(FORMATS[fmt]) == "refused":
        pytest.skip(f"device {device.name} refuses {fmt}")
    made = tensor("w", fmt, values)
    blocks = made.data.reshape(-1, FORMATS[fmt].block_bytes)
    bits = blocks[:, CODE_BYTES[fmt]]
    bits[:] = rng.integers(0, 256, bits.shape, np.uint8)
    return Matrix(device.pack(made), made.raw())


def vector(device: Device, name: str, values: NDArray[Any]) -> Weight:
    return pack(device, name, "F32", values).weight


def play(
    device: Device,
    record: Callable[[Recorder, list[Buffer]], Buffer],
    inputs: Sequence[NDArray[Any]],
    *,
    step: Step | None = None,
    wanted: int | None = None,
) -> NDArray[Any]:
    """Upload inputs, record and play one op, bring back the buffer that ``record`` returns."""
    rows = len(inputs[0])
    buffers = [device.buffer(f"in{i}", a.shape, a.dtype if a.dtype.kind == "i" else None) for i, a in enumerate(inputs)]
    for buffer, values in zip(buffers, inputs, strict=True):
        device.write(buffer, values)
    tape = device.recorder("test", rows, wanted)
    out = record(tape, buffers)
    tape.output("out", out, "all")
    result: NDArray[Any] = tape.finish().play(step or Step.rows_only(rows), ("out",))["out"]
    return result
