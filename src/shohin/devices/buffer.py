"""What a tape works on: buffers of values and packed weights, each owned by one device."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from shohin.errors import BadShape

if TYPE_CHECKING:
    from shohin.devices.device import Device
    from shohin.formats.blocks.base import BlockFormat


@dataclass(eq=False)
class Buffer:
    """A dense array in a device's memory: name, shape (row-major) and dtype.

    storage is the device's own handle: a NumPy array on ``host`` and ``cpu``. A scratch buffer has none until its
    tape is finished, because the planner decides then which scratch buffers share memory.
    """

    device: Device
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    storage: Any = None

    @property
    def nbytes(self) -> int:
        """Bytes of the dense array."""
        return prod(self.shape) * self.dtype.itemsize

    def expect(self, what: str, shape: tuple[int, ...], device: Device) -> None:
        """BadShape unless this buffer has ``shape`` and lives on ``device``."""
        if self.device is not device:
            raise BadShape(f"{what}: buffer {self.name!r} is on device {self.device.name}, the tape on {device.name}")
        if self.shape != shape:
            raise BadShape(f"{what}: buffer {self.name!r} has shape {list(self.shape)}, {list(shape)} was expected")


@dataclass(eq=False, frozen=True)
class Weight:
    """A tensor packed for one device. Matrices are [N, K] with K contiguous, vectors [N].

    format is the layout in device memory (``source_format`` the one in the file); group is the number of inputs that
    share one activation scale in int8 mode: 128, or the format's block where that is smaller. nbytes counts the
    packed form. A wrong shape, format or device is an error at recording, never a wrong answer.
    """

    device: Device
    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    source_format: BlockFormat
    nbytes: int
    storage: Any = field(repr=False, default=None)

    @property
    def group(self) -> int:
        """Inputs that share one activation scale; 1 for float formats, which are never quantised."""
        return min(128, self.format.block)

    def expect(self, what: str, shape: tuple[int, ...], device: Device) -> None:
        """BadShape unless this weight has ``shape``, whole bytes for it, and lives on ``device``."""
        if self.device is not device:
            raise BadShape(f"{what}: weight {self.name!r} is on device {self.device.name}, the tape on {device.name}")
        if self.shape != shape:
            raise BadShape(f"{what}: weight {self.name!r} has shape {list(self.shape)}, {list(shape)} was expected")
        if self.nbytes != prod(shape[:-1]) * self.format.nbytes(shape[-1]):
            raise BadShape(
                f"{what}: weight {self.name!r} holds {self.nbytes} bytes, {list(shape)} in {self.format.name} needs "
                f"{prod(shape[:-1]) * self.format.nbytes(shape[-1])}"
            )
