"""Joint (non-causal) attention over head-major q, k and v."""

from __future__ import annotations

from shohin.kernels.joint_attention.op import MAX_HEAD_DIM, MODES, JointAttention, joint_attention

__all__ = ["MAX_HEAD_DIM", "MODES", "JointAttention", "joint_attention"]
