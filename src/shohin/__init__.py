"""shohin runs the small end of AI: 1-bit and ternary language models.

One line a room::

    weights = shohin.open("Bonsai-1.7B-Q1_0.gguf")
    device = shohin.device("cpu")
    model = shohin.build(weights, device)
    for token in shohin.generate(model, ids, params): ...

and over them ``load``, ``generate`` with text, ``stream_generate`` and ``create_chat_completion``.
"""

from __future__ import annotations

import shohin.generate as _loops  # noqa: F401  (the room first, so that the function below keeps the name)
from shohin import errors, kernels
from shohin.devices import device
from shohin.generate import SamplingParams
from shohin.models import build
from shohin.serve.api import create_chat_completion, generate, load, stream_generate
from shohin.serve.api import open_model as open

__all__ = [
    "SamplingParams",
    "build",
    "create_chat_completion",
    "device",
    "errors",
    "generate",
    "kernels",
    "load",
    "open",
    "stream_generate",
]
__version__ = "0.1.0"
