"""``attend`` on WebGPU: for one row its chunks of keys are shared out and joined; many rows store, then attend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from shohin.devices import Buffer, Call, Weight
from shohin.devices.webgpu.dispatch import Argument, Binding, Dispatch, Part, Target
from shohin.errors import KernelBuild
from shohin.kernels.attend.op import PAIRINGS, Attend
from shohin.kernels.attend.softmax import CHUNK

__all__ = ["READ_WIDE", "SOFTMAX", "dispatches"]

FOLDER = "kernels/attend/webgpu"
# What joint attention shares.
SOFTMAX = (f"{FOLDER}/merging.wgsl", f"{FOLDER}/chunk.wgsl")
READ_WIDE = f"{FOLDER}/read_f32_wide.wgsl"
# Query heads of a workgroup: their queries and scores fit into 16 KiB of workgroup memory at a head_dim of 256.
SLOTS = 4
# Bytes of workgroup memory that wide loads need above a head_dim of 128; WebGPU promises 16 KiB.
WIDE_SHARED = 20 << 10
# Threads of the kernels that store and join.
FEW = 64


@dataclass(frozen=True)
class Plan:
    """One call: its operands by name, and what every kernel of it is compiled with."""

    op: Attend
    operands: tuple[Argument | None, ...]
    target: Target
    kind: str

    @classmethod
    def of(cls, call: Call, target: Target) -> Plan:
        operands = tuple(Part(o) if isinstance(o, Weight) else o for o in call.operands)
        dtype = cast(Buffer, call.operands[4]).dtype
        kind = {np.dtype(np.float16): "f16", np.dtype(np.int8): "int8"}.get(dtype, "f32")
        return cls(cast(Attend, call.op), operands, target, kind)

    @property
    def normed(self) -> bool:
        """Whether there are QK norms."""
        return self.operands[1] is not None

    @property
    def shares(self) -> int:
        """Workgroups that the query heads of one KV head are shared out to."""
        return -(-self.group // self.slots)

    @property
    def group(self) -> int:
        """Query heads a KV head."""
        return self.op.heads.query // self.op.heads.kv

    @property
    def slots(self) -> int:
        """Query heads a workgroup."""
        return min(self.group, SLOTS)

    @property
    def wide(self) -> bool:
        """Whether four pairs of a head are loaded at a time, which takes 20 KiB of workgroup memory at most."""
        return self.op.heads.dim % 8 == 0 and (self.op.heads.dim <= 128 or self.target.limits.shared >= WIDE_SHARED)

    @property
    def chunks(self) -> int:
        """Chunks of the longest context."""
        return -(-cast(Buffer, self.operands[3]).shape[0] // CHUNK)

    def constants(self, threads: int, slots: int) -> dict[str, int | float | bool | str]:
        """Every constant of the parts."""
        h = self.op.heads
        return {
            "QUERY_HEADS": h.query,
            "KV_HEADS": h.kv,
            "GROUP": self.group,
            "SHARES": self.shares,
            "SLOTS": slots,
            "DIM": h.dim,
            "PAIRS": h.dim // 2,
            "PAGE": cast(Buffer, self.operands[4]).shape[2],
            "ADJACENT": h.pairing == PAIRINGS[1],
            "NORMED": self.normed,
            "SCALED": self.kind == "int8",
            "EPS": self.op.eps,
            "FACTOR": float(1 / np.sqrt(np.float32(h.dim))),
            "THREADS": threads,
        }

    def bind(self, name: str, index: int, *, write: bool = False) -> Binding:
        """An operand of floats."""
        return Binding(name, cast(Argument, self.operands[index]), "array<f32>", write)

    def cache(self, *, write: bool = False) -> tuple[Binding, ...]:
        """Keys and values, and their scales where they have any. Words that rows may share are written atomically."""
        if write:
            word = {"f32": "f32", "f16": "u32", "int8": "atomic<u32>"}[self.kind]
        elif self.wide:
            word = {"f32": "vec4<f32>", "f16": "vec4<u32>", "int8": "vec2<u32>"}[self.kind]
        else:
            word = "f32" if self.kind == "f32" else "u32"
        scale = "atomic<u32>" if write else "u32"
        types = (word, word, scale, scale)
        names = ("keys", "values", "key_scales", "value_scales")[: 4 if self.kind == "int8" else 2]
        held = self.operands[4:8]
        return tuple(
            Binding(name, cast(Argument, o), f"array<{kind}>", write)
            for name, o, kind in zip(names, held, types, strict=False)
        )

    def norm(self, name: str, index: int) -> tuple[Binding, ...]:
        """The weight of one of the norms, where there is one."""
        return (self.bind(name, index),) if self.normed else ()

    def parts(self, *names: str) -> tuple[str, ...]:
        """Files of this folder; names that end in _ are completed by the cache's kind or by whether there are norms."""
        norm = "norm" if self.normed else "plain"
        read = f"{self.kind}_{'wide' if self.wide else 'narrow'}"
        ends = {"round_": self.kind, "read_": read, "write_": self.kind, "key_": norm, "query_": norm}
        scales = ("scales_int8",) if "read_" in names and self.kind == "int8" else ()
        return tuple(f"{FOLDER}/{name}{ends.get(name, '')}.wgsl" for name in (*names, *scales))


def dispatches(call: Call, target: Target) -> list[Dispatch]:
    """Two dispatches: partial sums and their joining for a tape of one row, store and attend for others."""
    plan = Plan.of(call, target)
    made = _one_row(plan) if target.rows == 1 else _many_rows(plan)
    most = max(len(d.bindings) for d in made)
    if most > target.limits.bindings:
        raise KernelBuild(
            f"attend: a {plan.kind} cache{' with QK norms' if plan.normed else ''} needs {most} storage buffers in one "
            f"dispatch, this adapter has {target.limits.bindings}; use another kv kind (kv=, --kv)"
        )
    return made


def _many_rows(plan: Plan) -> list[Dispatch]:
    heads, rows = plan.op.heads, plan.target.rows
    inputs = (plan.bind("qkv", 0), plan.bind("rope", 3), Binding.step())
    store = Dispatch(
        plan.parts("half", "turn", "key_", "round_", "own", "write_", "paging", "store"),
        "store",
        plan.constants(FEW, plan.slots),
        (*inputs, *plan.norm("key_norm", 2), *plan.cache(write=True)),
        (heads.kv, rows, 1),
    )
    attend = Dispatch(
        plan.parts("half", "turn", "query_", "queries", "read_", "paging", "merging", "chunk", "attend"),
        "attend",
        plan.constants(CHUNK, plan.slots),
        (*inputs, *plan.norm("query_norm", 1), *plan.cache(), plan.bind("out", 8, write=True)),
        (heads.kv * plan.shares, rows, 1),
    )
    return [store, attend]


def _one_row(plan: Plan) -> list[Dispatch]:
    heads, chunks = plan.op.heads, plan.chunks
    means = 2 * chunks * heads.query
    own = means + chunks * heads.query * heads.dim
    scales = own + 2 * heads.kv * heads.dim
    places = {"CHUNKS": chunks, "MEANS_AT": means, "OWN_AT": own, "SCALES_AT": scales}
    found = plan.target.scratch(4 * (scales + 2 * heads.kv))
    reading = ("query_", "queries", "read_", "paging", "merging", "chunk", "partials")
    partials = Dispatch(
        plan.parts("half", "turn", "key_", "round_", "own", *reading),
        "partials",
        plan.constants(CHUNK, plan.slots) | places,
        (
            *(plan.bind("qkv", 0), plan.bind("rope", 3), Binding.step()),
            *(*plan.norm("query_norm", 1), *plan.norm("key_norm", 2), *plan.cache()),
            Binding("found", found, "array<f32>", write=True),
        ),
        (chunks, heads.kv * plan.shares, 1),
    )
    join = Dispatch(
        plan.parts("half", "write_", "paging", "merging", "join"),
        "join",
        plan.constants(FEW, 1) | places,
        (
            Binding("found", found, "array<f32>"),
            Binding.step(),
            *plan.cache(write=True),
            plan.bind("out", 8, write=True),
        ),
        (heads.query, 1, 1),
    )
    return [partials, join]
