"""``shohin validate``: read everything in a file that can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from shohin.errors import BadFile
from shohin.formats import Tensor, Weights
from shohin.formats.text import tokenizer_from_metadata
from shohin.models import configure

WEIGHTS_AT_ONCE = 1 << 24


def validate(weights: Weights, report: Callable[[str, int, int], None] | None = None) -> dict[str, Any]:
    """Check configuration, tokenizer and every weight; raises the first fault as BadFile or UnsupportedFormat."""
    config = configure(weights)
    tokenizer = tokenizer_from_metadata(weights.metadata, weights.source)
    if tokenizer.chat_template is not None:
        tokenizer.render_chat([{"role": "user", "content": "hello"}])
    total = weights.parameters
    done = 0
    for tensor in weights.tensors.values():
        check_finite(tensor)
        done += tensor.rows * tensor.columns
        if report is not None:
            report("weights", done, total)
    return {
        "file": weights.source,
        "valid": True,
        "architecture": config.architecture,
        "tensors": len(weights.tensors),
        "parameters": total,
        "file_bytes": weights.file_bytes,
        "vocabulary": tokenizer.vocab_size,
        "chat_template": tokenizer.chat_template is not None,
        "notes": list(weights.notes),
    }


def check_finite(tensor: Tensor) -> None:
    """BadFile naming the first row with a NaN or an infinity."""
    rows = max(1, WEIGHTS_AT_ONCE // tensor.columns)
    for start in range(0, tensor.rows, rows):
        values = tensor.decode(start, min(start + rows, tensor.rows)).reshape(-1, tensor.columns)
        finite = np.isfinite(values).all(axis=1)
        if not finite.all():
            row = start + int(np.argmin(finite))
            raise BadFile(f"{tensor.source}: tensor {tensor.name!r}, row {row}: holds a NaN or an infinity")
