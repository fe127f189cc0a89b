"""WHAT: one folder per op. The standalone functions below play one op, one layer or all layers on NumPy arrays."""

from __future__ import annotations

from shohin.kernels.standalone import (
    JointShape,
    Layers,
    LayerStack,
    LayerWeights,
    Outputs,
    ResidentJoint,
    Rows,
    Tail,
    ffn,
    forward,
    gemm,
    gemm_f32,
    gemv,
    joint_attention,
    layer,
    qkv,
)

__all__ = [
    "JointShape",
    "LayerStack",
    "LayerWeights",
    "Layers",
    "Outputs",
    "ResidentJoint",
    "Rows",
    "Tail",
    "ffn",
    "forward",
    "gemm",
    "gemm_f32",
    "gemv",
    "joint_attention",
    "layer",
    "qkv",
]
