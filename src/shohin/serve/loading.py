"""From a path or a Hugging Face id to a model and its tokenizer."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from shohin import formats
from shohin.devices import Device
from shohin.devices.apart import Apart
from shohin.errors import BadRequest
from shohin.formats import Weights
from shohin.formats.hub import locate
from shohin.formats.text import tokenizer_from_metadata
from shohin.generate.loop import CHUNK
from shohin.models import Model, Packed, build
from shohin.serve.defaults import LoadedTokenizer, file_defaults
from shohin.serve.named_device import named_device
from shohin.serve.packed_folder import cache_for

__all__ = ["Progress", "load", "open_model", "prepare", "shipped_model"]

Progress = Callable[[str, int, int], None]


def shipped_model() -> Path:
    """The model that comes with the package: a demonstration that speaks as Shakespeare's plays do."""
    return Path(__file__).parents[1] / "data" / "shohin-stage-ternary.gguf"


def open_model(model: str | os.PathLike[str], *, dialect: str | None = None, offline: bool | None = None) -> Weights:
    """Find a model (file, folder, ``org/repo``, ``org/repo:QUANT``) and open it; nothing is decoded.

    BadRequest where there is no such model or several fit; BadFile and UnsupportedFormat as ``shohin.open``.
    """
    if not isinstance(model, str | os.PathLike):
        raise BadRequest(f"model is of type {type(model).__name__}, a path or a name was expected", param="model")
    return formats.open(locate(os.fspath(model), offline=offline), dialect=dialect)


def load(  # noqa: PLR0913 - the flat keywords that users of mlx-lm and llama-cpp-python know
    model: str | os.PathLike[str] | Weights,
    *,
    device: str | Device = "cpu",
    threads: int | None = None,
    activations: str = "int8",
    context: int | None = None,
    kv: str = "f16",
    sequences: int = 1,
    offline: bool | None = None,
    dialect: str | None = None,
    progress: Progress | None = None,
    packed_cache: bool | None = None,
) -> tuple[Model, LoadedTokenizer]:
    """Open a model, pack it for a device, and make its tokenizer.

    model: as ``open_model``, or weights that are open already. device: ``cpu`` (with ``threads``, physical cores by
    default), ``host``, or an open device. activations: ``int8`` or ``exact``. context: positions of a sequence,
    min(trained, 4096) by default. kv: cache type ``f16``, ``int8`` or ``f32``. sequences: how many contexts the cache
    holds, for answers and sessions that live at the same time. offline: never use the network; None asks
    HF_HUB_OFFLINE. progress(what, done, total): bytes packed so far, and kernels compiled.
    packed_cache: map the packed weights that an earlier process left, and leave them for the next one; None asks
    SHOHIN_PACKED_CACHE.

    Errors as ``open_model``, ``shohin.device`` and ``shohin.build``, and those of the file's tokenizer.
    """
    weights = model if isinstance(model, Weights) else open_model(model, dialect=dialect, offline=offline)
    tokenizer = tokenizer_from_metadata(weights.metadata, weights.source)
    sampling = file_defaults(weights.metadata, weights.source)
    if not isinstance(device, str | Device):
        raise BadRequest(f"device is of type {type(device).__name__}, a name or a Device was expected", param="device")
    where = device if isinstance(device, Device) else named_device(device, threads)

    def packed(state: Packed) -> None:
        if progress is not None:
            progress("pack", state.bytes, state.of_bytes)

    kept = cache_for(weights, where, packed_cache)
    with _compiling(where, progress):
        built = build(
            weights,
            where,
            activations=activations,
            context=context,
            kv=kv,
            sequences=sequences,
            progress=packed,
            pack=kept.pack if kept else None,
        )
    if kept:
        kept.finish()
    return built, LoadedTokenizer(tokenizer, model_name(weights), sampling)


def prepare(model: Model, prompt: int, *, progress: Progress | None = None) -> None:
    """Record the tapes that an answer to ``prompt`` ids plays, so that nothing is compiled between its tokens.

    progress(what, done, total): kernels compiled so far; those that an earlier process left are not counted.
    """
    with _compiling(model.device, progress):
        for rows in {min(prompt, CHUNK), prompt % CHUNK or CHUNK}:
            model.tape("prefill", rows, wanted=1)
        model.tape("decode", 1, wanted=1)


def _compiling(device: Device, progress: Progress | None) -> AbstractContextManager[None]:
    """What a GPU compiles meanwhile is told as ``compile``."""
    if progress is None or not isinstance(device, Apart):
        return nullcontext()
    return device.telling(partial(progress, "compile"))


def model_name(weights: Weights) -> str:
    """``general.name``, else the file's name without its ending, else the architecture."""
    name = weights.metadata.get("general.name")
    if isinstance(name, str) and name.strip():
        return name.strip()
    return Path(weights.source).stem if weights.paths else weights.architecture
