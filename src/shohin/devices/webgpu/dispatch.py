"""What an op's plan hands to the device: dispatches of WGSL over buffers, parts of weights, scratch and the step table.

How to write a kernel. ``kernels/<op>/webgpu.py`` has ``def dispatches(call: Call, target: Target) -> list[Dispatch]``.
The ``.wgsl`` files hold functions and workgroup variables only; ``shader.py`` writes what stands before them:

- a ``const`` for every entry of ``constants``: int -> u32, bool -> bool, float -> f32; a str becomes an ``alias``;
- one declaration ``@group(0) @binding(i) var<storage, read or read_write> name: type;`` for every ``Binding``;
- with a binding of STEP, the accessors of ``devices/webgpu/step.wgsl``: ``live_rows()``, ``live_wanted()``,
  ``token(m)``, ``position(m)``, ``sequence(m)``, ``wanted_row(i)``, ``page(sequence, i)``, all u32;
- ``enable f16;`` where the target has f16, and then any part may use the type ``f16``. ``subgroupAdd`` and its kin need
  no line of their own; they compile only where ``target.subgroups`` is true.

WGSL has no preprocessor. What differs by tier is a small part of its own, chosen in ``sources`` (order is free); what
differs by constants is an ``if`` on a const. ``target.reduce`` is the file with ``sum_of_all(t, x)`` and
``max_of_all(t, x)`` over REDUCED threads, in the same order on each tier.

Rules that WebGPU makes: a buffer is bound once in a dispatch (read, or written and perhaps read through one binding);
scratch of one call and every buffer of a tape are GPU buffers of their own, so two different ones never clash. At most
``limits.bindings`` storage bindings and 65,535 workgroups a dimension (``grid`` folds a longer row of workgroups).
Dispatches run in order, each sees what those before it wrote. Rows of a tape beyond the step's live ones are launched
too: a kernel returns where ``m >= live_rows()`` (for the whole workgroup, before any barrier).

Workgroup memory is NOT zeroed at the start (wgpu-native leaves that out), and ``bitcast<vec2<f16>>(u32)`` is wrong in
naga (use ``unpack2x16float`` or bind ``array<f16>``).

Bits of a row must not depend on the number of rows: write ``fma`` where a sum of products is meant, so that no driver
contracts one pipeline and not another, and ``pinned(x)`` (with a binding of STEP) around a product that is multiplied
or divided again, so that none takes the factors in another order. Keep what a thread accumulates in named vectors
rather than in arrays: a driver that does not unroll the loop around an index puts the array into memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from shohin.devices.buffer import Buffer, Weight

__all__ = [
    "MOST_WORKGROUPS",
    "STEP",
    "Argument",
    "Binding",
    "Dispatch",
    "Limits",
    "Part",
    "Scratch",
    "StepTable",
    "Target",
    "grid",
]

MOST_WORKGROUPS = 65535


@dataclass(frozen=True)
class StepTable:
    """The tape's step table; bind it as ``Binding.step()``."""


STEP: Final = StepTable()


@dataclass(frozen=True, eq=False)
class Part:
    """Row part ``index`` of a packed weight (``packing.py``); most weights have one part, 0."""

    weight: Weight
    index: int = 0


@dataclass(frozen=True)
class Scratch:
    """A GPU buffer for values that pass from one dispatch of a call to the next; the next call overwrites it."""

    index: int
    nbytes: int


Argument = Buffer | Part | Scratch | StepTable


@dataclass(frozen=True, eq=False)
class Binding:
    """One storage binding: its name and store type in WGSL (``array<f32>``), and whether the kernel writes it."""

    name: str
    argument: Argument
    type: str
    write: bool = False

    @classmethod
    def step(cls) -> Binding:
        """The step table, read through its accessors."""
        return cls("step_table", STEP, "array<u32>")


@dataclass(frozen=True, eq=False)
class Dispatch:
    """sources: files below ``shohin/``, joined; entry: the ``@compute`` function; constants: see above.

    ROWS and WANTED, the tape's capacities, are constants of every shader.
    """

    sources: tuple[str, ...]
    entry: str
    constants: Mapping[str, int | float | bool | str]
    bindings: tuple[Binding, ...]
    workgroups: tuple[int, int, int]


@dataclass(frozen=True)
class Limits:
    """What one dispatch may use on this adapter.

    binding: bytes of a storage binding; bindings: of them in a dispatch; shared: bytes of workgroup memory; threads:
    of a workgroup.
    """

    binding: int
    bindings: int
    shared: int
    threads: int


@dataclass
class Target:
    """What a plan may know of the device and the tape, and where it gets scratch.

    rows, wanted: row capacities of the tape. subgroups, f16: features of the tier in use. workgroups: how many it takes
    to fill the adapter.
    """

    rows: int
    wanted: int
    subgroups: bool
    f16: bool
    limits: Limits
    workgroups: int
    sizes: list[int] = field(default_factory=list)
    _used: int = field(default=0, repr=False)

    def scratch(self, nbytes: int) -> Scratch:
        """A buffer for the call that is being planned, different from every other one of this call."""
        if self._used == len(self.sizes):
            self.sizes.append(0)
        self.sizes[self._used] = max(self.sizes[self._used], nbytes)
        self._used += 1
        return Scratch(self._used - 1, nbytes)

    def next_call(self) -> None:
        """Another call is planned from here on: scratch is free again."""
        self._used = 0

    @property
    def reduce(self) -> str:
        """The file with sums and maxima over a workgroup for this tier."""
        return f"devices/webgpu/reduce_{'subgroup' if self.subgroups else 'workgroup'}.wgsl"


def grid(workgroups: int) -> tuple[int, int, int]:
    """A row of workgroups folded into two dimensions where it is too long; the kernel's index is
    ``group.y * FOLD + group.x`` with FOLD = 65535, and it returns where that exceeds its work.
    """
    return (min(workgroups, MOST_WORKGROUPS), -(-workgroups // MOST_WORKGROUPS), 1)
