"""Sampling settings where a caller gives none: the model file's own, else those that Bonsai models are made for."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from shohin.errors import BadFile, BadRequest
from shohin.formats.text import Tokenizer
from shohin.generate import SamplingParams

__all__ = ["BONSAI", "LoadedTokenizer", "chat_options", "check_kind", "file_defaults", "settings"]

# PrismML's settings for models of up to 8B parameters, which also answer without thinking aloud unless asked to.
BONSAI: Mapping[str, Any] = MappingProxyType({"temperature": 0.5, "top_p": 0.85, "top_k": 20, "min_p": 0.0})
THINKING = False

_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
_NAMES = frozenset(SamplingParams.__dataclass_fields__)


class LoadedTokenizer(Tokenizer):
    """A file's tokenizer together with what else the file says about answering.

    name: what the model calls itself. sampling: its own default settings, of ``SamplingParams``.
    """

    def __init__(self, tokenizer: Tokenizer, name: str, sampling: Mapping[str, Any]) -> None:
        # The state is shared: a tokenizer never changes once it is made.
        self.__dict__.update(tokenizer.__dict__)
        self.name = name
        self.sampling = sampling


def file_defaults(metadata: Mapping[str, object], source: str) -> Mapping[str, Any]:
    """Settings under ``general.sampling.*`` of a GGUF file; BadFile names a key whose value is out of range."""
    found = {}
    for key, name in _KEYS.items():
        if key not in metadata:
            continue
        try:
            SamplingParams(**{name: metadata[key]})  # type: ignore[arg-type]
        except BadRequest as error:
            raise BadFile(f"{source}: {key}: {error}") from None
        found[name] = metadata[key]
    return MappingProxyType(found)


def settings(tokenizer: Tokenizer, asked: Mapping[str, Any]) -> SamplingParams:
    """``asked`` over the file's defaults over Bonsai's; None means not asked. A file that names any setting replaces
    Bonsai's altogether.

    BadRequest (``unsupported_parameter``) for a name that SamplingParams does not have.
    """
    unknown = sorted(asked.keys() - _NAMES)
    if unknown:
        raise unsupported(unknown[0], f"known settings are {', '.join(sorted(_NAMES))}")
    own = tokenizer.sampling if isinstance(tokenizer, LoadedTokenizer) else {}
    return SamplingParams(**{**(own or BONSAI), **{k: v for k, v in asked.items() if v is not None}})


def chat_options(asked: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a chat template is told: ``enable_thinking`` false unless asked otherwise."""
    return {"enable_thinking": THINKING, **(asked or {})}


def check_kind(name: str, value: object, kind: type) -> None:
    """BadRequest naming an argument of another type than the one that it must have."""
    if not isinstance(value, kind):
        raise BadRequest(f"{name} is of type {type(value).__name__}, {kind.__name__} was expected", param=name)


def unsupported(name: str, why: str) -> BadRequest:
    """The refusal of a field that would have no effect."""
    return BadRequest(f"{name} is not supported; {why}", param=name, code="unsupported_parameter")
