"""Grow-only buffers that calls of different sizes share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shohin.devices.buffer import Buffer

if TYPE_CHECKING:
    from shohin.devices.device import Device


class Pool:
    """Flat float buffers of one device. Buffers asked for together share one capacity and grow together.

    allocations counts the buffers obtained so far and never falls: its difference over a warmed run is 0 (S3.21,
    S3.32). The caller holds the device's lock for as long as it uses what ``take`` gave.
    """

    def __init__(self, device: Device, name: str) -> None:
        self.device = device
        self.name = name
        self.allocations = 0
        self._held: dict[tuple[str, ...], tuple[Buffer, ...]] = {}

    def take(self, shape: tuple[int, ...], *names: str) -> tuple[Buffer, ...]:
        """One buffer of ``shape`` per name, over memory that may be larger and holds old values.

        When one of several cannot be obtained, the smaller set stays in use and nothing is counted (H.24).
        """
        n = 1
        for size in shape:
            n *= size
        held = self._held.get(names, ())
        if not held or held[0].shape[0] < n:
            held = tuple(self.device.buffer(f"{self.name}.{name}", (n,)) for name in names)
            self._held[names] = held
            self.allocations += len(held)
        return tuple(self.device.view(buffer, shape) for buffer in held)

    def capacity(self, *names: str) -> int:
        """Values that each of these buffers holds; 0 before the first use."""
        held = self._held.get(names)
        return held[0].shape[0] if held else 0
