"""The tokenizer, trained on the training split alone, and the documents as one array of ids a kind and split."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from shohin.formats.text.pretokenizers import rules_for
from train.corpus import KINDS, SPLITS, Document

PRE = "qwen2"
END_OF_TEXT, START_OF_TURN, END_OF_TURN = SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

Ids = NDArray[np.uint16]


def train_tokenizer(documents: Iterable[Document], vocabulary: int) -> Tokenizer:
    """Byte-level BPE. Talks and renamed scenes repeat the plays, so they are left out; the plays count twice."""
    rules = rules_for(PRE, "training")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = rules.normalizer
    tokenizer.pre_tokenizer = rules.splitter
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    chosen = [d for d in documents if d.split == "train" and d.kind not in ("talk", "renamed")]
    texts = [d.text for d in chosen for _ in range(2 if d.kind == "play" else 1)]
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, documents: Iterable[Document]) -> dict[str, Ids]:
    """{"play.train": uint16 [n], ...}; every document is followed by the end of text."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    by_key: dict[str, list[str]] = {f"{kind}.{split}": [] for kind in KINDS for split in SPLITS}
    for document in documents:
        by_key[f"{document.kind}.{document.split}"].append(document.text)
    found = {}
    for key, texts in by_key.items():
        if texts:
            rows = tokenizer.encode_batch(texts, add_special_tokens=False)
            found[key] = np.concatenate([np.array([*row.ids, end], np.uint16) for row in rows])
    return found


def held_out_bytes(documents: Iterable[Document], key: str) -> int:
    """UTF-8 bytes of a kind and split, one counted for each end of text: what perplexity a byte is measured over."""
    return sum(len(d.text.encode()) + 1 for d in documents if f"{d.kind}.{d.split}" == key)


def save(folder: Path, tokenizer: Tokenizer, streams: dict[str, Ids]) -> None:
    """``tokenizer.json`` and ``streams.npz``."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    np.savez_compressed(folder / "streams.npz", **streams)  # type: ignore[arg-type]


def load(folder: Path) -> tuple[Tokenizer, dict[str, Ids]]:
    """What ``save`` wrote."""
    with np.load(folder / "streams.npz") as stored:
        return Tokenizer.from_file(str(folder / "tokenizer.json")), {key: stored[key] for key in stored}
