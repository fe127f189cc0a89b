"""Tokenizer sources: the small vocabulary of the case files, and real ones where they were fetched."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from shohin.formats import read_gguf
from shohin.formats.text import Tokenizer, tokenizer_from_metadata

DATA = Path(__file__).parents[1] / ".data"
FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(scope="session")
def qwen3_files() -> Path:
    """The folder with Qwen3's tokenizer.json and tokenizer_config.json."""
    folder = Path(os.environ.get("SHOHIN_QWEN3_TOKENIZER", DATA / "qwen3"))
    if not (folder / "tokenizer.json").exists():
        pytest.skip(f"no Qwen3 tokenizer in {folder}: run scripts/fetch_test_data or set SHOHIN_QWEN3_TOKENIZER")
    return folder


@pytest.fixture(scope="session")
def qwen3_metadata(qwen3_files: Path) -> dict[str, Any]:
    """The real Qwen3 vocabulary as a GGUF file states it."""
    body = json.loads((qwen3_files / "tokenizer.json").read_bytes())
    config = json.loads((qwen3_files / "tokenizer_config.json").read_bytes())
    rows = {i: (piece, 1) for piece, i in body["model"]["vocab"].items()}
    rows |= {a["id"]: (a["content"], 3 if a["special"] else 4) for a in body["added_tokens"]}
    pieces, kinds = zip(*(rows[i] for i in range(len(rows))), strict=True)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": list(pieces),
        "tokenizer.ggml.token_type": list(kinds),
        "tokenizer.ggml.merges": [" ".join(m) for m in body["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": rows and next(i for i, r in rows.items() if r[0] == "<|im_end|>"),
        "tokenizer.ggml.padding_token_id": next(i for i, r in rows.items() if r[0] == "<|endoftext|>"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": config["chat_template"],
    }


@pytest.fixture(scope="session")
def qwen3(qwen3_metadata: dict[str, Any]) -> Tokenizer:
    return tokenizer_from_metadata(qwen3_metadata, "qwen3.gguf")


@pytest.fixture(scope="session")
def smollm2() -> Tokenizer:
    """The tokenizer of the real SmolLM2 file."""
    path = Path(os.environ.get("SHOHIN_SMOLLM2", DATA / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"))
    if not path.exists():
        pytest.skip(f"no SmolLM2 file at {path}: run scripts/fetch_test_data or set SHOHIN_SMOLLM2")
    return tokenizer_from_metadata(read_gguf(path).metadata, str(path))


@pytest.fixture(scope="session")
def tiny_metadata(cases: Path) -> Mapping[str, object]:
    """Metadata of the case files' tiny model: 287 pieces, seven of them markers."""
    return dict(read_gguf(cases / "gguf" / "tiny_q1.gguf").metadata)


@pytest.fixture(scope="session")
def tiny(tiny_metadata: Mapping[str, object]) -> Tokenizer:
    return tokenizer_from_metadata(tiny_metadata, "tiny_q1.gguf")


@pytest.fixture(scope="session")
def corpus() -> list[str]:
    """Strings in many scripts, code, numbers, white space, and oddities."""
    texts: list[str] = json.loads((FIXTURES / "text_corpus" / "strings.json").read_text(encoding="utf-8"))
    assert len(texts) >= 200
    return texts
