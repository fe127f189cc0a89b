"""Fuzz the GGUF reader and the tokenizer metadata: whatever the bytes, only shohin's own errors come out.

    python tests/fuzz/fuzz_gguf.py build/fuzz_gguf -max_total_time=120 -max_len=8192

needs ``atheris`` (and shohin importable); further arguments are libFuzzer's. The folder is the corpus: it is created
and filled with small valid files when it is empty. The bounded run of the test suite is tests/pure/test_gguf_fuzz.py.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from shohin.errors import BadRequest, ShohinError
from shohin.formats import ModelShape, NewTensor, Value, read_gguf, write_gguf, write_synthetic
from shohin.formats.blocks import by_name
from shohin.formats.text import tokenizer_from_metadata

DIALECTS = (None, "q2_0", "q2_0_g128", "tq2_0_g128")


def read(path: Path, dialect: str | None = None) -> bool:
    """Open a file and look at everything in it as a user would; True if it opened, False if it was refused."""
    try:
        weights = read_gguf(path, dialect=dialect)
        _ = weights.architecture
    except ShohinError as error:
        if str(path) not in str(error):
            raise AssertionError(f"an error that does not name the file: {error!r}") from error
        return False
    assert weights.file_bytes == path.stat().st_size
    assert isinstance(weights.parameters, int) and weights.format
    for value in weights.metadata.values():
        if not isinstance(value, str | int | float):
            assert len(list(value)) == len(value)
            repr(value)
    for tensor in weights.tensors.values():
        assert tensor.raw().size == tensor.data.size > 0
        tensor.decode(0, 1)
    if "tokenizer.ggml.model" in weights.metadata:
        tokenize(weights.metadata, str(path))
    return True


def tokenize(metadata: Mapping[str, object], source: str) -> None:
    """Build the tokenizer that the metadata describes and use it, unless it is refused."""
    try:
        tokenizer = tokenizer_from_metadata(metadata, source)
        ids = tokenizer.encode("the 1st\u00e9 <|im_end|>", special=True)
    except ShohinError as error:
        if source not in str(error) and not isinstance(error, BadRequest):
            raise AssertionError(f"an error that does not name the file: {error!r}") from error
        return
    assert all(0 <= i < len(metadata["tokenizer.ggml.tokens"]) for i in ids)
    tokenizer.decode(ids)


def seeds(folder: Path) -> Iterator[Path]:
    """Small valid files that between them have every value kind, tensor type and alignment."""
    kinds: dict[str, object] = {"general.architecture": "qwen3"}
    kinds |= {f"k.{k}": Value(k, 1) for k in ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64")}
    kinds |= {"k.bool": True, "k.str": "é", "a.str": ["a", "日本", ""], "a.i32": [1, -2], "a.bool": [True, False]}
    kinds |= {"a.f32": [0.5], "general.alignment": 64}
    one = NewTensor.encoded("a", np.ones((2, 4), np.float32), by_name("F32"))
    yield write_gguf(folder / "kinds.gguf", kinds, [one])
    values = np.random.default_rng(1).standard_normal((1, 256), np.float32)
    names = ["F16", "BF16", "Q1_0", "PQ2_0", "PTQ1_0", "TQ1_0", "TQ2_0", "Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K"]
    plan = [NewTensor.encoded(n, values, by_name(n)) for n in names]
    yield write_gguf(folder / "types.gguf", {"general.architecture": "llama"}, plan)
    for name in ("Q2_0", "Q2_0_G128", "TQ2_0_G128"):
        plan = [NewTensor.encoded(f"t{n}", np.resize(values, n), by_name(name)) for n in (128, 256, 2048)]
        yield write_gguf(folder / f"{name.lower()}.gguf", {"general.architecture": "qwen3"}, plan)
    tiny = ModelShape("tiny", 128, 1, 1, 1, 128, vocabulary=300)
    yield write_synthetic(folder / "model.gguf", tiny, "q1_0")


def main() -> None:
    import atheris

    with atheris.instrument_imports(include=["shohin.formats.gguf", "shohin.formats.text"]):
        for name in [n for n in sys.modules if n.startswith("shohin.formats")]:
            del sys.modules[name]
        from shohin.formats import read_gguf as reader
        from shohin.formats.text import tokenizer_from_metadata as builder
    globals().update(read_gguf=reader, tokenizer_from_metadata=builder)
    warnings.simplefilter("error")
    counts = [0, 0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz.gguf"

        def one_input(data: bytes) -> None:
            path.write_bytes(data)
            counts[read(path, DIALECTS[data[-1] % 4 if data else 0])] += 1
            if sum(counts) % 20_000 == 0:
                print(f"{sum(counts)} inputs, {counts[True]} opened", file=sys.stderr)

        corpus = next((Path(a) for a in sys.argv[1:] if not a.startswith("-")), None)
        if corpus is not None:
            corpus.mkdir(parents=True, exist_ok=True)
            if not any(corpus.iterdir()):
                list(seeds(corpus))
        atheris.Setup(sys.argv, one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
