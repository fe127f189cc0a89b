"""Shader modules without what the native library adds to guard a browser against strangers' shaders."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

__all__ = ["modules_of"]

Make = Callable[[str, str], Any]


def modules_of(device: Any) -> Make:
    """What makes a module of a text and a label: through the native library, else by the documented method.

    The documented one adds a counter to every loop, lest one never ends. Drivers then don't unroll loops of a known
    length, and what a thread keeps in arrays goes to memory. Our loops all end, so ours have no counter; indexes stay
    within their arrays as before (the library's flag for bounds).
    """
    try:
        api = import_module("wgpu.backends.wgpu_native._api")
        ffi, lib = api.ffi, api.lib
        create, bounds = api.libf.wgpuDeviceCreateShaderModuleTrusted, lib.WGPUShaderRuntimeChecks_BoundsChecks
        kind, wrap = lib.WGPUSType_ShaderSourceWGSL, api.GPUShaderModule
    except (ImportError, AttributeError):
        return lambda text, label: device.create_shader_module(code=text, label=label)

    def make(text: str, label: str) -> Any:
        kept = [ffi.new("char[]", words.encode()) for words in (text, label)]
        source = ffi.new("WGPUShaderSourceWGSL *")
        source.chain.sType = kind
        source.code.data, source.code.length = kept[0], len(kept[0]) - 1
        wanted = ffi.new("WGPUShaderModuleDescriptor *")
        wanted.nextInChain = ffi.cast("WGPUChainedStruct *", source)
        wanted.label.data, wanted.label.length = kept[1], len(kept[1]) - 1
        return wrap(label, create(device._internal, wanted, bounds), device)

    return make
