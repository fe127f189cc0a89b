"""Tiny decoders that ``transformers`` runs too, with the same weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from memory_models import Sizes
from numpy.typing import NDArray

Scaling = dict[str, Any]

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
YARN_KEYS = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 32,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
MAGNITUDE = 1.3


@dataclass(frozen=True)
class Oracle:
    """A model, the scaling as transformers spells it, and how many ids to read."""

    name: str
    sizes: Sizes
    scaling: Scaling = field(default_factory=lambda: {"rope_type": "default"})
    length: int = 40

    @property
    def ids(self) -> list[int]:
        """The same ids for everybody."""
        return np.random.RandomState(self.sizes.seed + 100).randint(0, self.sizes.vocabulary, self.length).tolist()


def divisors(head: int, base: float) -> tuple[float, ...]:
    """``rope_freqs.weight`` as a GGUF holds it for Llama 3's scaling: what each pair's frequency is divided by."""
    frequencies = base ** (-2 * np.arange(head // 2) / head)
    turns = LLAMA3["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    low, high, factor = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"], LLAMA3["factor"]
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return tuple((1 / ((1 - smooth) / factor + smooth)).tolist())


ORACLES = (
    Oracle("qwen3_tied", Sizes(tied=True, seed=1), length=1),
    Oracle("qwen3_gqa", Sizes(heads=6, kv_heads=2, hidden=48, head=12, base=1e6, seed=2)),
    Oracle("qwen3_one_kv_head", Sizes(heads=4, kv_heads=1, head=64, tied=True, seed=3), length=129),
    Oracle("qwen3_yarn_short", Sizes(context=128, extra=YARN_KEYS, seed=4), YARN, length=9),
    Oracle("qwen3_yarn_long", Sizes(context=128, extra=YARN_KEYS, head=32, base=1e6, seed=5), YARN, length=120),
    Oracle(
        "qwen3_yarn_magnitude",
        Sizes(context=128, extra=YARN_KEYS | {"rope.scaling.attn_factor": MAGNITUDE / (1 + 0.1 * np.log(4.0))}, seed=6),
        YARN | {"attention_factor": MAGNITUDE},
    ),
    Oracle(
        "qwen3_yarn_turns",
        Sizes(
            head=64,
            context=2048,
            extra=YARN_KEYS
            | {"rope.scaling.original_context_length": 512}
            | {"rope.scaling.yarn_beta_fast": 4.0, "rope.scaling.yarn_beta_slow": 0.5},
            seed=7,
        ),
        YARN | {"original_max_position_embeddings": 512, "beta_fast": 4.0, "beta_slow": 0.5},
    ),
    Oracle("llama_tied", Sizes("llama", tied=True, eps=1e-5, seed=8)),
    Oracle("llama_gqa", Sizes("llama", heads=9, kv_heads=3, hidden=36, head=10, seed=9), length=70),
    Oracle("llama_no_gqa", Sizes("llama", heads=4, kv_heads=4, head=8, seed=10), length=17),
    Oracle(
        "llama_linear",
        Sizes("llama", extra={"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}, seed=11),
        {"rope_type": "linear", "factor": 2.0},
    ),
    Oracle("llama_divisors", Sizes("llama", head=32, divisors=divisors(32, 10000.0), seed=12), LLAMA3, length=100),
)


def transformers_logits(oracle: Oracle) -> NDArray[np.float64]:
    """Logits after every position by transformers in float64 (its norms, softmax and angles stay in float32)."""
    import torch
    import transformers

    sizes = oracle.sizes
    kind = {"qwen3": "Qwen3", "llama": "Llama"}[sizes.architecture]
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.inner,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        head_dim=sizes.head,
        max_position_embeddings=sizes.context,
        rms_norm_eps=sizes.eps,
        tie_word_embeddings=sizes.tied,
        rope_parameters=oracle.scaling | {"rope_theta": sizes.base},
        attn_implementation="eager",
    )
    model = getattr(transformers, f"{kind}ForCausalLM")(config).double().eval()
    state = {_name(name): torch.from_numpy(values).double() for name, values in sizes.arrays().items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= ({"lm_head.weight"} if sizes.tied else set())
    with torch.no_grad():
        found = model(torch.tensor([oracle.ids]), use_cache=False).logits[0].numpy()
    return np.asarray(found, np.float64)


def _name(name: str) -> str:
    """A tensor's name in transformers."""
    outside = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    if name in outside:
        return outside[name]
    inside = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{inside[part]}.weight"
