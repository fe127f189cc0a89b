"""The dense decoder: its tensors, and the tape of five phases a layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shohin.devices import Buffer, Recorder, Weight
from shohin.formats.weights import Weights
from shohin.kernels.attend import QKNorm, attend
from shohin.kernels.copy import copy
from shohin.kernels.embed import embed
from shohin.kernels.linear_add import linear_add
from shohin.kernels.norm_linear import norm_linear
from shohin.kernels.norm_swiglu import FeedForward, norm_swiglu
from shohin.kernels.pick import pick
from shohin.kernels.sample import Drawing, sample
from shohin.models.cache import KVCache
from shohin.models.config import DecoderConfig, Reading, read_config
from shohin.models.layout import Slot, check_tensors

HIDDEN, HEADS, KV_HEADS = "embedding_length", "attention.head_count", "attention.head_count_kv"
HEAD, INNER = "attention.key_length", "feed_forward_length"


@dataclass(frozen=True)
class Layer:
    """One layer's weights. norm: before attention [h]; qk: per-head norms or None; query, key, value [n hd, h];
    output [h, nq hd].
    """

    norm: Weight
    qk: QKNorm | None
    query: Weight
    key: Weight
    value: Weight
    output: Weight
    ffn: FeedForward


@dataclass(frozen=True)
class Network:
    """All weights on one device: table [V, h], layers, final norm [h], head [V, h] (the table itself when tied)."""

    table: Weight
    layers: tuple[Layer, ...]
    norm: Weight
    head: Weight


@dataclass(frozen=True)
class Graph:
    """What a recording needs beside the recorder."""

    config: DecoderConfig
    network: Network
    cache: KVCache
    rope: Buffer
    activations: str


@dataclass(frozen=True)
class Decoder:
    """A family of dense pre-norm decoders: RMSNorm, rotary grouped-query attention, SwiGLU, no biases.

    reading: how its configuration is read. qk_norm: whether the heads of q and k are normed, and then the names of
    those norms inside a layer. ignored: tensors that the configuration has already used.
    """

    name: str
    reading: Reading
    qk_norm: tuple[str, str] | None = None
    ignored: frozenset[str] = frozenset()

    def configure(self, weights: Weights) -> DecoderConfig:
        """Read the configuration and hold it against the tensors; nothing is decoded, packed or allocated."""
        config = read_config(weights, self.reading)
        check_tensors(weights, lambda: self.slots(config), config.layers, self.ignored)
        return config

    def slots(self, config: DecoderConfig) -> Iterator[Slot]:
        """Every tensor that the graph reads, in the order of the tape."""
        h = config.hidden
        yield Slot("token_embd.weight", (config.rows, h), (HIDDEN,), streamed=config.tied)
        for layer in range(config.layers):
            yield from self._layer_slots(config, f"blk.{layer}.")
        yield Slot("output_norm.weight", (h,), (HIDDEN,))
        if not config.tied:
            yield Slot("output.weight", (config.rows, h), (HIDDEN,), streamed=True)

    def _layer_slots(self, config: DecoderConfig, blk: str) -> Iterator[Slot]:
        h, inner = config.hidden, config.inner
        q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        yield Slot(f"{blk}attn_norm.weight", (h,), (HIDDEN,))
        yield Slot(f"{blk}attn_q.weight", (q, h), (HEADS, HEAD, HIDDEN), streamed=True)
        yield Slot(f"{blk}attn_k.weight", (kv, h), (KV_HEADS, HEAD, HIDDEN), streamed=True)
        yield Slot(f"{blk}attn_v.weight", (kv, h), (KV_HEADS, HEAD, HIDDEN), streamed=True)
        for norm in self.qk_norm or ():
            yield Slot(f"{blk}{norm}.weight", (config.head_dim,), (HEAD,))
        yield Slot(f"{blk}attn_output.weight", (h, q), (HIDDEN, HEADS, HEAD), streamed=True)
        yield Slot(f"{blk}ffn_norm.weight", (h,), (HIDDEN,))
        yield Slot(f"{blk}ffn_gate.weight", (inner, h), (INNER, HIDDEN), streamed=True)
        yield Slot(f"{blk}ffn_up.weight", (inner, h), (INNER, HIDDEN), streamed=True)
        yield Slot(f"{blk}ffn_down.weight", (h, inner), (HIDDEN, INNER), streamed=True)

    def network(self, config: DecoderConfig, weight: Callable[[str], Weight]) -> Network:
        """Put packed weights, asked for by tensor name, in their places."""
        table = weight("token_embd.weight")
        layers = tuple(self._layer(f"blk.{i}.", weight) for i in range(config.layers))
        head = table if config.tied else weight("output.weight")
        return Network(table, layers, weight("output_norm.weight"), head)

    def _layer(self, blk: str, weight: Callable[[str], Weight]) -> Layer:
        def of(name: str) -> Weight:
            return weight(f"{blk}{name}.weight")

        return Layer(
            norm=of("attn_norm"),
            qk=QKNorm(*map(of, self.qk_norm)) if self.qk_norm else None,
            query=of("attn_q"),
            key=of("attn_k"),
            value=of("attn_v"),
            output=of("attn_output"),
            ffn=FeedForward(of("ffn_norm"), of("ffn_gate"), of("ffn_up"), of("ffn_down")),
        )

    def record(self, tape: Recorder, graph: Graph, taps: Sequence[int] = (), drawing: Drawing | None = None) -> None:
        """Append the whole pass. Outputs: ``ids``, ``status`` [wanted], ``logits`` [wanted, V], taps ``hidden.<i>``.
        With ``drawing``, ids are chosen as it says.

        ``hidden.0`` [rows, h] is the embedding, ``hidden.<i>`` the residual stream after layer i, counted from 1.
        """
        hidden = tape.scratch("hidden", (tape.rows, graph.config.hidden))
        with tape.section("embed"):
            embed(tape, graph.network.table, hidden)
            _tap(tape, hidden, 0, taps)
        for i, layer in enumerate(graph.network.layers):
            with tape.section(f"layer {i}"):
                _record_layer(tape, graph, i, layer, hidden)
                _tap(tape, hidden, i + 1, taps)
        with tape.section("tail"):
            _record_tail(tape, graph, hidden, drawing)


def _record_layer(tape: Recorder, graph: Graph, index: int, layer: Layer, hidden: Buffer) -> None:
    config, heads = graph.config, graph.config.attention
    qkv = tape.scratch("qkv", (tape.rows, heads.width))
    mixed = tape.scratch("mixed", (tape.rows, heads.query * heads.dim))
    inner = tape.scratch("inner", (tape.rows, config.inner))
    projections, mode = (layer.query, layer.key, layer.value), graph.activations
    norm_linear(tape, hidden, layer.norm, projections, qkv, eps=config.eps, activations=mode)
    attend(tape, qkv, graph.cache[index], graph.rope, mixed, heads=heads, norm=layer.qk, eps=config.eps)
    linear_add(tape, mixed, layer.output, hidden, activations=mode)
    norm_swiglu(tape, hidden, layer.ffn, inner, eps=config.eps, activations=mode)
    linear_add(tape, inner, layer.ffn.down, hidden, activations=mode)


def _record_tail(tape: Recorder, graph: Graph, hidden: Buffer, drawing: Drawing | None) -> None:
    config, network = graph.config, graph.network
    logits = tape.scratch("logits", (tape.wanted, config.rows))
    ids = tape.scratch("ids", (tape.wanted,), np.int32)
    status = tape.scratch("status", (tape.wanted,), np.int32)
    mode = graph.activations
    norm_linear(tape, hidden, network.norm, (network.head,), logits, eps=config.eps, activations=mode, gather=True)
    pick(tape, logits, ids, status, vocabulary=config.vocabulary)
    if drawing is not None:
        sample(tape, logits, drawing, ids, status, vocabulary=config.vocabulary)
    for name, buffer in (("logits", logits), ("ids", ids), ("status", status)):
        tape.output(name, buffer, "wanted")


def _tap(tape: Recorder, hidden: Buffer, index: int, taps: Sequence[int]) -> None:
    if index in taps:
        kept = tape.scratch(f"hidden.{index}", hidden.shape)
        copy(tape, hidden, kept)
        tape.output(kept.name, kept, "rows")
