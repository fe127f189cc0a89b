"""One WGSL module from an op's parts: constants and bindings are written before them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from shohin.devices.webgpu.dispatch import MOST_WORKGROUPS, Dispatch, StepTable, Target
from shohin.errors import KernelBuild

__all__ = ["Shader", "assemble"]

Constant = int | float | bool | str


@dataclass(frozen=True)
class Shader:
    """Text of a module, its entry point, and which of its bindings are written: what decides a pipeline."""

    text: str
    entry: str
    writes: tuple[bool, ...]


def assemble(dispatch: Dispatch, target: Target) -> Shader:
    """The module of a dispatch for a target; KernelBuild where a source file is missing."""
    constants = {**dispatch.constants, "ROWS": target.rows, "WANTED": target.wanted, "FOLD": MOST_WORKGROUPS}
    head = ["enable f16;"] if target.f16 else []
    head += [_constant(name, value) for name, value in constants.items()]
    for i, binding in enumerate(dispatch.bindings):
        also = "_write" if binding.write else ""
        head.append(f"@group(0) @binding({i}) var<storage, read{also}> {binding.name}: {binding.type};")
    sources = list(dispatch.sources)
    if any(isinstance(b.argument, StepTable) for b in dispatch.bindings):
        sources.append("devices/webgpu/step.wgsl")
    parts = [_source(path) for path in sources]
    return Shader("\n".join([*head, *parts]), dispatch.entry, tuple(b.write for b in dispatch.bindings))


def _constant(name: str, value: Constant) -> str:
    if isinstance(value, bool):
        return f"const {name}: bool = {str(value).lower()};"
    if isinstance(value, int):
        return f"const {name}: u32 = {value}u;"
    if isinstance(value, float):
        return f"const {name}: f32 = {np.float32(value)!s}f;"
    return f"alias {name} = {value};"


@cache
def _source(path: str) -> str:
    file = files("shohin").joinpath(path)
    try:
        return f"// {path}\n" + file.read_text(encoding="utf-8")
    except OSError as error:
        raise KernelBuild(f"device webgpu: kernel source {path} cannot be read ({error})") from None
