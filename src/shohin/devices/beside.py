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
    if not lies_beside(type(op), device):
        raise KernelBuild(f"device {device}: op {op.name!r} has no kernel")
    return import_module(_module(type(op), device))


def lies_beside(op: type[Op], device: str) -> bool:
    """Whether ops of this class have a kernel for a device; one that lies in no folder has none."""
    if "." not in op.__module__:
        return False
    try:
        return find_spec(_module(op, device)) is not None
    except (ModuleNotFoundError, ValueError):
        return False


def _module(op: type[Op], device: str) -> str:
    return f"{op.__module__.rpartition('.')[0]}.{device}"
