"""``qwen3``: Qwen3 and the dense Bonsai models.

Per-head RMSNorm of q and k before RoPE, which rotates the two halves of a head; static YaRN where the file asks for it.
The head length stands in ``attention.key_length`` and need not be width / heads (case C40).
"""

from __future__ import annotations

from shohin.models.config import Reading
from shohin.models.decoder import Decoder

QWEN3 = Decoder(name="qwen3", reading=Reading(pairing="half"), qk_norm=("attn_q_norm", "attn_k_norm"))
