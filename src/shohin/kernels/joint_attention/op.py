"""Non-causal attention of all tokens over all tokens, for image transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shohin.devices import Buffer, Operand, Recorder, Step
from shohin.errors import BadRequest, BadShape
from shohin.kernels.joint_attention import reference as plain

MAX_HEAD_DIM = 256
MODES = ("exact", "fast")


@dataclass(frozen=True)
class JointAttention:
    """Operands: q, k, v [H * S, D] (head-major: row h * S + s is token s of head h), out [S, H * D] (token-major:
    columns h * D to h * D + D - 1 belong to head h). ints = (H, S, D), no floats.

    RoPE and norms are already applied. Scores are (q . k) * (1 / sqrt(D)); softmax over all S keys, no mask; keys in
    chunks of 256 merged in order as in ``attend``. The step's rows are not read: every play covers all S tokens.

    mode: ``exact``, all in the device's float; ``fast`` permits float16 for q, k, v and the softmax weights, with sums
    in float32, where a device gains by it (magnitudes above 65,504 then become infinite).
    """

    name: ClassVar[str] = "joint_attention"
    heads: int
    tokens: int
    dim: int
    mode: str = "exact"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise BadRequest(
                f"joint_attention: mode is {self.mode!r}, expected one of {', '.join(MODES)}", param="mode"
            )
        if min(self.heads, self.tokens, self.dim) < 1:
            raise BadShape(
                f"joint_attention: {self.heads} heads, {self.tokens} tokens and a head_dim of {self.dim}: "
                f"each must be at least 1"
            )
        if self.dim > MAX_HEAD_DIM:
            raise BadShape(f"joint_attention: head_dim is {self.dim}, at most {MAX_HEAD_DIM} is supported")

    def parameters(self) -> tuple[Sequence[int], Sequence[float]]:
        """(H, S, D), ()."""
        return (self.heads, self.tokens, self.dim), ()

    def check(self, operands: Sequence[Operand], step: Step) -> None:
        """The step is not read."""

    def reference(self, operands: Sequence[Any], step: Step) -> None:
        """See ``reference.py``."""
        plain.joint_attention(self, *operands)


def joint_attention(
    tape: Recorder, q: Buffer, k: Buffer, v: Buffer, out: Buffer, *, heads: int, mode: str = "exact"
) -> None:
    """Record: out[s, h] = softmax(q[h, s] . K[h]^T / sqrt(D)) . V[h], S and D taken from the shapes (S3.23)."""
    what = "joint_attention"
    rows, dim = q.shape
    if heads < 1 or rows % heads:
        raise BadShape(f"{what}: q has {rows} rows, which {heads} heads do not divide")
    op = JointAttention(heads, rows // heads, dim, mode)
    for name, buffer in (("q", q), ("k", k), ("v", v)):
        buffer.expect(f"{what}: {name}", (rows, dim), tape.device)
    out.expect(f"{what}: out", (op.tokens, heads * dim), tape.device)
    tape.add(op, (q, k, v, out), writes=(3,))
