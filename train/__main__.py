"""``python -m train``: fetch, prepare, race, export. Run from the repository root with ``PYTHONPATH=src:.``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def main() -> None:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(prog="python -m train", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    step = commands.add_parser("prepare", help="download the sources, clean them, train tokenizers, encode")
    step.add_argument("--sources", type=Path, default=Path(".train/sources"))
    step.add_argument("--data", type=Path, default=Path(".train"))
    step.add_argument("--vocabulary", type=int, nargs="+", default=[4096])
    step = commands.add_parser("race", help="run the recipes of a JSON list")
    step.add_argument("recipes", type=Path)
    step.add_argument("--only", nargs="*", help="names of recipes; all by default")
    step.add_argument("--data", type=Path, default=Path(".train"))
    step.add_argument("--out", type=Path, default=Path(".train/results"))
    step.add_argument("--keep", type=Path, default=Path(".train/models"))
    step.add_argument("--workers", type=int, default=1)
    step.add_argument("--seconds", type=float, default=1e9, help="begin no run after that")
    step = commands.add_parser("export", help="write a GGUF file from what race saved")
    step.add_argument("codes", type=Path)
    step.add_argument("tokenizer", type=Path, help="tokenizer.json of the data the model was trained on")
    step.add_argument("format", help="PQ2_0, Q2_0, Q1_0, F16, ...")
    step.add_argument("path", type=Path)
    given = parser.parse_args()
    if given.command == "prepare":
        prepare(given.sources, given.data, given.vocabulary)
    elif given.command == "export":
        from tokenizers import Tokenizer

        from train.export import to_gguf

        print(to_gguf(given.codes, Tokenizer.from_file(str(given.tokenizer)), given.format, given.path))
    else:
        from train.race import race

        recipes = [r for r in json.loads(given.recipes.read_text()) if not given.only or r["name"] in given.only]
        race(recipes, given.data, given.out, given.keep, given.workers, given.seconds)


def prepare(folder: Path, data: Path, vocabularies: list[int]) -> None:
    """Everything that needs no GPU."""
    from train import corpus, sources, tokens

    sources.fetch(folder)
    documents = corpus.documents(folder)
    for vocabulary in vocabularies:
        tokenizer = tokens.train_tokenizer(documents, vocabulary)
        streams = tokens.encode(tokenizer, documents)
        tokens.save(data / f"v{vocabulary}", tokenizer, streams)
        for key, ids in streams.items():
            size = tokens.held_out_bytes(documents, key)
            print(f"v{vocabulary} {key:22} {len(ids):9,} tokens, {size / len(ids):.4f} bytes a token")


if __name__ == "__main__":
    main()
