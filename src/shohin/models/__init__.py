"""GRAPH: which ops in which order. This room knows no device by name, and no text."""

from __future__ import annotations

from shohin.models.build import ARCHITECTURES, Packed, build, configure
from shohin.models.cache import DEFAULT_CONTEXT, KVCache
from shohin.models.config import DecoderConfig
from shohin.models.model import CAPACITIES, Model, capacity
from shohin.models.rope import Linear, Rope, Yarn
from shohin.models.scaling import rope_from_config

__all__ = [
    "ARCHITECTURES",
    "CAPACITIES",
    "DEFAULT_CONTEXT",
    "DecoderConfig",
    "KVCache",
    "Linear",
    "Model",
    "Packed",
    "Rope",
    "Yarn",
    "build",
    "capacity",
    "configure",
    "rope_from_config",
]
