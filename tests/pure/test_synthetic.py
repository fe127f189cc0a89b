"""Synthetic models: the published sizes, weights on their grid, the same bytes in memory and in a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shohin.errors import BadRequest, BadShape, UnsupportedFormat
from shohin.formats import SHAPES, Metadata, ModelShape, Yarn, open, synthetic_weights, write_synthetic
from shohin.formats.blocks import FORMATS, by_name
from shohin.formats.synthetic import _plans, synthetic_metadata
from shohin.formats.text import tokenizer_from_metadata

SMALL = ModelShape("small", 256, 2, 4, 2, 512, head=64, vocabulary=600, yarn=Yarn(4.0, 8192))
GRID = ["Q1_0", "Q2_0", "Q2_0_G128", "PQ2_0", "TQ2_0_G128", "TQ2_0", "PTQ1_0", "TQ1_0"]

# From the published sizes of the Bonsai files: bytes of the quantised tensors, and of the norms.
PUBLISHED = {
    ("bonsai-8b", "Q1_0"): 1_151_471_232,
    ("bonsai-4b", "Q1_0"): 565_535_880,
    ("bonsai-1.7b", "Q1_0"): 241_861_536,
    ("bonsai-8b", "PQ2_0"): 2_175_001_216,
    ("bonsai-4b", "Q2_0_G128"): 1_068_234_440,
    ("bonsai-1.7b", "PQ2_0"): 456_849_568,
    ("bonsai-8b", "Q2_0"): 2_302_942_464,
    ("bonsai-4b", "Q2_0"): 1_131_071_760,
    ("bonsai-1.7b", "Q2_0"): 483_723_072,
    ("bonsai-8b", "PTQ1_0"): 1_791_177_472,
    ("bonsai-4b", "PTQ1_0"): 879_722_480,
    ("bonsai-1.7b", "PTQ1_0"): 376_229_056,
}
NORMS = {"bonsai-8b": 1_232_896, "bonsai-4b": 784_384, "bonsai-1.7b": 495_616}


@pytest.mark.parametrize(("model", "name"), list(PUBLISHED))
def test_sizes_are_the_published_ones(model: str, name: str) -> None:
    plans = _plans(SHAPES[model], by_name(name), 0)
    assert sum(t.size for t in plans if t.format.name == name) == PUBLISHED[model, name]
    assert sum(t.size for t in plans if t.format.name == "F32") == NORMS[model]
    assert ("output.weight" in {t.name for t in plans}) == (model == "bonsai-8b")


def test_metadata_is_that_of_a_converter() -> None:
    found = synthetic_metadata(SHAPES["bonsai-4b"], by_name("Q1_0"))
    want = {"qwen3.block_count": 36, "qwen3.embedding_length": 2560, "qwen3.attention.key_length": 128}
    want |= {"qwen3.rope.freq_base": 5e6, "qwen3.rope.scaling.factor": 4.0, "general.file_type": 40}
    want |= {"qwen3.rope.scaling.original_context_length": 8192, "tokenizer.ggml.eos_token_id": 151_645}
    assert {k: found[k] for k in want} == want
    assert found.kinds["qwen3.rope.freq_base"] == "f32" and found.kinds["qwen3.block_count"] == "u32"
    pieces = found["tokenizer.ggml.tokens"]
    assert isinstance(pieces, list)
    assert len(pieces) == len(set(pieces)) == 151_669
    assert pieces[151_643] == "<|endoftext|>" and pieces[151_667:] == ["<think>", "</think>"]


@pytest.mark.parametrize("name", GRID)
def test_weights_lie_on_the_grid(name: str) -> None:
    """Encoding the decoded values again gives the same bytes, so every block is one that a quantiser can write."""
    weights = synthetic_weights(SMALL, name, seed=7)
    for tensor in weights.tensors.values():
        if tensor.format.name != name:
            assert tensor.format.name == "F32" and len(tensor.shape) == 1
            continue
        values = tensor.decode()
        assert np.array_equal(tensor.format.encode(values).reshape(-1), tensor.data), f"{tensor.name}, seed 7"
        trits = np.sign(values)
        share = [float((trits == t).mean()) for t in (-1, 0, 1)]
        assert min(share[::2]) > (0.45 if name == "Q1_0" else 0.3), f"{tensor.name}, seed 7: {share}"


@pytest.mark.parametrize("name", [*GRID, "F16", "Q8_0", "Q4_K"])
def test_memory_and_file_hold_the_same(tmp_path: Path, name: str) -> None:
    one = synthetic_weights(SMALL, name, seed=3)
    two = open(write_synthetic(tmp_path / "m.gguf", SMALL, name, seed=3))
    assert list(one.tensors) == list(two.tensors)
    for n, t in one.tensors.items():
        assert t.shape == two.tensors[n].shape and np.array_equal(t.data, two.tensors[n].data), n
    assert list(one.metadata) == list(two.metadata)
    for key, value in two.metadata.items():
        near = pytest.approx(value, rel=1e-7) if isinstance(value, float) else value
        assert one.metadata[key] == near, key
    assert isinstance(one.metadata, Metadata) and isinstance(two.metadata, Metadata)
    assert one.metadata.kinds == two.metadata.kinds
    assert one.parameters == two.parameters
    assert one.file_bytes == sum(t.data.nbytes for t in two.tensors.values())
    other = synthetic_weights(SMALL, name, seed=4)
    assert not np.array_equal(other.tensors["token_embd.weight"].data, one.tensors["token_embd.weight"].data)


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor longer than a chunk is as random in its second chunk as in its first."""
    monkeypatch.setattr("shohin.formats.synthetic.CHUNK_BLOCKS", 64)
    data = synthetic_weights(SMALL, "Q1_0").tensors["blk.0.ffn_up.weight"].raw().reshape(-1, 64, 18)
    assert len(data) > 2 and not np.array_equal(data[0], data[1])


def test_what_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"bonsai-1\.7b, bonsai-4b, bonsai-8b"):
        synthetic_weights("bonsai-3b", "q1_0")
    with pytest.raises(UnsupportedFormat, match="Q1_0"):
        synthetic_weights(SMALL, "q9_0")
    with pytest.raises(BadRequest, match="vocabulary of 10"):
        ModelShape("x", 256, 1, 1, 1, 256, vocabulary=10)
    with pytest.raises(BadShape, match="192"):
        synthetic_weights(ModelShape("x", 192, 1, 1, 1, 256, vocabulary=300), "q1_0")


def test_every_row_of_the_table_has_a_way() -> None:
    assert set(GRID) <= set(FORMATS)
    for name in FORMATS:
        assert synthetic_weights(SMALL, name).tensors["token_embd.weight"].format.name == name


@pytest.mark.parametrize("name", ["q1_0", "q2_0", "tq2_0", "tq1_0"])
def test_llama_cpp_loads_it(tmp_path: Path, name: str) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is the other engine")
    path = write_synthetic(tmp_path / "m.gguf", SMALL, name)
    model = llama_cpp.Llama(str(path), n_ctx=64, n_threads=1, verbose=False)
    assert model.n_vocab() == 600
    eos = open(path).metadata["tokenizer.ggml.eos_token_id"]
    assert model.tokenize(b"the<|im_end|>", add_bos=False, special=True) == [257, eos]


def test_our_tokenizer_takes_it(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "m.gguf", SMALL, "q1_0")
    for metadata in (open(path).metadata, synthetic_weights(SMALL, "q1_0").metadata):
        tokenizer = tokenizer_from_metadata(metadata, source=str(path))
        assert tokenizer.encode("the") == [257]
