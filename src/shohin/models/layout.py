"""Which tensors a graph reads, in which shapes, and whether a file has exactly those."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod

from shohin.devices import Device
from shohin.errors import BadFile, UnsupportedFormat
from shohin.formats.blocks import FORMATS, BlockFormat
from shohin.formats.tensor import Tensor
from shohin.formats.weights import Weights
from shohin.models.keys import Keys

_LAYER = re.compile(r"blk\.([0-9]{1,9})\.")


@dataclass(frozen=True)
class Slot:
    """A tensor that the graph reads. keys: the metadata keys (without prefix) that its shape follows from.

    streamed: it is read whole for every decoded token; norms and an untied embedding are not counted as that.
    """

    name: str
    shape: tuple[int, ...]
    keys: tuple[str, ...]
    streamed: bool = False


def check_tensors(weights: Weights, slots: Callable[[], Iterable[Slot]], layers: int, ignored: frozenset[str]) -> None:
    """BadFile or UnsupportedFormat unless the file holds exactly these tensors, in shapes that the metadata gives.

    The number of layers is compared first, so that a made-up ``block_count`` costs nothing. ``ignored`` tensors were
    read elsewhere.
    """
    keys = Keys(weights.metadata, f"{weights.architecture}.", weights.source)
    _check_layers(weights, keys, layers)
    known = set(ignored)
    for slot in slots():
        tensor = weights.tensors.get(slot.name)
        if tensor is None:
            raise BadFile(
                f"{weights.source}: tensor {slot.name!r} {list(slot.shape)} is missing; {keys.shown('block_count')} "
                f"and architecture {weights.architecture} ask for it"
            )
        _check_tensor(tensor, slot, keys)
        known.add(slot.name)
    others = [name for name in weights.tensors if name not in known]
    if others:
        shown = ", ".join(f"{name!r} {list(weights.tensors[name].shape)}" for name in others[:4])
        more = f" and {len(others) - 4} more" if len(others) > 4 else ""
        raise UnsupportedFormat(
            f"{weights.source}: {shown}{more}: not part of architecture {weights.architecture} as shohin computes it; "
            f"leaving tensors out would give other answers"
        )


def check_formats(weights: Weights, slots: Iterable[Slot], device: Device) -> None:
    """UnsupportedFormat for the first tensor whose format the device refuses; nothing is packed before this passed."""
    verdicts: dict[str, str] = {}
    for slot in slots:
        tensor = weights.tensors[slot.name]
        name = tensor.format.name
        if verdicts.setdefault(name, device.accepts(tensor.format)) == "refused":
            raise UnsupportedFormat(
                f"{weights.source}: tensor {slot.name!r} {list(tensor.shape)} is {name}, "
                f"which device {device.name} does not run; convert the model to another format"
            )


def streamed_bytes(slots: Iterable[Slot], format_of: Callable[[str], BlockFormat]) -> int:
    """File bytes of all layers' matrices and the head: what decoding one token has to read."""
    return sum(slot.shape[0] * format_of(slot.name).nbytes(slot.shape[1]) for slot in slots if slot.streamed)


def packed_bytes(weights: Weights, slots: Iterable[Slot], device: Device) -> int:
    """Memory that packing takes beside the mapped file. What a device repacks is ternary and becomes PQ2_0; a device
    with a memory of its own takes a copy of the rest, too.
    """
    total, apart = 0, device.free_memory() is not None
    for slot in slots:
        tensor = weights.tensors[slot.name]
        verdict = device.accepts(tensor.format)
        if verdict == "repacked":
            total += FORMATS["PQ2_0"].nbytes(-(-prod(tensor.shape) // 128) * 128)
        elif verdict == "dequantised":
            total += prod(tensor.shape) * device.float_type.itemsize
        elif apart:
            total += tensor.data.nbytes
    return total


def _check_layers(weights: Weights, keys: Keys, layers: int) -> None:
    found = {int(match[1]): name for name in weights.tensors if (match := _LAYER.match(name))}
    present = max(found, default=-1) + 1
    if present != layers:
        last = f"the last tensor of a layer is {_shown(weights.tensors[found[present - 1]])}" if found else "none"
        raise BadFile(f"{weights.source}: {keys.shown('block_count')}, and the file has {present} layers ({last})")


def _check_tensor(tensor: Tensor, slot: Slot, keys: Keys) -> None:
    if tensor.shape != slot.shape:
        reasons = ", ".join(keys.shown(name) for name in slot.keys)
        raise BadFile(
            f"{keys.source}: tensor {tensor.name!r} has the shape {list(tensor.shape)}, and {list(slot.shape)} "
            f"follows from {reasons or 'the other tensors'}"
        )
    if len(slot.shape) == 1 and tensor.format.quantised:
        raise UnsupportedFormat(
            f"{keys.source}: tensor {_shown(tensor)} is a norm in {tensor.format.name}; F32, F16 or BF16 was expected"
        )
    if slot.shape[-1] % tensor.format.block:
        raise BadFile(
            f"{keys.source}: tensor {_shown(tensor)}: rows of {slot.shape[-1]} weights do not fill whole blocks of "
            f"{tensor.format.block} ({tensor.format.name})"
        )


def _shown(tensor: Tensor) -> str:
    return f"{tensor.name!r} {list(tensor.shape)}"
