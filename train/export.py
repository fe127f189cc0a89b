"""From a trained model to a GGUF file, through shohin's own writer; the codes and scales are taken as they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from shohin.formats.blocks import by_name
from shohin.formats.gguf import NewTensor, Value, write_gguf
from train.model import Decoder, Shape
from train.quantise import GROUP, codes_and_scales
from train.tokens import END_OF_TEXT, END_OF_TURN, PRE, SPECIAL


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
