"""``gemm`` on a GPU: a linear kernel that stores."""

from __future__ import annotations

from typing import cast

from shohin.devices import Buffer, Call, Weight
from shohin.devices.cuda.launch import Launch, Target
from shohin.kernels.gemm.op import Gemm
from shohin.kernels.linear.cuda import Linear, linear_launches


def launches(call: Call, target: Target) -> list[Launch]:
    """A projection without norm or residual."""
    x, weight, out = call.operands
    activations = cast(Gemm, call.op).activations
    linear = Linear(cast(Buffer, x), None, (cast(Weight, weight),), cast(Buffer, out), "store", activations)
    return linear_launches(linear, target)
