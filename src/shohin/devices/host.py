"""``host``: the meaning of every op, played with NumPy in float32 or float64. For tests, and for nobody in a hurry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from shohin.devices.buffer import Buffer, Weight
from shohin.devices.device import Device
from shohin.devices.step import Step
from shohin.devices.tape import Call
from shohin.errors import BadShape
from shohin.formats.blocks import FORMATS, BlockFormat, Codes
from shohin.formats.blocks.repack import to_pq2_0
from shohin.formats.tensor import Tensor


@dataclass(frozen=True, eq=False)
class HostWeight:
    """What a reference sees of a weight: ``dense`` in the device's float type, ``codes`` for int8 activations.

    group is the number of inputs that share an activation scale, as in ``Weight``.
    """

    tensor: Tensor
    float_type: np.dtype[Any]
    group: int

    @property
    def quantised(self) -> bool:
        """Whether the format has integer codes."""
        return self.tensor.format.quantised

    @cached_property
    def dense(self) -> NDArray[Any]:
        """The decoded tensor in its own shape."""
        return self.tensor.decode().astype(self.float_type)

    @cached_property
    def codes(self) -> Codes:
        """Integer codes [N, K / g, g] with scales and minima [N, K / g], g the format's group."""
        return self.tensor.format.unpack(self.tensor.raw())

    @cached_property
    def float_codes(self) -> NDArray[np.float32]:
        """The integer codes in float32, [N, K / w, w] with w the format's group, or ``group`` where that is smaller."""
        width = min(self.group, self.tensor.format.group)
        return self.codes.code.astype(np.float32).reshape(self.tensor.rows, -1, width)

    def rows(self, index: NDArray[np.int32]) -> NDArray[Any]:
        """Decoded rows, without decoding the rest."""
        return self.tensor.format.decode(self.tensor.raw()[index]).astype(self.float_type)


class Host(Device):
    """NumPy device. dtype: float32, or float64 for a reference whose rounding does not matter."""

    name: ClassVar[str] = "host"

    def __init__(self, dtype: DTypeLike = np.float32) -> None:
        super().__init__()
        self.float_type = np.dtype(dtype)
        if self.float_type not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise BadShape(f"host computes in float32 or float64, not {self.float_type}")

    @property
    def kernels(self) -> str:
        """``numpy`` and the float type."""
        return f"numpy {self.float_type}"

    def accepts(self, fmt: BlockFormat) -> str:
        """Every format in its own codes."""
        return "native"

    def pack(self, tensor: Tensor) -> Weight:
        """Keep the tensor's own bytes; decoding happens at first use.

        Q2_0 blocks of 64 whose scales come in equal pairs are really blocks of 128: as PQ2_0 their inputs are
        quantised in the groups of 128 that every other device uses.
        """
        source = tensor.format
        repacked = to_pq2_0(tensor.raw(), source) if source.name == "Q2_0" and len(tensor.shape) > 1 else None
        if repacked is not None:
            tensor = replace(tensor, format=FORMATS["PQ2_0"], data=repacked.reshape(-1))
        held = HostWeight(tensor, self.float_type, min(128, tensor.format.block))
        nbytes = tensor.raw().size
        return self._track(Weight(self, tensor.name, tensor.shape, tensor.format, source, nbytes, held))

    def compile(self, calls: Sequence[Call], rows: int, wanted: int) -> Any:
        """Bind each call's operands to arrays."""
        return [(c.op, [_storage(operand) for operand in c.operands]) for c in calls]

    def run(self, program: Any, first: int, last: int, step: Step) -> None:
        """Play the references one after the other. NaN and infinity travel on to the status of ``pick`` (H.20)."""
        with np.errstate(all="ignore"):
            for op, operands in program[first:last]:
                op.reference(operands, step)


def _storage(operand: Buffer | Weight | None) -> Any:
    return None if operand is None else operand.storage
