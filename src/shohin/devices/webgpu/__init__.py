"""The device ``webgpu``: adapters, buffers, pipelines and submissions through the package wgpu."""

from shohin.devices.webgpu.adapters import Adapter, all_adapters, choose
from shohin.devices.webgpu.device import WebGpu

__all__ = ["Adapter", "WebGpu", "all_adapters", "choose"]
