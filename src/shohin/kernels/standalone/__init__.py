"""The ops as plain functions: NumPy arrays in, NumPy arrays out, one tape and one submission per call.

They are the same kernels that models play; each call records a tape of its own. A loop that runs the same shapes again
and again should record its own tape instead (``shohin.devices.Device.recorder``).
"""

from __future__ import annotations

from shohin.kernels.standalone.blocks import ffn
from shohin.kernels.standalone.joint import JointShape, ResidentJoint, joint_attention
from shohin.kernels.standalone.layers import Layers, LayerStack, LayerWeights, Outputs, Rows, Tail, forward, layer
from shohin.kernels.standalone.matmul import gemm, gemm_f32, gemv, qkv

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
