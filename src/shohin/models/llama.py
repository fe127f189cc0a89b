"""``llama``: Llama, SmolLM2 and others that GGUF files call so.

No QK-norm. The converter interleaves the rows of ``attn_q`` and ``attn_k``, so that RoPE rotates neighbours.
``rope_freqs.weight`` divides the frequencies pair by pair (Llama 3's scaling). Old files leave out RoPE's base: 10000.
"""

from __future__ import annotations

from shohin.models.config import Reading
from shohin.models.decoder import Decoder

LLAMA = Decoder(
    name="llama",
    reading=Reading(pairing="adjacent", base=10000.0, head_from_rope=True, divisors=True),
    ignored=frozenset({"rope_freqs.weight"}),
)
