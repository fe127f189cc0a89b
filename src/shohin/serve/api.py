"""The Python interface over text, and the one name that takes ids or text: ``generate``."""

from __future__ import annotations

from typing import Any, overload

from numpy.typing import ArrayLike

from shohin.errors import BadRequest
from shohin.formats.text import Tokenizer
from shohin.generate import Generation, SamplingParams
from shohin.generate import generate as generate_ids
from shohin.models import Model
from shohin.serve.chat_completion import create_chat_completion
from shohin.serve.completion import Completion, Response, complete, stream_generate
from shohin.serve.loading import load, open_model

__all__ = [
    "Completion",
    "Response",
    "create_chat_completion",
    "generate",
    "load",
    "open_model",
    "stream_generate",
]


@overload
def generate(
    model: Model, prompt: ArrayLike, params: SamplingParams | None = None, /, **options: Any
) -> Generation: ...


@overload
def generate(model: Model, tokenizer: Tokenizer, prompt: str | ArrayLike, /, **params: Any) -> str: ...


def generate(model: Model, /, *given: Any, **named: Any) -> Generation | str:
    """``generate(model, ids, params)``: an iterator over tokens, as ``shohin.generate.generate``.

    ``generate(model, tokenizer, prompt, **params)``: the text that follows a prompt, as ``stream_generate`` joined.
    """
    if given and isinstance(given[0], Tokenizer):
        return complete(model, *given, **named)
    if given and isinstance(given[0], str):
        raise BadRequest("a text prompt needs the tokenizer: generate(model, tokenizer, prompt)", param="prompt")
    return generate_ids(model, *given, **named)
