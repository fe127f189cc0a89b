"""One layer, or all layers and the tail, over hidden rows that the caller brings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shohin.devices import Buffer, Device, Recorder, Step, Tape, Weight
from shohin.errors import BadShape, BadState
from shohin.kernels.attend.cache import PAGE, LayerCache
from shohin.kernels.attend.op import Heads, QKNorm, attend
from shohin.kernels.linear import check_activations, check_eps
from shohin.kernels.linear_add.op import linear_add
from shohin.kernels.norm_linear.op import norm_linear
from shohin.kernels.norm_swiglu.op import FeedForward, norm_swiglu
from shohin.kernels.pick.op import pick
from shohin.kernels.standalone.arrays import fill, product, target, values

Array = NDArray[Any]
WANTED = ("hidden", "logits", "ids")


@dataclass(frozen=True)
class LayerWeights:
    """One layer on one device (S0.1): attention norm [h]; qkv, fused or one weight each, [nq hd + 2 nkv hd, h] in all;
    per-head norms or None; output projection [h, nq hd]; feed-forward block."""

    norm: Weight
    qkv: tuple[Weight, ...]
    heads_norm: QKNorm | None
    output: Weight
    ffn: FeedForward


@dataclass(frozen=True)
class Tail:
    """Final norm [h] and LM head [V, h], always both (T.6); eps may differ from the layers'.

    vocabulary: how many of the V logits may be picked, all by default.
    """

    norm: Weight
    head: Weight
    eps: float
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        for name, weight in (("norm", self.norm), ("head", self.head)):
            if not isinstance(weight, Weight):
                raise BadShape(f"tail: {name} is {type(weight).__name__}; a tail needs both final norm and LM head")
        check_eps("tail", self.eps)


@dataclass(frozen=True)
class LayerStack:
    """The resident weights of a model (S0.2) and how to compute with them. Sequences share a stack, never a cache."""

    layers: tuple[LayerWeights, ...]
    heads: Heads
    eps: float
    tail: Tail | None = None
    activations: str = "exact"

    def __post_init__(self) -> None:
        if not self.layers:
            raise BadShape("layer stack: no layer was given")
        check_eps("layer stack", self.eps)
        check_activations(self.activations)

    @property
    def hidden(self) -> int:
        """h."""
        return self.layers[0].norm.shape[-1]


@dataclass(frozen=True, eq=False)
class Rows:
    """Tokens of one sequence at positions start to start + count - 1 (E.1).

    hidden: at least count * h values, row-major; cos, sin: at least count * hd / 2, the RoPE rows of those positions.
    Longer arrays are fine and only their first values count.
    """

    hidden: Array
    cos: Array
    sin: Array
    start: int = 0
    count: int = 1


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a forward was asked for; None for the rest. hidden [count, h]: the residual stream after the last layer.

    logits [n, V]; ids int32 [n]: the best token (lowest index of the maximum), -1 with status 1 where a logit is NaN or
    infinite (H.20). n is 1, the last row, or every row.
    """

    hidden: Array | None = None
    logits: Array | None = None
    ids: NDArray[np.int32] | None = None
    status: NDArray[np.int32] | None = None


class Layers:
    """A stack with the KV cache of one sequence: room for ``positions`` tokens of kind ``kv`` (S0.3 to S0.8).

    The cache belongs to this object and its dimensions never change, so no call can drop a context in silence (H.9,
    H.10). ``length`` counts the positions that hold keys. A forward may start at any position up to it; what lay behind
    is forgotten then and never read (E.13). Weights that do not fit together are an error here, before anything runs.
    """

    def __init__(self, device: Device, stack: LayerStack, positions: int, *, kv: str = "f16") -> None:
        heads = stack.heads
        if positions < 1:
            raise BadShape(f"layers: a cache of {positions} positions was asked, at least 1 is needed")
        product("layers: cache", len(stack.layers), heads.kv, positions, heads.dim)
        self.device, self.stack, self.positions = device, stack, positions
        pages = -(-positions // PAGE)
        shape = (pages, heads.kv, PAGE, heads.dim)
        self._pages = np.arange(pages, dtype=np.int32)[None]
        self._rope = device.buffer("rope", (positions, heads.dim))
        self._caches = [LayerCache.allocate(device, f"layer.{i}", kv, shape) for i in range(len(stack.layers))]
        self._lengths = [0] * len(stack.layers)
        self._tapes: dict[tuple[int, int | None, bool], tuple[Tape, Buffer]] = {}
        self._tape(1, None, every=False)

    @property
    def length(self) -> int:
        """Positions whose keys every layer holds."""
        return min(self._lengths)

    def reset(self) -> None:
        """Forget the sequence; the next forward starts at position 0."""
        self._lengths = [0] * len(self._lengths)

    def play(self, rows: Rows, only: int | None, *, every: bool, fetch: Sequence[str]) -> dict[str, Array]:
        """Run one layer (``only``) or all of them with the tail, in one submission, and fetch outputs."""
        hidden, cos, sin = self._check(rows, only)
        with self.device.lock:
            tape, source = self._tape(rows.count, only, every=every)
            self._check_start(rows, only)
            at = np.arange(rows.start, rows.start + rows.count)
            wanted = np.arange(rows.count) if every else [rows.count - 1]
            step = Step.of(np.zeros_like(at), positions=at, pages=self._pages, wanted=wanted)
            self.device.write(source, hidden)
            self.device.write(self._rope, np.concatenate((cos, sin), axis=1), rows.start)
            self._keep(only, rows.start)  # whatever happens now, what lay behind is gone
            ticket = tape.play(step, fetch)
            self._keep(only, rows.start + rows.count)
            return ticket.outputs

    def _check(self, rows: Rows, only: int | None) -> tuple[Array, Array, Array]:
        """Lengths first, in the order of S0.16 and E.2, then the counts."""
        what, count, half = "forward" if only is None else "layer", rows.count, self.stack.heads.dim // 2
        if count < 1:
            raise BadShape(f"{what}: {count} rows were given, at least 1 is needed")
        hidden = values(f"{what}: hidden", rows.hidden, product(what, count, self.stack.hidden), self.device)
        cos = values(f"{what}: rope_cos", rows.cos, count * half, self.device)
        sin = values(f"{what}: rope_sin", rows.sin, count * half, self.device)
        if only is not None and not 0 <= only < len(self.stack.layers):
            raise BadShape(f"{what}: layer {only} was asked of {len(self.stack.layers)} layers")
        if rows.start < 0 or rows.start + count > self.positions:
            raise BadShape(
                f"{what}: positions {rows.start} to {rows.start + count - 1} do not fit the cache of {self.positions}"
            )
        return hidden.reshape(count, -1), cos.reshape(count, half), sin.reshape(count, half)

    def _check_start(self, rows: Rows, only: int | None) -> None:
        held = self.length if only is None else self._lengths[only]
        if rows.start > held:
            raise BadState(
                f"position {rows.start} would read keys that were never stored: the cache holds {held} positions; "
                f"start at {held} or before"
            )

    def _keep(self, only: int | None, length: int) -> None:
        for i in range(len(self._lengths)) if only is None else (only,):
            self._lengths[i] = length

    def _tape(self, rows: int, only: int | None, *, every: bool) -> tuple[Tape, Buffer]:
        """The tape whose capacity, a power of two, holds ``rows``, recorded once (E.8), and its input buffer."""
        capacity = 1 << (rows - 1).bit_length()
        key = (capacity, only, every)
        if key not in self._tapes:
            what = "forward" if only is None else f"layer {only}"
            tape = self.device.recorder(what, capacity, capacity if every else 1)
            stream = self.device.buffer("hidden", (capacity, self.stack.hidden))
            for i in range(len(self.stack.layers)) if only is None else (only,):
                with tape.section(f"layer {i}"):
                    self._layer(tape, stream, i)
            tape.output("hidden", stream, "rows")
            if only is None and self.stack.tail is not None:
                with tape.section("tail"):
                    self._tail(tape, stream, self.stack.tail)
            self._tapes[key] = tape.finish(), stream
        return self._tapes[key]

    def _layer(self, tape: Recorder, stream: Buffer, index: int) -> None:
        """The five phases of one layer, in place on the residual stream (S0.14)."""
        stack, weights, heads = self.stack, self.stack.layers[index], self.stack.heads
        mode = stack.activations
        qkv = tape.scratch("qkv", (tape.rows, heads.width))
        attended = tape.scratch("attended", (tape.rows, heads.query * heads.dim))
        inner = tape.scratch("inner", (tape.rows, weights.ffn.gate.shape[0]))
        norm_linear(tape, stream, weights.norm, weights.qkv, qkv, eps=stack.eps, activations=mode)
        norm = weights.heads_norm
        attend(tape, qkv, self._caches[index], self._rope, attended, heads=heads, norm=norm, eps=stack.eps)
        linear_add(tape, attended, weights.output, stream, activations=mode)
        norm_swiglu(tape, stream, weights.ffn, inner, eps=stack.eps, activations=mode)
        linear_add(tape, inner, weights.ffn.down, stream, activations=mode)

    def _tail(self, tape: Recorder, stream: Buffer, tail: Tail) -> None:
        mode, vocabulary = self.stack.activations, tail.head.shape[0]
        logits = tape.scratch("logits", (tape.wanted, vocabulary))
        ids, status = (tape.scratch(name, (tape.wanted,), np.int32) for name in ("ids", "status"))
        norm_linear(tape, stream, tail.norm, [tail.head], logits, eps=tail.eps, activations=mode, gather=True)
        pick(tape, logits, ids, status, vocabulary=vocabulary if tail.vocabulary is None else tail.vocabulary)
        for name, buffer in (("logits", logits), ("ids", ids), ("status", status)):
            tape.output(name, buffer, "wanted")


def layer(layers: Layers, index: int, rows: Rows) -> Array:
    """Run layer ``index`` in one submission, in place on the first count * h values of ``rows.hidden`` (S0.15, S0.17).

    BadShape, in this order: hidden, cos, sin too short; no such layer (H.2); positions outside the cache (H.1).
    BadState for a start beyond the positions that this layer has stored. Nothing is written on an error. Returns
    ``rows.hidden``.
    """
    if rows.count >= 1:
        target("layer: hidden", rows.hidden, (rows.count, layers.stack.hidden), layers.device)
    return fill(rows.hidden, layers.play(rows, index, every=False, fetch=("hidden",))["hidden"])


def forward(layers: Layers, rows: Rows, want: Collection[str] = (), *, every: bool = False) -> Outputs:
    """Run all layers, and the tail if there is one, in one submission: decode, prefill, verify (S0.19, E.1, E.10).

    want: any of ``hidden``, ``logits``, ``ids``; what is asked for is what is downloaded, so greedy decoding brings
    four bytes and a status, and asking for ids and logits gives both (T.7). every: logits and ids of every row, as a
    verify needs (E.11), instead of the last one only (E.4). ``rows.hidden`` is never written: the stream comes back as
    ``Outputs.hidden`` when wanted, after a tail too, so that no caller holds a stale one (S0.26, T.8).

    Errors as in ``layer``; BadState for logits or ids of a stack without a tail (T.20); BadShape for an unknown output.
    """
    unknown = sorted(set(want) - set(WANTED))
    if unknown:
        raise BadShape(f"forward: outputs {unknown} are unknown; known: {', '.join(WANTED)}")
    if layers.stack.tail is None and (every or set(want) - {"hidden"}):
        raise BadState("forward: logits and ids need a final norm and an LM head, and this stack has no tail")
    fetch = [*want, "status"] if "ids" in want else [*want]
    return Outputs(**layers.play(rows, None, every=every, fetch=fetch))
