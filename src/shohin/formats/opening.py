"""Open a model file of any container that shohin reads."""

from __future__ import annotations

import os

from shohin.formats.gguf.reader import read_gguf
from shohin.formats.weights import Weights


def open(path: str | os.PathLike[str], dialect: str | None = None) -> Weights:
    """Open a GGUF file, or the first part of a split set, as ``Weights``; nothing is decoded.

    The file is mapped, not read: don't shorten or overwrite it while the weights, or a model made from them, are in
    use (a process that reads what a file has lost is ended by SIGBUS). Deleting it, or renaming another over it, is
    harmless.

    dialect: ``q2_0``, ``q2_0_g128`` or ``tq2_0_g128`` overrides what the file says about tensor type 42.
    BadFile, UnsupportedFormat and BadRequest as ``read_gguf``. ``hub.locate`` turns folders and Hugging Face ids
    into a path.
    """
    return read_gguf(path, dialect=dialect)
