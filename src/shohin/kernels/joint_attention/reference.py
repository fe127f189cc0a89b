"""The meaning of ``joint_attention``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from shohin.kernels.attend.softmax import weighted_sum

if TYPE_CHECKING:
    from shohin.kernels.joint_attention.op import JointAttention


def joint_attention(op: JointAttention, q: NDArray[Any], k: NDArray[Any], v: NDArray[Any], out: NDArray[Any]) -> None:
    """out[s, h * D:] = softmax of token s of head h over all S keys of that head; head by head, to bound memory."""
    shape = (op.heads, op.tokens, op.dim)
    for h, (one_q, one_k, one_v) in enumerate(zip(q.reshape(shape), k.reshape(shape), v.reshape(shape), strict=True)):
        out[:, h * op.dim : (h + 1) * op.dim] = weighted_sum(one_q, one_k, one_v)
