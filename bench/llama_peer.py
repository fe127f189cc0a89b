"""llama.cpp through llama-cpp-python: the oracle of the recorded fixtures and the peer of the benchmarks.

Every setting that changes numbers is given here and nowhere else: CPU only, flash attention off unless
asked for, no automatic start token beyond what the file asks for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path

import llama_cpp
import numpy as np
from numpy.typing import NDArray

KV_TYPES = {"f32": 0, "f16": 1, "q8_0": 8}


def version() -> str:
    """The binding's version and the instruction sets llama.cpp was built with."""
    features = llama_cpp.llama_print_system_info().decode().strip().rstrip("|").strip()
    return f"llama-cpp-python {llama_cpp.__version__}; {features}"


@llama_cpp.llama_log_callback
def _silent(_level: int, _text: bytes, _data: object) -> None:
    """Keep the loader's narration out of recordings and of the benchmarks' one line."""


def silence() -> None:
    """Let llama.cpp log nothing; it prints a line a tensor otherwise."""
    llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))


class Llama:
    """One model and one context of ``context`` positions; kv: the cache type, flash: use flash attention.

    Closing is left to the caller: a context and a model are freed by ``close`` only.
    """

    def __init__(
        self, path: Path, *, context: int = 1024, threads: int = 2, kv: str = "f16", flash: bool = False
    ) -> None:
        silence()
        llama_cpp.llama_backend_init()
        loading = llama_cpp.llama_model_default_params()
        loading.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), loading)
        if not self._model:
            raise OSError(f"llama.cpp cannot load {path}")
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = context
        settings.n_batch = settings.n_ubatch = min(context, 512)
        settings.n_threads = settings.n_threads_batch = threads
        settings.flash_attn_type = (
            llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        settings.type_k = settings.type_v = KV_TYPES[kv]
        settings.offload_kqv = False
        self._context = llama_cpp.llama_init_from_model(self._model, settings)
        if not self._context:
            llama_cpp.llama_model_free(self._model)
            raise MemoryError(f"llama.cpp cannot make a context of {context} positions for {path}")
        self._vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self.rows: int = llama_cpp.llama_vocab_n_tokens(self._vocabulary)
        self.past = 0

    def close(self) -> None:
        """Free the context and the model."""
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of ``text``; ``special`` reads control tokens written in it. A start token only if the file says so."""
        raw = text.encode()
        out = (llama_cpp.llama_token * (len(raw) + 8))()
        count = llama_cpp.llama_tokenize(self._vocabulary, raw, len(raw), out, len(out), True, special)
        if count < 0:
            raise ValueError(f"llama.cpp wants {-count} tokens for {len(raw)} bytes")
        return list(out[:count])

    def detokenize(self, ids: Sequence[int]) -> str:
        """Text of ``ids`` with control tokens left out."""
        raw = b""
        piece = ctypes.create_string_buffer(512)
        for token in ids:
            size = llama_cpp.llama_token_to_piece(self._vocabulary, token, piece, len(piece), 0, False)
            if size < 0:
                raise ValueError(f"token {token} needs {-size} bytes")
            raw += piece.raw[:size]
        return raw.decode("utf-8", errors="replace")

    def is_end(self, token: int) -> bool:
        """Whether the file ends generation at this token."""
        return bool(llama_cpp.llama_vocab_is_eog(self._vocabulary, token))

    def reset(self) -> None:
        """Forget all positions."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        self.past = 0

    def feed(self, ids: Sequence[int], *, every: bool = False) -> NDArray[np.float32]:
        """Run ``ids`` in one batch after what is cached: the last logits [rows], or all [n, rows] if ``every``."""
        batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        try:
            batch.n_tokens = len(ids)
            for i, token in enumerate(ids):
                batch.token[i], batch.pos[i] = int(token), self.past + i
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
                batch.logits[i] = every or i == len(ids) - 1
            status = llama_cpp.llama_decode(self._context, batch)
            if status:
                raise RuntimeError(f"llama_decode returned {status} for {len(ids)} tokens after {self.past}")
        finally:
            llama_cpp.llama_batch_free(batch)
        self.past += len(ids)
        wanted = range(len(ids)) if every else (len(ids) - 1,)
        rows = [self._logits(i) for i in wanted]
        return np.stack(rows) if every else rows[0]

    def _logits(self, i: int) -> NDArray[np.float32]:
        pointer = llama_cpp.llama_get_logits_ith(self._context, i)
        return np.ctypeslib.as_array(pointer, shape=(self.rows,)).copy()

    def greedy(self, prompt: Sequence[int], count: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """From an empty cache: up to ``count`` pairs (id, the logits it was picked from); an end token is the last."""
        self.reset()
        logits = self.feed(prompt)
        for step in range(count):
            token = int(logits.argmax())
            yield token, logits
            if self.is_end(token) or step == count - 1:
                return
            logits = self.feed([token])
