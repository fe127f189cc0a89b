"""The kernels of an op lie beside it: how a device finds them without knowing an op by name."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

from shohin.errors import KernelBuild

if TYPE_CHECKING:
    from shohin.devices.tape import Op


def beside(op: Op, device: str) -> ModuleType:
    """The module ``<device>.py`` in the folder of ``op``; KernelBuild where the op has none for that device."""
    folder = type(op).__module__.rpartition(".")[0]
    try:
        found = folder and find_spec(f"{folder}.{device}")
    except ModuleNotFoundError:
        found = None
    if not found:
        raise KernelBuild(f"device {device}: op {op.name!r} has no kernel")
    return import_module(f"{folder}.{device}")
