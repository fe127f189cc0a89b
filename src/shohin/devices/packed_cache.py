"""Packing through a folder of packed weights: what lies there is mapped, what does not is packed and put there."""

from __future__ import annotations

import logging
from hashlib import blake2b
from pathlib import Path

import numpy as np

from shohin.devices.buffer import Weight
from shohin.devices.device import Device
from shohin.devices.packed_file import SUFFIX, Identity, PackedFile, write_packed
from shohin.errors import BadFile
from shohin.formats.tensor import Tensor

__all__ = ["PackedCache"]

_log = logging.getLogger("shohin")


class PackedCache:
    """For one model on one device: ``pack`` every tensor, then ``finish``. hits: tensors that were mapped.

    A file that is damaged or not of this model is a remark in the log "shohin", never an error: its tensors are packed
    and it is replaced. The same holds for a folder that can't be written.
    """

    def __init__(self, folder: Path, identity: Identity, device: Device) -> None:
        named = "\n".join((identity.content, identity.layout, identity.version))
        self.path = folder / (blake2b(named.encode(), digest_size=16).hexdigest() + SUFFIX)
        self.hits = 0
        self._identity, self._device = identity, device
        self._packed: list[tuple[str, str, Weight]] = []
        self._complete = True
        self._file = self._opened() if self.path.exists() else None

    def pack(self, tensor: Tensor) -> Weight:
        """As ``Device.pack``."""
        kept = self._adopted(tensor)
        if kept is not None:
            self.hits += 1
        weight = kept or self._device.pack(tensor)
        if len(tensor.shape) > 1 and not np.may_share_memory(weight.storage, tensor.data):
            self._packed.append((tensor.name, tensor.format.name, weight))
            self._complete = self._complete and kept is not None
        return weight

    def finish(self) -> None:
        """Write what was packed, unless all of it was there."""
        if self._complete:
            return
        parts = [(name, source, weight.format.name, weight.storage) for name, source, weight in self._packed]
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_packed(self.path, self._identity, parts)
        except (BadFile, OSError) as error:
            _log.warning("packed weights are not kept: %s", error)

    def _opened(self) -> PackedFile | None:
        try:
            found = PackedFile(self.path)
            wanted = self._identity
            for what in ("content", "layout", "version"):
                if getattr(found.identity, what) != getattr(wanted, what):
                    raise BadFile(f"{self.path}: is of another model or build ({what})")
        except BadFile as error:
            self._ignore(error)
            return None
        return found

    def _adopted(self, tensor: Tensor) -> Weight | None:
        if self._file is None or tensor.name not in self._file.entries:
            return None
        entry = self._file.entries[tensor.name]
        try:
            if entry.source_format != tensor.format.name:
                raise BadFile(f"{self.path}: {tensor.name!r} was {entry.source_format}, not {tensor.format.name}")
            return self._device.adopt(tensor, entry.format, self._file.bytes_of(tensor.name))
        except BadFile as error:
            self._ignore(error)
            self._file = None
            return None

    def _ignore(self, error: BadFile) -> None:
        _log.warning("%s is ignored and will be written anew: %s", self.path, error)
