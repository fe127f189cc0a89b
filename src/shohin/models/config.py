"""The shape of a dense decoder, and how it is read from a file's metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shohin.errors import BadFile, BadShape, UnsupportedFormat
from shohin.formats.tensor import Tensor
from shohin.formats.weights import Weights
from shohin.kernels.attend import MAX_HEAD_DIM, Heads
from shohin.models.keys import Keys
from shohin.models.rope import Rope
from shohin.models.scaling import plain_rope, rope_from_gguf

# Keys that would change the computation, with the values that leave it as it is. A key that is read and has no effect
# is how long chats went wrong elsewhere, so anything else is refused by name.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "attention.sliding_window": (0,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.scale": (0,),
    "attention.shared_kv_layers": (0,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "residual_scale": (0, 1),
    "logit_scale": (0, 1),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "nextn_predict_layers": (0,),
    "rope.dimension_sections": (),
}

# A tensor that shows what a key should say, for messages.
WITNESSES: Mapping[str, str] = {
    "embedding_length": "token_embd.weight",
    "feed_forward_length": "blk.0.ffn_gate.weight",
    "attention.head_count": "blk.0.attn_q.weight",
    "attention.head_count_kv": "blk.0.attn_k.weight",
    "attention.key_length": "blk.0.attn_q.weight",
    "rope.dimension_count": "blk.0.attn_q.weight",
}


@dataclass(frozen=True)
class DecoderConfig:
    """A dense decoder. hidden, inner: widths of the residual stream and of the feed-forward block.

    rows: rows of the embedding and the head. vocabulary: ids that may be picked, the first ones of the rows.
    trained_context: positions that the model was trained for. tied: the head is the embedding table.
    """

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    rows: int
    vocabulary: int
    eps: float
    rope: Rope
    trained_context: int
    tied: bool

    def __post_init__(self) -> None:
        sizes = (self.layers, self.hidden, self.inner, self.rows, self.vocabulary, self.trained_context)
        if min(sizes) < 1 or self.vocabulary > self.rows or self.rope.dim != self.head_dim:
            raise BadShape(f"decoder: sizes must be at least 1, vocabulary <= rows, rope.dim == head_dim: {self}")
        _ = self.attention

    @property
    def attention(self) -> Heads:
        """The heads as ``attend`` takes them."""
        return Heads(self.heads, self.kv_heads, self.head_dim, self.rope.pairing)


@dataclass(frozen=True)
class Reading:
    """What an architecture says about reading its configuration.

    pairing: of RoPE. base: RoPE's base where the file gives none, or None. head_from_rope: whether
    ``rope.dimension_count`` stands for the head length where ``attention.key_length`` is absent.
    divisors: whether a tensor ``rope_freqs.weight`` may divide the frequencies.
    """

    pairing: str
    base: float | None = None
    head_from_rope: bool = False
    divisors: bool = False


def read_config(weights: Weights, reading: Reading) -> DecoderConfig:
    """The configuration from ``<architecture>.*``, the GGUF keys, each value in range and in agreement.

    BadFile or UnsupportedFormat name the file, the key and the value. Shapes of tensors are the layout's business.
    """
    keys = Keys(weights.metadata, f"{weights.architecture}.", weights.source, _witnesses(weights))
    _refuse_others(keys)
    hidden, heads, kv_heads, head_dim = _heads(keys, reading)
    rows = _rows(weights)
    return DecoderConfig(
        architecture=weights.architecture,
        layers=keys.count("block_count"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        inner=keys.count("feed_forward_length"),
        rows=rows,
        vocabulary=_vocabulary(weights, keys, rows),
        eps=keys.positive("attention.layer_norm_rms_epsilon"),
        rope=_rope(weights, keys, head_dim, reading),
        trained_context=keys.count("context_length"),
        tied="output.weight" not in weights.tensors,
    )


def _witnesses(weights: Weights) -> dict[str, str]:
    shapes = {name: list(t.shape) for name in WITNESSES.values() if (t := weights.tensors.get(name))}
    return {key: f"tensor {name!r} is {shapes[name]}" for key, name in WITNESSES.items() if name in shapes}


def _refuse_others(keys: Keys) -> None:
    for name, harmless in NEUTRAL.items():
        value = keys.get(name)
        if value is not None and value not in harmless:
            raise UnsupportedFormat(
                f"{keys.source}: {keys.shown(name)} asks for a computation that shohin's {keys.prefix[:-1]} does not do"
            )


def _heads(keys: Keys, reading: Reading) -> tuple[int, int, int, int]:
    hidden, heads = keys.count("embedding_length"), keys.count("attention.head_count")
    kv_heads = keys.count("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise keys.bad("attention.head_count_kv", f"a divisor of {keys.shown('attention.head_count')}")
    head_dim = _head_dim(keys, reading, hidden, heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if keys.count(name, head_dim) != head_dim:
            raise UnsupportedFormat(
                f"{keys.source}: {keys.shown(name)} differs from the head length {head_dim} "
                f"({keys.shown('attention.key_length')}); keys, values and rotation of one length are supported"
            )
    return hidden, heads, kv_heads, head_dim


def _head_dim(keys: Keys, reading: Reading, hidden: int, heads: int) -> int:
    name = "attention.key_length"
    if name not in keys and reading.head_from_rope and "rope.dimension_count" in keys:
        name = "rope.dimension_count"
    if name not in keys and hidden % heads:
        raise keys.bad(name, f"a head length, since {keys.shown('embedding_length')} is no multiple of {heads} heads")
    head_dim = keys.count(name, hidden // heads)
    if head_dim % 2 or not 2 <= head_dim <= MAX_HEAD_DIM:
        derived = "" if name in keys else f" instead of {hidden} / {heads} = {head_dim}"
        raise keys.bad(name, f"an even head length from 2 to {MAX_HEAD_DIM}{derived}")
    return head_dim


def _rows(weights: Weights) -> int:
    table = weights.tensors.get("token_embd.weight")
    if table is None:
        raise BadFile(f"{weights.source}: tensor 'token_embd.weight' is missing; without it no text can be read")
    return table.rows


def _vocabulary(weights: Weights, keys: Keys, rows: int) -> int:
    """Ids that exist in both tables: the rows decide, ``vocab_size`` is only a number on a card (case C43)."""
    keys.count("vocab_size", rows)
    pieces = weights.metadata.get("tokenizer.ggml.tokens")
    if pieces is None:
        return rows
    if isinstance(pieces, str | bytes) or not hasattr(pieces, "__len__") or not len(pieces):
        raise BadFile(f"{weights.source}: tokenizer.ggml.tokens is {pieces!r}; a list of pieces was expected")
    if len(pieces) > rows:
        raise BadFile(
            f"{weights.source}: tokenizer.ggml.tokens has {len(pieces)} pieces and 'token_embd.weight' "
            f"{list(weights.tensors['token_embd.weight'].shape)} only {rows} rows; text could not be looked up"
        )
    return len(pieces)


def _rope(weights: Weights, keys: Keys, head_dim: int, reading: Reading) -> Rope:
    tensor = weights.tensors.get("rope_freqs.weight") if reading.divisors else None
    divisors = () if tensor is None else _divisors(tensor, head_dim, keys)
    rope = plain_rope(
        keys,
        "rope.freq_base",
        lambda base: Rope(base, head_dim, reading.pairing, divisors=divisors),
        reading.base,
    )
    return rope_from_gguf(keys, rope)


def _divisors(tensor: Tensor, head_dim: int, keys: Keys) -> tuple[float, ...]:
    if tensor.shape != (head_dim // 2,) or tensor.format.quantised:
        raise BadFile(
            f"{keys.source}: tensor {tensor.name!r} is {tensor.format.name} {list(tensor.shape)}; plain numbers "
            f"[{head_dim // 2}], one for each pair of a head of {head_dim}, were expected"
        )
    values = tensor.decode().astype(np.float64)
    if not (np.isfinite(values) & (values > 0)).all():
        raise BadFile(
            f"{keys.source}: tensor {tensor.name!r} holds {values.tolist()}; finite divisors above 0 expected"
        )
    return tuple(values.tolist())
