"""How long a context a model gets, and the memory for it: asked about first, then taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shohin.devices import Buffer, Device
from shohin.errors import BadRequest, OutOfMemory
from shohin.kernels.attend import KINDS, PAGE, LayerCache
from shohin.models.config import DecoderConfig
from shohin.models.memory import available_memory, shown

# A context that nobody asked for: a model's whole 65,536 would freeze small machines (case C31).
DEFAULT_CONTEXT = 4096
# Rows of the largest step; longer input goes in chunks.
LARGEST_STEP = 512


@dataclass(frozen=True)
class CachePlan:
    """context: positions a sequence. sequences: how many of that length fit. kind: ``f16``, ``int8`` or ``f32``.

    weight_bytes: what packing takes beside the mapped file.
    """

    config: DecoderConfig
    context: int
    sequences: int
    kind: str
    float_bytes: int
    weight_bytes: int = 0

    @classmethod
    def of(cls, config: DecoderConfig, device: Device, *, context: int | None, sequences: int, kind: str) -> CachePlan:
        """Check what the caller asked for; BadRequest names the field. ``context`` None is min(trained, 4096)."""
        if kind not in KINDS:
            raise BadRequest(f"kv is {kind!r}, expected one of {', '.join(KINDS)}", param="kv")
        if isinstance(sequences, bool) or not isinstance(sequences, int) or sequences < 1:
            raise BadRequest(
                f"sequences is {sequences!r}, a whole number of at least 1 was expected", param="sequences"
            )
        trained = config.trained_context
        chosen = min(trained, DEFAULT_CONTEXT) if context is None else context
        if isinstance(chosen, bool) or not isinstance(chosen, int) or chosen < 1:
            raise BadRequest(f"context is {context!r}, a whole number of at least 1 was expected", param="context")
        if chosen > trained:
            raise BadRequest(
                f"context is {chosen}, and the model was trained for {trained} positions; ask for at most {trained}",
                param="context",
            )
        return cls(config, chosen, sequences, kind, device.float_type.itemsize)

    @property
    def pages(self) -> int:
        """Pages for all sequences; a sequence's last page may be longer than its context."""
        return self.sequences * -(-self.context // PAGE)

    @property
    def bytes_per_token(self) -> int:
        """Cache bytes of one position in all layers, K and V together."""
        c = self.config
        return c.layers * LayerCache.bytes_per_token(self.kind, c.kv_heads, c.head_dim, self.float_bytes)

    @property
    def step_bytes(self) -> int:
        """Intermediate values of the largest step with one row of logits: the residual stream, what attention or the
        feed-forward block holds at a time, and one input to a matrix, normed or as codes.
        """
        return min(self.context, LARGEST_STEP) * self._row_bytes + self.config.rows * self.float_bytes

    @property
    def _row_bytes(self) -> int:
        c, heads = self.config, self.config.attention
        mixed = heads.query * heads.dim
        widths = c.hidden + max(heads.width + mixed, c.inner) + max(c.hidden, mixed, c.inner)
        return widths * self.float_bytes

    def _largest(self, free: int) -> int:
        """The longest context, in whole pages or the trained one, for which ``free`` bytes are enough."""
        position = self.sequences * self.bytes_per_token + self.config.head_dim * self.float_bytes
        left = max(0, free - self.weight_bytes - self.config.rows * self.float_bytes)
        most = (left - LARGEST_STEP * self._row_bytes) // position
        if most < LARGEST_STEP:
            most = min(left // (position + self._row_bytes), LARGEST_STEP)
        return min(most // PAGE * PAGE, self.config.trained_context)

    def check_memory(self, own: int | None = None) -> None:
        """``own``: free bytes of a device with a memory of its own; otherwise the system's count.

        OutOfMemory when cache, RoPE table, intermediate values and packed weights together need more than there is,
        with what is free and what would fit.
        """
        free = available_memory() if own is None else own
        cache = self.pages * PAGE * self.bytes_per_token
        table = self.context * self.config.head_dim * self.float_bytes
        if free is None or cache + table + self.step_bytes + self.weight_bytes <= free:
            return
        fits = self._largest(free)
        advice = f"the largest context that fits is {fits}" if fits else "not even a short one fits"
        raise OutOfMemory(
            f"a context of {self.context} positions for {self.sequences} sequences needs {shown(cache)} of {self.kind} "
            f"cache ({self.bytes_per_token} bytes a token) and {shown(table)} for RoPE, beside "
            f"{shown(self.step_bytes)} of intermediate values and {shown(self.weight_bytes)} of repacked "
            f"weights; {shown(free)} are free and {advice}; ask for less with --ctx-size (context=)"
        )


@dataclass(frozen=True)
class KVCache:
    """The key and value pages of all layers. pages: in each layer; page: positions in a page."""

    layers: tuple[LayerCache, ...]
    pages: int
    page: int = PAGE

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, layer: int) -> LayerCache:
        return self.layers[layer]

    def __iter__(self) -> Iterator[LayerCache]:
        return iter(self.layers)

    @classmethod
    def allocate(cls, device: Device, plan: CachePlan) -> KVCache:
        """Zeroed pages; OutOfMemory where the system refuses."""
        c = plan.config
        shape = (plan.pages, c.kv_heads, PAGE, c.head_dim)
        with _refusals(plan):
            layers = tuple(LayerCache.allocate(device, f"layer {i}", plan.kind, shape) for i in range(c.layers))
        return cls(layers, plan.pages)


def rope_table(device: Device, plan: CachePlan) -> Buffer:
    """The device's float [context, head_dim], for as many positions as the context has."""
    with _refusals(plan):
        table = device.buffer("rope", (plan.context, plan.config.head_dim))
        device.write(table, plan.config.rope.table(plan.context, device.float_type))
    return table


@contextmanager
def _refusals(plan: CachePlan) -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise OutOfMemory(
            f"the system has no memory for a context of {plan.context} positions for {plan.sequences} sequences "
            f"({plan.bytes_per_token} cache bytes a token); ask for less with --ctx-size (context=)"
        ) from None
