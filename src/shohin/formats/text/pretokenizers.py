"""How text is cut into words before BPE: one row for each ``tokenizer.ggml.pre`` that is known.

A GGUF file gives only a name; what the name means (cuts, normal form, whether whole words skip the merges) has to be
known here. The patterns are those of the models' published tokenizer.json files, except ``default``, which is
llama.cpp's own fallback and exists nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

from shohin.errors import UnsupportedFormat

_CONTRACTION = "'s|'t|'re|'ve|'m|'ll|'d"
_WORDS = (
    rf"(?i:{_CONTRACTION})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|%s| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

QWEN2_PATTERN = _WORDS % r"\p{N}"
LLAMA3_PATTERN = _WORDS % r"\p{N}{1,3}"
# As ByteLevel writes it when use_regex is on, with the last alternative it needs to leave no gap.
GPT2_PATTERN = rf"{_CONTRACTION}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"

# Regular expressions from a file are never run unless they are one of these: an unknown one may take for ever.
KNOWN_PATTERNS = frozenset({QWEN2_PATTERN, LLAMA3_PATTERN, GPT2_PATTERN})


@dataclass(frozen=True)
class Rules:
    """normalizer and splitter: parts of the ``tokenizers`` library, None for none.

    ignore_merges: a word that is a token as it stands skips the merges. add_bos: the default where the file is silent.
    """

    normalizer: normalizers.Normalizer | None
    splitter: pre_tokenizers.PreTokenizer
    ignore_merges: bool = False
    add_bos: bool = False


def cut(pattern: str) -> pre_tokenizers.PreTokenizer:
    """Each match of the pattern, and each gap between matches, becomes a word."""
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def then_bytes(*steps: pre_tokenizers.PreTokenizer, use_regex: bool = False) -> pre_tokenizers.PreTokenizer:
    """The steps in order, then every byte as its stand-in character."""
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    return pre_tokenizers.Sequence([*steps, last])


def _qwen2() -> Rules:
    return Rules(normalizers.NFC(), then_bytes(cut(QWEN2_PATTERN)))


def _llama3() -> Rules:
    return Rules(None, then_bytes(cut(LLAMA3_PATTERN)), ignore_merges=True, add_bos=True)


def _smollm() -> Rules:
    return Rules(None, then_bytes(pre_tokenizers.Digits(individual_digits=True), use_regex=True))


def _gpt2() -> Rules:
    return Rules(None, then_bytes(use_regex=True))


def _default() -> Rules:
    patterns = (r"[\p{P}\$\+<=>\^~\|]+", GPT2_PATTERN.removesuffix(r"|\s+"), r"\p{N}+", r"[0-9][0-9][0-9]")
    return Rules(None, then_bytes(*map(cut, patterns)))


_BY_NAME: dict[str, Callable[[], Rules]] = {
    "qwen2": _qwen2,
    "deepseek-r1-qwen": _qwen2,
    "smollm": _smollm,
    "llama-bpe": _llama3,
    "llama3": _llama3,
    "llama-v3": _llama3,
    "gpt-2": _gpt2,
    "default": _default,
}


def known_names() -> Sequence[str]:
    """The values of ``tokenizer.ggml.pre`` that are understood."""
    return tuple(_BY_NAME)


def rules_for(name: str, source: str) -> Rules:
    """The rules behind a ``tokenizer.ggml.pre``; UnsupportedFormat names one that is not known."""
    if name not in _BY_NAME:
        raise UnsupportedFormat(
            f"{source}: tokenizer.ggml.pre is {name!r}; known are {', '.join(_BY_NAME)}. "
            f"Guessing would give wrong token ids"
        )
    return _BY_NAME[name]()
