"""Adapters: what WebGPU finds on this machine, chosen by index or by a part of the name."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any

from shohin.errors import NoDevice

__all__ = ["Adapter", "all_adapters", "choose", "library"]

# The order in which adapters are offered: what computes fastest first; and how many workgroups fill one. WebGPU tells
# nothing about the number of cores.
KINDS = {"DiscreteGPU": 256, "IntegratedGPU": 64, "Unknown": 256, "CPU": 16}


@dataclass(frozen=True)
class Adapter:
    """index: what ``webgpu:1`` means; name: the GPU; backend: ``Vulkan``, ``Metal`` or ``D3D12``; kind: of KINDS."""

    index: int
    name: str
    backend: str
    kind: str
    features: frozenset[str] = field(repr=False)
    handle: Any = field(repr=False, compare=False)

    @property
    def subgroups(self) -> bool:
        """Whether kernels may exchange values within a subgroup."""
        return "subgroup" in self.features

    @property
    def f16(self) -> bool:
        """Whether kernels may use float16."""
        return "shader-f16" in self.features

    @property
    def workgroups(self) -> int:
        """Workgroups that a dispatch should have at least, so that no part of the adapter idles."""
        return KINDS.get(self.kind, KINDS["Unknown"])

    def limit(self, name: str) -> int:
        """A limit of the adapter, named as in WebGPU with dashes."""
        return int(self.handle.limits[name])

    def __str__(self) -> str:
        return f"{self.name} ({self.backend})"


def library() -> ModuleType:
    """The wgpu package, imported at first use; NoDevice says how to install it."""
    try:
        import_module("wgpu.backends.wgpu_native")
        return import_module("wgpu")
    except ImportError as error:
        raise NoDevice(f"device webgpu needs the package wgpu ({error}); install shohin[webgpu]") from None
    except (OSError, RuntimeError) as error:
        raise NoDevice(f"device webgpu: the package wgpu does not load here ({error})") from None


def all_adapters() -> list[Adapter]:
    """All adapters of Vulkan, Metal and D3D12, fastest kind first; NoDevice where wgpu is not installed."""
    wgpu = library()
    _without_opengl()
    found = []
    for handle in wgpu.gpu.enumerate_adapters_sync():
        info = handle.info
        # The same GPU through OpenGL: without subgroups and float16, and slower.
        if info["backend_type"].startswith("OpenGL"):
            continue
        found.append((info["adapter_type"], info["device"] or info["description"], info["backend_type"], handle))
    order = list(KINDS)
    found.sort(key=lambda a: order.index(a[0]) if a[0] in order else len(order))
    return [
        Adapter(i, name, backend, kind, frozenset(handle.features), handle)
        for i, (kind, name, backend, handle) in enumerate(found)
    ]


def choose(which: str = "") -> Adapter:
    """The first adapter, the one of that index, or the first whose name holds ``which`` in any case.

    NoDevice lists what there is, or says what to install where there is nothing.
    """
    found = all_adapters()
    if not found:
        raise NoDevice(
            "device webgpu: no adapter was found; install a GPU driver with Vulkan (Linux: also libvulkan1; "
            "mesa-vulkan-drivers has a software one), Metal or Direct3D 12"
        )
    if not which:
        return found[0]
    if which.isdecimal():
        matching = [a for a in found if a.index == int(which)]
    else:
        matching = [a for a in found if which.lower() in f"{a.name} ({a.backend})".lower()]
    if not matching:
        listed = ", ".join(f"{a.index}: {a}" for a in found)
        raise NoDevice(f"device webgpu: no adapter {which!r}; available: {listed}")
    return matching[0]


def _without_opengl() -> None:
    """Ask only for what we would use: looking for OpenGL takes as long as all the rest."""
    try:
        extras = import_module("wgpu.backends.wgpu_native.extras")
        extras.set_instance_extras(backends=["Vulkan", "Metal", "DX12"])
    except (ImportError, RuntimeError, KeyError, AttributeError):
        # Somebody in this process has used wgpu before us; its adapters of OpenGL are passed over above.
        return
