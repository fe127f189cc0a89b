"""Per-head QK-norm, RoPE, store of K and V, causal grouped-query attention over the paged cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shohin.devices import Buffer, Operand, Recorder, Step, Weight
from shohin.errors import BadShape
from shohin.kernels.attend import reference as plain
from shohin.kernels.attend.cache import LayerCache
from shohin.kernels.linear import check_eps

MAX_HEAD_DIM = 256
PAIRINGS = ("half", "adjacent")


@dataclass(frozen=True)
class Heads:
    """query and kv heads, head_dim, and RoPE's pairs: ``half`` (d, d + hd/2) or ``adjacent`` (2d, 2d + 1)."""

    query: int
    kv: int
    dim: int
    pairing: str = "half"

    def __post_init__(self) -> None:
        if self.query < 1 or self.kv < 1 or self.query % self.kv:
            raise BadShape(f"attend: {self.query} query heads are not a multiple of {self.kv} KV heads")
        if self.dim < 2 or self.dim % 2 or self.dim > MAX_HEAD_DIM:
            raise BadShape(f"attend: head_dim is {self.dim}, an even number from 2 to {MAX_HEAD_DIM} was expected")
        if self.pairing not in PAIRINGS:
            raise BadShape(f"attend: RoPE pairing {self.pairing!r} is unknown; known: {', '.join(PAIRINGS)}")

    @property
    def width(self) -> int:
        """Width of a fused q, k, v row."""
        return (self.query + 2 * self.kv) * self.dim


@dataclass(frozen=True)
class Attend:
    """Operands: qkv [rows, (nq + 2 nkv) hd] (overwritten), q norm Weight [hd] or None, k norm Weight [hd] or None,
    rope [positions, hd] (cos of every pair, then sin), keys, values [pages, nkv, page, hd], key scales, value scales
    [pages, nkv, page] (float16) or None, out [rows, nq hd].

    Parameters: ints = (nq, nkv, hd, pairing: 0 half, 1 adjacent), floats = (eps,). The cache's dtype tells its kind:
    float16, int8 (with scales: per token and head, scale = f16(max / 127), value = round-half-even(x / scale)), or the
    device's own float.
    """

    name: ClassVar[str] = "attend"
    heads: Heads
    eps: float

    def parameters(self) -> tuple[Sequence[int], Sequence[float]]:
        """(nq, nkv, hd, pairing), (eps,)."""
        h = self.heads
        return (h.query, h.kv, h.dim, PAIRINGS.index(h.pairing)), (self.eps,)

    def check(self, operands: Sequence[Operand], step: Step) -> None:
        """BadShape for a position without a RoPE row or page, or a page outside the cache (H.1)."""
        rope, keys = operands[3], operands[4]
        assert isinstance(rope, Buffer) and isinstance(keys, Buffer)
        top = int(step.positions.max())
        page = keys.shape[2]
        if top >= rope.shape[0] or top >= step.pages.shape[1] * page:
            raise BadShape(
                f"attend: position {top} is outside the context of {rope.shape[0]} "
                f"or the {step.pages.shape[1] * page} positions that the sequence's pages hold"
            )
        if step.pages.size and int(step.pages.max()) >= keys.shape[0]:
            raise BadShape(f"attend: page {int(step.pages.max())} is outside the cache of {keys.shape[0]} pages")

    def reference(self, operands: Sequence[Any], step: Step) -> None:
        """See ``reference.py``."""
        plain.attend(self, operands, step)


@dataclass(frozen=True)
class QKNorm:
    """Per-head RMSNorm weights of q and k, each [hd] (M.4)."""

    query: Weight
    key: Weight


def attend(
    tape: Recorder,
    qkv: Buffer,
    cache: LayerCache,
    rope: Buffer,
    out: Buffer,
    *,
    heads: Heads,
    norm: QKNorm | None = None,
    eps: float = 1e-6,
) -> None:
    """Record attention of every row over keys 0 to its own position, in its own sequence (M.4 to M.10).

    All rows store K and V before any row reads them; a row reads its own K and V as rounded by the cache.
    """
    what = "attend"
    device = tape.device
    check_eps(what, eps)
    qkv.expect(f"{what}: qkv", (tape.rows, heads.width), device)
    out.expect(f"{what}: out", (tape.rows, heads.query * heads.dim), device)
    rope.expect(f"{what}: rope", (rope.shape[0], heads.dim), device)
    cache.expect(what, heads.kv, heads.dim, device)
    if norm is not None:
        norm.query.expect(f"{what}: q norm", (heads.dim,), device)
        norm.key.expect(f"{what}: k norm", (heads.dim,), device)
    norms = (norm.query, norm.key) if norm else (None, None)
    operands = (qkv, *norms, rope, cache.keys, cache.values, cache.key_scales, cache.value_scales, out)
    tape.add(Attend(heads, eps), operands, writes=(0, 4, 5, 6, 7, 8))
