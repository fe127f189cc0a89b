"""Small decoders made in memory, in F32: metadata and random tensors under their GGUF names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shohin.formats.blocks import FORMATS
from shohin.formats.tensor import Tensor
from shohin.formats.weights import Weights

Arrays = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Sizes:
    """A decoder's sizes. extra: metadata beside the usual keys, without the architecture's prefix; divisors: the
    values of ``rope_freqs.weight``, if any.
    """

    architecture: str = "qwen3"
    hidden: int = 32
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head: int = 16
    inner: int = 48
    vocabulary: int = 40
    context: int = 256
    base: float = 10000.0
    eps: float = 1e-6
    tied: bool = False
    seed: int = 1
    extra: Mapping[str, object] = field(default_factory=dict)
    divisors: tuple[float, ...] = ()

    def metadata(self) -> dict[str, object]:
        keys = {
            "block_count": self.layers,
            "context_length": self.context,
            "embedding_length": self.hidden,
            "feed_forward_length": self.inner,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.key_length": self.head,
            "attention.value_length": self.head,
            "attention.layer_norm_rms_epsilon": self.eps,
            "rope.freq_base": self.base,
            **self.extra,
        }
        return {"general.architecture": self.architecture} | {f"{self.architecture}.{k}": v for k, v in keys.items()}

    def arrays(self) -> Arrays:
        """Random weights, norms around 1; q and k rows in the order in which halves of a head are rotated."""
        rng = np.random.RandomState(self.seed)
        h, q, kv = self.hidden, self.heads * self.head, self.kv_heads * self.head

        def matrix(rows: int, columns: int, gain: float = 1.0) -> NDArray[np.float32]:
            return (gain * rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

        def norm(n: int) -> NDArray[np.float32]:
            return rng.uniform(0.6, 1.4, n).astype(np.float32)

        found = {"token_embd.weight": matrix(self.vocabulary, h, 3)}
        for i in range(self.layers):
            shapes = {"attn_q": (q, h), "attn_k": (kv, h), "attn_v": (kv, h), "attn_output": (h, q)}
            shapes |= {"ffn_gate": (self.inner, h), "ffn_up": (self.inner, h), "ffn_down": (h, self.inner)}
            norms = {"attn_norm": h, "ffn_norm": h}
            if self.architecture == "qwen3":
                norms |= {"attn_q_norm": self.head, "attn_k_norm": self.head}
            found |= {f"blk.{i}.{name}.weight": matrix(*shape, 2) for name, shape in shapes.items()}
            found |= {f"blk.{i}.{name}.weight": norm(n) for name, n in norms.items()}
        found["output_norm.weight"] = norm(h)
        if not self.tied:
            found["output.weight"] = matrix(self.vocabulary, h, 3)
        return found

    def weights(self) -> Weights:
        """As a GGUF would hold them: for ``llama`` the rows of q and k interleaved."""
        arrays = self.arrays()
        if self.architecture == "llama":
            for name, heads in (("attn_q", self.heads), ("attn_k", self.kv_heads)):
                for i in range(self.layers):
                    key = f"blk.{i}.{name}.weight"
                    arrays[key] = interleaved(arrays[key], heads)
        if self.divisors:
            arrays["rope_freqs.weight"] = np.array(self.divisors, np.float32)
        return Weights((), self.metadata(), {name: tensor(name, values) for name, values in arrays.items()})


def tensor(name: str, values: NDArray[np.float32]) -> Tensor:
    raw = np.ascontiguousarray(values, "<f4").view(np.uint8).reshape(-1)
    return Tensor(name, values.shape, FORMATS["F32"], raw)


def interleaved(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """What the GGUF converter does to q and k of Llama: row (half s, pair d) of a head becomes row 2 d + s."""
    n, columns = rows.shape
    return np.ascontiguousarray(rows.reshape(heads, 2, n // heads // 2, columns).swapaxes(1, 2)).reshape(n, columns)
