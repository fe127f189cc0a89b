"""The training script, end to end at a thousandth of its size, and shohin's answer with what it exports."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; the training script needs it")
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from forwarding import prompt_logits  # noqa: E402
from train import corpus, export, fit, quantise, speak, tokens  # noqa: E402
from train.model import Decoder, Shape  # noqa: E402
from train.race import race  # noqa: E402

from shohin.devices import device  # noqa: E402
from shohin.formats import open  # noqa: E402
from shohin.formats.text import tokenizer_from_metadata  # noqa: E402
from shohin.models import build  # noqa: E402

PLAY = """# The Cellar

## ACT I

### SCENE I. A cellar.

_Enter MARGARET and OLD TOM_

**MARGARET**  
Who keeps the lamp \\[Aside] that burns so low?

**OLD TOM**  
I keep it, lady, _Lifts the lamp_  
and it keeps me not.

_Exit_

**MARGARET**  
Then, Margaret, be patient with old Tom.

**OLD TOM**  
I thank thee.
"""  # noqa: W291
TINY = {"layers": 1, "hidden": 128, "heads": 1, "kv_heads": 1, "inner": 128, "vocabulary": 300, "context": 32}


@pytest.fixture(scope="module")
def scene() -> corpus.Scene:
    (found,) = corpus.scenes("cellar", PLAY)
    return found


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, scene: corpus.Scene) -> Path:
    """Prepared streams of a few kilobytes in the layout that ``race`` reads."""
    script = corpus.script(scene)
    documents = [corpus.Document("play", "a", split, script) for split in corpus.SPLITS for _ in range(4)]
    documents += [corpus.Document("talk", "b", "train", talk) for talk in corpus.talks(scene, random.Random(1))]
    folder = tmp_path_factory.mktemp("data")
    tokenizer = tokens.train_tokenizer(documents, 300)
    tokens.save(folder / "v300", tokenizer, tokens.encode(tokenizer, documents))
    return folder


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_a_play_becomes_a_script(scene: corpus.Scene) -> None:
    assert corpus.script(scene).split("\n\n") == [
        "The Cellar. ACT I. SCENE I. A cellar.",
        "[Enter MARGARET and OLD TOM]",
        "MARGARET\nWho keeps the lamp [Aside] that burns so low?",
        "OLD TOM\nI keep it, lady, [Lifts the lamp]\nand it keeps me not.",
        "[Exit]",
        "MARGARET\nThen, Margaret, be patient with old Tom.",
        "OLD TOM\nI thank thee.",
    ]


def test_characters_trade_names(scene: corpus.Scene) -> None:
    text = corpus.renamed(corpus.script(scene), ["MARGARET", "OTHELLO"], random.Random(1))
    assert "MARGARET" not in text and "Margaret" not in text
    assert "[Enter OTHELLO and OLD TOM]" in text and "Then, Othello, be patient" in text


def test_talks_answer_who_spoke_last(scene: corpus.Scene) -> None:
    talk = "".join(corpus.talks(scene, random.Random(3)))
    turns = [turn.split("\n", 1) for turn in talk.replace("<|im_end|>\n", "").split("<|im_start|>")[1:]]
    said = [role for role, _ in turns if role != "system"]
    assert said == ["user", "assistant"] * (len(said) // 2) and said


@pytest.mark.parametrize("grid", ["ternary", "sign"])
def test_grids_are_what_the_formats_store(grid: str) -> None:
    torch.manual_seed(5)
    weight = torch.randn(6, 256, requires_grad=True)
    found = quantise.on_grid(weight, grid)
    groups = found.detach().reshape(6, 2, 128)
    scale = groups.abs().amax(-1, keepdim=True)
    mean = weight.detach().reshape(6, 2, 128).abs().mean(-1, keepdim=True)
    # bfloat16 keeps eight bits, so a rounded scale is off by at most 2^-9 of itself.
    assert torch.all((scale - mean).abs() <= mean * 2**-8)
    assert torch.equal(scale.half().float(), scale)
    levels = {"ternary": {-1.0, 0.0, 1.0}, "sign": {-1.0, 1.0}}[grid]
    assert set((groups / scale).unique().tolist()) == levels
    found.sum().backward()
    assert torch.equal(weight.grad, torch.ones_like(weight))


def test_runs_are_repeatable(data: Path) -> None:
    recipe = fit.Recipe.from_json(
        {"name": "r", "shape": TINY, "rows": 2, "tokens": 256, "evaluations": 1, "noise": 0.1}
    )
    _, streams = tokens.load(data / "v300")
    first, again = (fit.fit(recipe, streams, say=lambda line: None)[1].curve for _ in range(2))
    assert first == again


def test_end_to_end(data: Path, tmp_path: Path) -> None:
    """A teacher and its pupils, raced; every file written, and shohin gives the logits that training saw."""
    common = {"shape": TINY, "rows": 4, "tokens": 3200, "evaluations": 1, "speaks": False, "dropout": 0.0}
    recipes: list[dict[str, object]] = [
        {**common, "name": "teacher", "grid": "none"},
        {**common, "name": "ternary", "teachers": ["best", "1"]},
        {**common, "name": "sign", "grid": "sign", "optimizer": "adamw", "teachers": ["best", "1"]},
    ]
    out, keep = tmp_path / "out", tmp_path / "keep"
    race(recipes, data, out, keep, workers=1, seconds=600)
    assert not list(out.glob("*.error"))
    tokenizer, streams = tokens.load(data / "v300")
    chance = float(np.log(300))
    for name, format in (("ternary", "PQ2_0"), ("ternary", "Q2_0"), ("sign", "Q1_0")):
        assert json.loads((out / f"{name}.json").read_text())["held_out"]["play.validation"] < chance - 0.7
        model = fit.load(keep / f"{name}.pt")
        path = export.to_gguf(keep / f"{name}.npz", tokenizer, format, tmp_path / f"{name}.{format}.gguf")
        agree(model, path, streams["play.validation"][:24])
    assert isinstance(speak.speak(model, tokenizer, "MARGARET\n", count=4), str)
    with pytest.raises(ValueError, match="does not hold the weights that were trained"):
        export.to_gguf(keep / "ternary.npz", tokenizer, "Q1_0", tmp_path / "wrong.gguf")


def agree(model: Decoder, path: Path, ids: tokens.Ids) -> None:
    """PyTorch in float32 against shohin's plain device with exact activations, on the exported file."""
    with torch.no_grad():
        expected = model(torch.from_numpy(ids.astype(np.int64))[None])[0].numpy()
    weights = open(path)
    tokenizer = tokenizer_from_metadata(weights.metadata, weights.source)
    assert tokenizer.encode("Who keeps the lamp?\n") and tokenizer.eos_ids == {0, 2}
    plain = build(weights, device("host", dtype="float64"), activations="exact", kv="f32")
    found = prompt_logits(plain, ids.tolist())
    # float32 sums of 128 products, a handful in a row, of logits below 16: 2 * sqrt(128) * 2^-24 * 16 each.
    assert np.abs(found - expected).max() < 10 * 2.2e-5


def test_every_width_fills_groups() -> None:
    shape = Shape()
    assert not [k for k in (shape.hidden, shape.inner, shape.heads * shape.head) if k % quantise.GROUP]
    assert shape.weights() * 17 / 64 < 8e6
