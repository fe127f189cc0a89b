"""From an opened file to a model on a device: check everything, then pack."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from shohin.devices import Device, Weight
from shohin.errors import BadRequest, UnsupportedFormat
from shohin.formats.blocks import FORMATS
from shohin.formats.tensor import Tensor
from shohin.formats.weights import Weights
from shohin.kernels.linear import check_activations
from shohin.models.cache import CachePlan, KVCache, rope_table
from shohin.models.config import DecoderConfig
from shohin.models.decoder import Decoder, Graph
from shohin.models.layout import Slot, check_formats, packed_bytes, streamed_bytes
from shohin.models.llama import LLAMA
from shohin.models.model import Model
from shohin.models.qwen3 import QWEN3

ARCHITECTURES: Mapping[str, Decoder] = {decoder.name: decoder for decoder in (QWEN3, LLAMA)}


@dataclass(frozen=True)
class Packed:
    """Progress of packing: the tensor just done, and tensors and file bytes done so far of how many."""

    name: str
    tensors: int
    of_tensors: int
    bytes: int
    of_bytes: int


def architecture(weights: Weights) -> Decoder:
    """The row of ``ARCHITECTURES`` for a file; UnsupportedFormat lists the rows there are."""
    name = weights.architecture
    if name not in ARCHITECTURES:
        raise UnsupportedFormat(
            f"{weights.source}: general.architecture is {name!r}; shohin runs {', '.join(sorted(ARCHITECTURES))}"
        )
    return ARCHITECTURES[name]


def configure(weights: Weights) -> DecoderConfig:
    """The configuration of a file, held against its tensors; nothing is decoded, packed or allocated.

    BadFile: values and tensors disagree. UnsupportedFormat: an architecture, setting or tensor shohin does not run.
    """
    return architecture(weights).configure(weights)


def build(
    weights: Weights,
    device: Device,
    *,
    activations: str = "int8",
    context: int | None = None,
    kv: str = "f16",
    sequences: int = 1,
    progress: Callable[[Packed], None] | None = None,
    pack: Callable[[Tensor], Weight] | None = None,
) -> Model:
    """Pack a file's weights for a device and give it a cache.

    activations: ``int8`` or ``exact``. context: positions a sequence, min(trained context, 4096) by default. kv: cache
    kind ``f16``, ``int8`` or ``f32``. sequences: how many contexts the cache holds. progress: called after each tensor.
    pack: how a tensor becomes a weight of this device; its own ``pack`` by default.

    Errors, all raised before anything is packed or allocated: BadFile and UnsupportedFormat as ``configure``, and
    UnsupportedFormat for a block format that the device does not run; BadRequest names a parameter; OutOfMemory says
    which context would fit.
    """
    for name, value, kind in (("weights", weights, Weights), ("device", device, Device)):
        if not isinstance(value, kind):
            raise BadRequest(f"{name} is of type {type(value).__name__}, {kind.__name__} was expected", param=name)
    decoder = architecture(weights)
    check_activations(activations)
    config = decoder.configure(weights)
    plan = CachePlan.of(config, device, context=context, sequences=sequences, kind=kv)
    check_formats(weights, decoder.slots(config), device)
    taken = packed_bytes(weights, decoder.slots(config), device)
    replace(plan, weight_bytes=taken).check_memory(device.free_memory())
    packed = _pack(weights, decoder.slots(config), pack or device.pack, progress)
    network = decoder.network(config, packed.__getitem__)
    graph = Graph(config, network, KVCache.allocate(device, plan), rope_table(device, plan), activations)
    return Model(
        decoder,
        graph,
        plan,
        weight_bytes=sum(weight.nbytes for weight in packed.values()),
        streamed=streamed_bytes(decoder.slots(config), lambda name: weights.tensors[name].format),
    )


def _pack(
    weights: Weights,
    slots: Iterable[Slot],
    pack: Callable[[Tensor], Weight],
    progress: Callable[[Packed], None] | None,
) -> dict[str, Weight]:
    tensors = [weights.tensors[slot.name] for slot in slots]
    total, done, packed = sum(t.data.nbytes for t in tensors), 0, {}
    for tensor in tensors:
        packed[tensor.name] = pack(_plain(tensor) if len(tensor.shape) == 1 else tensor)
        done += tensor.data.nbytes
        if progress is not None:
            progress(Packed(tensor.name, len(packed), len(tensors), done, total))
    return packed


def _plain(vector: Tensor) -> Tensor:
    """A norm as F32, which is how every kernel reads it."""
    if vector.format is FORMATS["F32"]:
        return vector
    return replace(vector, format=FORMATS["F32"], data=vector.decode().astype("<f4").view(np.uint8))
