"""Models with the real shapes and seeded random weights, for benchmarks and tests where no trained file is at hand.

The shapes are those of the released Bonsai models; every weight lies on its format's grid. A model's bytes depend on
shape, format and seed alone, in memory as in a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod, sqrt
from pathlib import Path
from types import MappingProxyType
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shohin.errors import BadRequest
from shohin.formats.blocks import BlockFormat, by_name
from shohin.formats.gguf import Metadata, NewTensor, Value, write_gguf
from shohin.formats.tensor import Tensor
from shohin.formats.text.vocabulary import TokenKind, byte_alphabet
from shohin.formats.weights import Weights

Bytes = NDArray[np.uint8]

CHUNK_BLOCKS = 1 << 17

# What Qwen3 adds behind its 151,643 ordinary pieces; the last two open and close the thinking.
ADDED = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>",
    "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>",
    "<think>", "</think>",
)  # fmt: skip
MERGES = ("t h", "th e", "Ġ the", "i n", "Ġ a", "e r", "o n", "r e")
SMALLEST_VOCABULARY = 256 + len(MERGES) + len(ADDED)

TEMPLATE = (
    "{%- for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
)

# llama.cpp's numbers for ``general.file_type``, where it has one for files of mostly this format.
_FILE_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "BF16": 32, "TQ1_0": 36, "TQ2_0": 37,
    "Q1_0": 40, "Q2_0": 41, "PTQ1_0": 143,
}  # fmt: skip


@dataclass(frozen=True)
class Yarn:
    """Static YaRN as the metadata states it: the factor and the context length before it."""

    factor: float
    original_context: int


@dataclass(frozen=True)
class ModelShape:
    """A dense Qwen3 decoder: sizes in elements, theta and eps as in the metadata, vocabulary in rows of the tensors."""

    name: str
    width: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int
    head: int = 128
    vocabulary: int = 151_669
    theta: float = 1e6
    eps: float = 1e-6
    context: int = 32_768
    yarn: Yarn | None = None
    tied: bool = True

    def __post_init__(self) -> None:
        if self.vocabulary < SMALLEST_VOCABULARY:
            raise BadRequest(
                f"{self.name}: a vocabulary of {self.vocabulary} rows; bytes, merges and added pieces need "
                f"{SMALLEST_VOCABULARY}",
                param="vocabulary",
            )


SHAPES: Mapping[str, ModelShape] = MappingProxyType(
    {
        shape.name: shape
        for shape in (
            ModelShape("bonsai-1.7b", 2048, 28, 16, 8, 6144, yarn=Yarn(4.0, 8192)),
            ModelShape("bonsai-4b", 2560, 36, 32, 8, 9728, theta=5e6, yarn=Yarn(4.0, 8192)),
            ModelShape("bonsai-8b", 4096, 36, 32, 8, 12288, context=65_536, yarn=Yarn(4.0, 16_384), tied=False),
        )
    }
)


def synthetic_weights(shape: ModelShape | str, format: str, seed: int = 0) -> Weights:
    """The model in memory. shape: a ``ModelShape`` or a name in ``SHAPES``; format: a name of the block format table.

    Norms are F32, everything else has the format. BadRequest for an unknown name, UnsupportedFormat for an unknown
    format, BadShape where rows do not fill its blocks.
    """
    shape, layout = _shape(shape), by_name(format)
    tensors: dict[str, Tensor] = {}
    for plan in _plans(shape, layout, seed):
        data = np.empty(plan.size, np.uint8)
        at = 0
        for chunk in plan.chunks():
            data[at : at + len(chunk)] = np.frombuffer(chunk, np.uint8)
            at += len(chunk)
        data.flags.writeable = False
        tensors[plan.name] = Tensor(plan.name, plan.shape, plan.format, data, f"synthetic {shape.name}")
    note = f"synthetic {shape.name} in {layout.name}: random weights of seed {seed}, nothing trained"
    return Weights((), synthetic_metadata(shape, layout), tensors, notes=(note,))


def write_synthetic(path: str | os.PathLike[str], shape: ModelShape | str, format: str, seed: int = 0) -> Path:
    """The same model as a GGUF file, made and written a few megabytes at a time; errors also as ``write_gguf``."""
    shape, layout = _shape(shape), by_name(format)
    return write_gguf(path, synthetic_metadata(shape, layout), _plans(shape, layout, seed))


def synthetic_metadata(shape: ModelShape, format: BlockFormat) -> Metadata:
    """What a converter writes for such a model, with a small byte-level vocabulary filled up to the row count."""
    values: dict[str, object] = {
        "general.architecture": "qwen3",
        "general.name": f"synthetic {shape.name}",
        "general.quantization_version": 2,
        "qwen3.block_count": shape.layers,
        "qwen3.context_length": shape.context,
        "qwen3.embedding_length": shape.width,
        "qwen3.feed_forward_length": shape.feed_forward,
        "qwen3.attention.head_count": shape.heads,
        "qwen3.attention.head_count_kv": shape.kv_heads,
        "qwen3.attention.key_length": shape.head,
        "qwen3.attention.value_length": shape.head,
        "qwen3.attention.layer_norm_rms_epsilon": shape.eps,
        "qwen3.rope.freq_base": shape.theta,
    }
    if format.name in _FILE_TYPES:
        values["general.file_type"] = _FILE_TYPES[format.name]
    if shape.yarn is not None:
        values["qwen3.rope.scaling.type"] = "yarn"
        values["qwen3.rope.scaling.factor"] = shape.yarn.factor
        values["qwen3.rope.scaling.original_context_length"] = shape.yarn.original_context
    return Metadata().changed(values | _tokenizer(shape.vocabulary))


def _tokenizer(rows: int) -> dict[str, object]:
    by_byte = sorted(byte_alphabet().items(), key=lambda pair: pair[1])
    pieces = [piece for piece, _ in by_byte] + [merge.replace(" ", "") for merge in MERGES]
    pieces += [f"Ġw{index}" for index in range(len(pieces), rows - len(ADDED))]
    first = len(pieces)
    added = [TokenKind.CONTROL if piece.startswith("<|") else TokenKind.USER_DEFINED for piece in ADDED]
    kinds = [int(kind) for kind in [TokenKind.NORMAL] * first + added]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": Value("[str]", [*pieces, *ADDED]),
        "tokenizer.ggml.token_type": Value("[i32]", kinds),
        "tokenizer.ggml.merges": Value("[str]", list(MERGES)),
        "tokenizer.ggml.eos_token_id": first + ADDED.index("<|im_end|>"),
        "tokenizer.ggml.padding_token_id": first + ADDED.index("<|endoftext|>"),
        "tokenizer.ggml.bos_token_id": first + ADDED.index("<|endoftext|>"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def _shape(shape: ModelShape | str) -> ModelShape:
    if isinstance(shape, ModelShape):
        return shape
    found = SHAPES.get(shape.lower())
    if found is None:
        raise BadRequest(f"no synthetic model is called {shape!r}; there are {', '.join(SHAPES)}", param="synthetic")
    return found


def _plans(shape: ModelShape, format: BlockFormat, seed: int) -> list[NewTensor]:
    q, kv = shape.heads * shape.head, shape.kv_heads * shape.head
    # What is added to the residual stream is scaled down, so that its size does not grow with the depth.
    added = 1 / sqrt(2 * shape.layers)

    def matrix(name: str, rows: int, columns: int, gain: float = 1.0) -> NewTensor:
        return _random_matrix(name, (rows, columns), format, gain, seed)

    plans = [matrix("token_embd.weight", shape.vocabulary, shape.width)]
    for layer in range(shape.layers):
        at = f"blk.{layer}."
        plans += [
            _random_norm(f"{at}attn_norm.weight", shape.width, seed),
            matrix(f"{at}attn_q.weight", q, shape.width),
            matrix(f"{at}attn_k.weight", kv, shape.width),
            matrix(f"{at}attn_v.weight", kv, shape.width),
            matrix(f"{at}attn_output.weight", shape.width, q, added),
            _random_norm(f"{at}attn_q_norm.weight", shape.head, seed),
            _random_norm(f"{at}attn_k_norm.weight", shape.head, seed),
            _random_norm(f"{at}ffn_norm.weight", shape.width, seed),
            matrix(f"{at}ffn_gate.weight", shape.feed_forward, shape.width),
            matrix(f"{at}ffn_up.weight", shape.feed_forward, shape.width),
            matrix(f"{at}ffn_down.weight", shape.width, shape.feed_forward, added),
        ]
    plans.append(_random_norm("output_norm.weight", shape.width, seed))
    if not shape.tied:
        plans.append(matrix("output.weight", shape.vocabulary, shape.width))
    return plans


def _generator(name: str, seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, crc32(name.encode())])


def _random_norm(name: str, n: int, seed: int) -> NewTensor:
    f32 = by_name("F32")

    def chunks() -> Iterator[Bytes]:
        yield f32.encode(_generator(name, seed).uniform(0.8, 1.2, n).astype(np.float32))

    return NewTensor(name, (n,), f32, chunks)


def _random_matrix(name: str, shape: tuple[int, int], format: BlockFormat, gain: float, seed: int) -> NewTensor:
    size = gain / sqrt(shape[1])
    fill = _FILLS.get(format.name)

    def chunks() -> Iterator[Bytes]:
        generator = _generator(name, seed)
        blocks = prod(shape) // format.block
        for start in range(0, blocks, CHUNK_BLOCKS):
            count = min(CHUNK_BLOCKS, blocks - start)
            if fill is None:
                values = generator.standard_normal((count, format.block), np.float32) * np.float32(size)
                yield format.encode(values).reshape(-1)
            else:
                yield fill(generator, count, size)

    return NewTensor(name, shape, format, chunks)


@dataclass(frozen=True, eq=False)
class _Fill:
    """Random blocks of one scale and codes: per code byte a table that turns a random byte into a valid one."""

    scale_first: bool
    tables: tuple[tuple[int, Bytes | None], ...]

    def __call__(self, generator: np.random.Generator, count: int, size: float) -> Bytes:
        """uint8 [count * block bytes]; scales between 0.7 and 1.3 times ``size``."""
        scale = ((0.7 + 0.6 * generator.random(count, np.float32)) * np.float32(size)).astype("<f2")
        width = sum(n for n, _ in self.tables)
        out = np.empty((count, width + 2), np.uint8)
        at = 2 if self.scale_first else 0
        out[:, slice(0, 2) if self.scale_first else slice(width, width + 2)] = scale.view(np.uint8).reshape(count, 2)
        for n, table in self.tables:
            raw = np.frombuffer(generator.bytes(count * n), np.uint8).reshape(count, n)
            out[:, at : at + n] = raw if table is None else table[raw]
            at += n
        return out.reshape(-1)


def _spread(valid: list[int]) -> Bytes:
    """A table that maps all 256 bytes onto the valid ones about evenly."""
    return np.array([valid[byte * len(valid) // 256] for byte in range(256)], np.uint8)


def _fills() -> dict[str, Callable[[np.random.Generator, int, float], Bytes]]:
    two_bit = _spread([b for b in range(256) if not b & (b >> 1) & 0x55])
    five = _spread([-(-code * 256 // 243) for code in range(243)])
    four = _spread([-(-3 * code * 256 // 243) for code in range(81)])
    return {
        "Q1_0": _Fill(True, ((16, None),)),
        "Q2_0": _Fill(True, ((16, two_bit),)),
        "Q2_0_G128": _Fill(True, ((32, two_bit),)),
        "PQ2_0": _Fill(True, ((32, two_bit),)),
        "TQ2_0_G128": _Fill(False, ((32, two_bit),)),
        "TQ2_0": _Fill(False, ((64, two_bit),)),
        "PTQ1_0": _Fill(False, ((24, five), (2, four))),
        "TQ1_0": _Fill(False, ((48, five), (4, four))),
    }


_FILLS = _fills()
