"""Where packed weights are kept between processes, who wants them, and what lies there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from shohin.devices import Device
from shohin.devices.packed_cache import PackedCache
from shohin.devices.packed_file import SUFFIX, Identity, PackedFile
from shohin.errors import BadFile, BadRequest
from shohin.formats import Weights
from shohin.formats.content import content_key

__all__ = ["PACKED_VARIABLE", "KeptFile", "cache_for", "kept_files", "packed_folder", "remove_kept"]

PACKED_VARIABLE = "SHOHIN_PACKED_CACHE"
_OFF, _ON = ("", "0"), "1"


def packed_folder() -> Path:
    """~/.cache/shohin/packed, or the folder that SHOHIN_PACKED_CACHE names where that is neither 0 (off) nor 1 (on)."""
    named = os.environ.get(PACKED_VARIABLE, "")
    return Path.home() / ".cache" / "shohin" / "packed" if named in (*_OFF, _ON) else Path(named)


def cache_for(weights: Weights, device: Device, wanted: bool | None) -> PackedCache | None:
    """The cache to pack a model through, or None for one that is not wanted.

    wanted: None asks SHOHIN_PACKED_CACHE, which is without effect where nothing can be kept; True raises BadRequest
    there: on a device whose packed weights can't be kept, and for a model that was made in memory.
    """
    if wanted is not None and not isinstance(wanted, bool):
        raise BadRequest(f"packed_cache is {wanted!r}, True, False or None was expected", param="packed_cache")
    asked = os.environ.get(PACKED_VARIABLE, "") not in _OFF if wanted is None else wanted
    layout = device.layout
    if not asked or (wanted is None and (layout is None or not weights.paths)):
        return None
    if layout is None:
        raise BadRequest(f"device {device.name} keeps no packed weights; leave out packed_cache", param="packed_cache")
    if not weights.paths:
        raise BadRequest("a model made in memory can't be kept packed; leave out packed_cache", param="packed_cache")
    identity = Identity(content_key(weights), layout, version("shohin"), os.path.abspath(weights.paths[0]))
    return PackedCache(packed_folder(), identity, device)


@dataclass(frozen=True)
class KeptFile:
    """A file of packed weights: name, bytes, the model it was packed from, the shohin that did it; fault if unsound."""

    name: str
    nbytes: int
    source: str | None
    version: str | None
    fault: str | None


def kept_files() -> list[KeptFile]:
    """What lies in ``packed_folder``, by name; BadFile where it can't be read."""
    folder = packed_folder()
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == SUFFIX) if folder.exists() else []
        return [_kept(path) for path in paths]
    except OSError as error:
        raise BadFile(f"{folder}: could not be read: {error.strerror or error}") from error


def remove_kept(names: list[str]) -> list[KeptFile]:
    """Remove those files, or none where one of them is unknown (BadRequest); who has one mapped keeps what he has."""
    kept = {file.name: file for file in kept_files()}
    for name in names:
        if name not in kept:
            raise BadRequest(f"{packed_folder()} holds no {name!r}; shohin cache ls shows what there is", param="name")
    for name in names:
        try:
            (packed_folder() / name).unlink(missing_ok=True)
        except OSError as error:
            raise BadFile(f"{packed_folder() / name}: could not be removed: {error.strerror or error}") from error
    return [kept[name] for name in names]


def _kept(path: Path) -> KeptFile:
    size = path.stat().st_size
    try:
        identity = PackedFile(path).identity
    except BadFile as error:
        return KeptFile(path.name, size, None, None, str(error))
    return KeptFile(path.name, size, identity.source, identity.version, None)
