"""Which bytes a model is made of: a key that two files share only if they hold the same."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path

from shohin.errors import BadFile
from shohin.formats.weights import Weights

PIECE = 16 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")


def content_key(weights: Weights) -> str:
    """A key of the files' contents, in hexadecimal; BadFile for a model made in memory and for files that are gone.

    The hub's cache names a file by the SHA-256 of its bytes: its word is taken, together with size and time of the last
    change, and nothing is read. Any other file is read as a whole, in pieces that several threads hash (BLAKE2b), which
    costs about as much as packing it.
    """
    if not weights.paths:
        raise BadFile("a model made in memory has no file to tell it by")
    whole = blake2b(digest_size=32)
    for path in weights.paths:
        try:
            whole.update(_named_by_content(path) or _digest(path))
        except OSError as error:
            raise BadFile(f"{path}: could not be read: {error.strerror or error}") from error
    return whole.hexdigest()


def _named_by_content(path: Path) -> bytes | None:
    blob = Path(os.path.realpath(path))
    if blob.parent.name != "blobs" or _SHA256.fullmatch(blob.name) is None:
        return None
    state = blob.stat()
    return f"sha256 {blob.name} {state.st_size} {state.st_mtime_ns}\n".encode()


def _digest(path: Path) -> bytes:
    size = path.stat().st_size

    def piece(start: int) -> bytes:
        with open(path, "rb", buffering=0) as file:
            file.seek(start)
            return blake2b(file.read(PIECE), digest_size=32).digest()

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        digests = list(pool.map(piece, range(0, size, PIECE)))
    return b"blake2b %d\n" % size + b"".join(digests)
