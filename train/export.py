"""From a trained model to a GGUF file, through shohin's own writer; the codes and scales are taken as they are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from shohin.formats.blocks import by_name
from shohin.formats.gguf import NewTensor, Value, write_gguf
from shohin.formats.text.vocabulary import TokenKind
from train.model import Decoder, Shape
from train.quantise import GROUP, codes_and_scales
from train.sources import SOURCES
from train.tokens import END_OF_TEXT, END_OF_TURN, PRE, SPECIAL

NAME = "shohin-stage"
# A scene: the one who asks speaks first, the other answers. A system message tells where; this is where, if none does.
PLACE = "Hamlet. ACT III. SCENE I. A room in the castle."
TEMPLATE = (
    "{%- if not messages or messages[0]['role'] != 'system' -%}"
    f"{{{{- '<|im_start|>system\\n{PLACE}<|im_end|>\\n' -}}}}"
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') | trim + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
SAMPLING = {"temp": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.02, "penalty_repeat": 1.1}
DESCRIPTION = (
    "A small model that speaks like an Elizabethan stage, trained from scratch on public-domain text. It shows that "
    "shohin works and is no assistant: what it says is neither knowledge nor advice."
)
# llama.cpp's numbers for general.file_type; PQ2_0 has none.
_FILE_TYPES = {"Q1_0": 40, "Q2_0": 41, "F16": 1}


def save_codes(model: Decoder, path: Path) -> None:
    """What a file needs of a model, small: int8 codes and float16 scales of matrices, float32 gains, the shape."""
    arrays: dict[str, NDArray[np.generic]] = {}
    for name, value in model.state_dict().items():
        plain = name.removesuffix(".weight").removesuffix(".gain")
        if value.ndim == 1:
            arrays[f"{plain}:gain"] = value.cpu().numpy()
            continue
        codes, scales = codes_and_scales(value, model.grid)
        arrays[f"{plain}:codes"] = codes.flatten(-2).to(torch.int8).cpu().numpy()
        arrays[f"{plain}:scales"] = scales[..., 0].to(torch.float16).cpu().numpy()
    arrays["shape"] = np.array(sorted(model.shape.dict().items()), dtype="U16")
    arrays["grid"] = np.array(model.grid)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def load_codes(path: Path) -> tuple[Shape, str, dict[str, NDArray[np.float32]]]:
    """Shape, grid and weights: name -> float32 [n, k] on the grid, or gains [n]."""
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored}
    fields = {str(k): float(v) for k, v in arrays.pop("shape")}
    grid = str(arrays.pop("grid"))
    shape = Shape(**{k: v if k in ("theta", "eps") else int(v) for k, v in fields.items()})  # type: ignore[arg-type]
    weights: dict[str, NDArray[np.float32]] = {}
    for key, value in arrays.items():
        name, _, part = key.partition(":")
        if part == "gain":
            weights[name] = value.astype(np.float32)
        elif part == "codes":
            scales = arrays[f"{name}:scales"].astype(np.float32)
            weights[name] = (value.reshape(*scales.shape, GROUP) * scales[..., None]).reshape(value.shape)
    return shape, grid, weights


def to_gguf(codes: Path, tokenizer: Tokenizer, format: str, path: Path) -> Path:
    """Write a model saved by ``save_codes``. ValueError where the format cannot hold the grid exactly."""
    shape, grid, weights = load_codes(codes)
    layout = by_name(format)
    tensors = []
    for name, values in sorted(weights.items(), key=lambda item: _place(item[0])):
        chosen = layout if values.ndim == 2 else by_name("F32")
        stored = chosen.decode(chosen.encode(values))
        if not np.array_equal(stored, values):
            worst = np.abs(stored - values).max()
            raise ValueError(
                f"{name}: {format} does not hold the weights that were trained; it is off by up to {worst}"
            )
        tensors.append(NewTensor.encoded(f"{name}.weight", values, chosen))
    return write_gguf(path, metadata(shape, grid, tokenizer, format), tensors)


def metadata(shape: Shape, grid: str, tokenizer: Tokenizer, format: str) -> dict[str, object]:
    """Everything a reader needs: architecture, tokenizer, template, and where the model comes from."""
    bits = {"ternary": "ternary", "sign": "1-bit"}.get(grid, grid)
    values: dict[str, object] = {
        "general.architecture": "qwen3",
        "general.type": "model",
        "general.name": f"{NAME}-{bits}",
        "general.basename": NAME,
        "general.size_label": f"{round(shape.weights() / 1e6)}M",
        "general.version": "1",
        "general.description": DESCRIPTION,
        "general.license": "apache-2.0",
        "general.languages": Value("[str]", ["en"]),
        "general.tags": Value("[str]", ["text-generation", bits, "public-domain"]),
        "general.quantization_version": 2,
        "general.source.count": len(SOURCES),
        "qwen3.block_count": shape.layers,
        "qwen3.context_length": shape.context,
        "qwen3.embedding_length": shape.hidden,
        "qwen3.feed_forward_length": shape.inner,
        "qwen3.attention.head_count": shape.heads,
        "qwen3.attention.head_count_kv": shape.kv_heads,
        "qwen3.attention.key_length": shape.head,
        "qwen3.attention.value_length": shape.head,
        "qwen3.attention.layer_norm_rms_epsilon": Value("f32", shape.eps),
        "qwen3.rope.freq_base": Value("f32", shape.theta),
    }
    for index, source in enumerate(SOURCES.values()):
        values[f"general.source.{index}.name"] = f"{source.name} {source.version}: {source.holds}; {source.licence}"
    if format in _FILE_TYPES:
        values["general.file_type"] = _FILE_TYPES[format]
    for name, value in SAMPLING.items():
        values[f"general.sampling.{name}"] = value if isinstance(value, int) else Value("f32", value)
    return values | _tokenizer(tokenizer)


def _tokenizer(tokenizer: Tokenizer) -> dict[str, object]:
    model = json.loads(tokenizer.to_str())["model"]
    by_id = {index: piece for piece, index in tokenizer.get_vocab().items()}
    pieces = [by_id[index] for index in range(len(by_id))]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    kinds = [int(TokenKind.CONTROL if piece in SPECIAL else TokenKind.NORMAL) for piece in pieces]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": PRE,
        "tokenizer.ggml.tokens": Value("[str]", pieces),
        "tokenizer.ggml.token_type": Value("[i32]", kinds),
        "tokenizer.ggml.merges": Value("[str]", merges),
        "tokenizer.ggml.eos_token_id": tokenizer.token_to_id(END_OF_TEXT),
        "tokenizer.ggml.eot_token_id": tokenizer.token_to_id(END_OF_TURN),
        "tokenizer.ggml.padding_token_id": tokenizer.token_to_id(END_OF_TEXT),
        "tokenizer.ggml.bos_token_id": tokenizer.token_to_id(END_OF_TEXT),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def _place(name: str) -> tuple[int, int, str]:
    parts = name.split(".")
    return (1, int(parts[1]), name) if parts[0] == "blk" else (0 if name == "token_embd" else 2, 0, name)
