"""The tiny models of the case files give their float64 logits, however the prompt is cut and whoever runs beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forwarding import batch_logits, page_table, prompt_logits
from numpy.typing import NDArray

from shohin import formats
from shohin.devices import Device, Step
from shohin.models import Model, build

Open = Callable[[str], Device]

DEVICES = ("host64", "host32", "cpu")
LENGTHS = (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65, 129)
FILES = {
    "tiny_q1": "tiny_q1",
    "tiny_yarn": "tiny_yarn",
    "tiny_pq2": "tiny_ternary",
    "tiny_q2_g64": "tiny_ternary",
    "tiny_q2_g128": "tiny_ternary",
}

# The expected logits are rounded to five decimals. Everything else in float64 is below 1e-9.
ROUNDED = 5.1e-6
# Float32: 2 layers of 5 phases and the tail, each a sum of up to 256 terms whose roundings (2^-24) add like a random
# walk, relative to the largest logit (11.6): 11 * 16 * 2^-24 * 11.6.
SINGLE = 1.3e-4
# An f16 cache rounds K and V by up to 2^-12 relative. A score q.k / sqrt(128) has |q| = 2 sqrt(128), |k| = sqrt(128)
# (QK norms of about 2 and 1, 20 % more at most), so it moves by up to 2^-12 * 2 * 1.44 * sqrt(128) = 8e-3 if all
# roundings conspire and by 1 / sqrt(128) of that if not; values move by 2^-12. Two layers: 2 * (7e-4 + 2.4e-4) of the
# stream, times the largest logit.
HALF = 0.022
COSINE = 0.997


def model_of(cases: Path, name: str, device: Device, **options: Any) -> Model:
    return build(formats.open(cases / name), device, **({"activations": "exact", "kv": "f32"} | options))


@cache
def expected(path: Path) -> tuple[list[int], dict[int, NDArray[np.float64]]]:
    found = json.loads(path.read_text())
    return found["ids"], {int(n): np.array(v) for n, v in found["logits_after"].items()}


def answers(cases: Path, name: str) -> tuple[list[int], dict[int, NDArray[np.float64]]]:
    return expected(cases / "expected" / f"{name}.json")


def bound(name: str) -> float:
    return ROUNDED if name == "host64" else SINGLE


@pytest.mark.row("C01", "C02", "C40", "C41", "C42")
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", DEVICES)
def test_every_file_gives_its_logits(cases: Path, open_device: Open, name: str, file: str) -> None:
    ids, after = answers(cases, FILES[file])
    found = prompt_logits(model_of(cases, f"gguf/{file}.gguf", open_device(name)), ids)
    for length, logits in after.items():
        np.testing.assert_allclose(found[length - 1], logits, rtol=0, atol=bound(name), err_msg=f"length {length}")


@pytest.mark.row("C08", "C43")
@pytest.mark.parametrize("file", ["shards/tiny-00001-of-00003.gguf", "gguf/vocab_meta_larger.gguf"])
def test_shards_and_a_wrong_card_give_the_same_logits(cases: Path, open_device: Open, file: str) -> None:
    ids, after = answers(cases, "tiny_q1")
    found = prompt_logits(model_of(cases, file, open_device("host64")), ids)
    for length, logits in after.items():
        np.testing.assert_allclose(found[length - 1], logits, rtol=0, atol=ROUNDED)


@pytest.mark.row("C41")
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", DEVICES)
def test_a_prompt_of_its_own_length_gives_the_same_logits(
    cases: Path, open_device: Open, name: str, length: int
) -> None:
    ids, after = answers(cases, "tiny_q1")
    found = prompt_logits(model_of(cases, "gguf/tiny_q1.gguf", open_device(name)), ids[:length])
    np.testing.assert_allclose(found[-1], after[length], rtol=0, atol=bound(name))


@pytest.mark.row("C41")
@pytest.mark.parametrize("chunk", [1, 3, 8, 16, 100])
@pytest.mark.parametrize("file", ["tiny_q1", "tiny_yarn"])
@pytest.mark.parametrize("name", DEVICES)
def test_chunks_change_nothing(cases: Path, open_device: Open, name: str, file: str, chunk: int) -> None:
    ids, after = answers(cases, file)
    model = model_of(cases, f"gguf/{file}.gguf", open_device(name))
    found = prompt_logits(model, ids, chunk)
    for length, logits in after.items():
        np.testing.assert_allclose(found[length - 1], logits, rtol=0, atol=bound(name), err_msg=f"length {length}")
    if name == "cpu":
        np.testing.assert_array_equal(found, prompt_logits(model, ids))


@pytest.mark.row("C41", "H.10")
@pytest.mark.parametrize("batch", [1, 2, 7, 8, 9, 33])
@pytest.mark.parametrize("name", DEVICES)
def test_sequences_at_different_positions_in_one_step(cases: Path, open_device: Open, name: str, batch: int) -> None:
    ids, after = answers(cases, "tiny_q1")
    lengths = [LENGTHS[i % len(LENGTHS)] for i in range(batch)]
    model = model_of(cases, "gguf/tiny_q1.gguf", open_device(name), sequences=batch, context=130)
    found = batch_logits(model, ids, lengths)
    for i, length in enumerate(lengths):
        np.testing.assert_allclose(found[i], after[length], rtol=0, atol=bound(name), err_msg=f"{i}: {length}")


@pytest.mark.parametrize("name", DEVICES)
def test_an_f16_cache_stays_within_its_rounding(cases: Path, open_device: Open, name: str) -> None:
    ids, after = answers(cases, "tiny_q1")
    model = model_of(cases, "gguf/tiny_q1.gguf", open_device(name), kv="f16")
    found = prompt_logits(model, ids, 16)
    worst = max(float(np.abs(found[n - 1] - logits).max()) for n, logits in after.items())
    assert 1e-5 < worst < HALF


@pytest.mark.parametrize("kv", ["f16", "int8"])
@pytest.mark.parametrize("file", ["tiny_q1", "tiny_yarn", "tiny_q2_g64"])
@pytest.mark.parametrize("name", DEVICES)
def test_int8_activations_keep_direction_and_clear_winners(
    cases: Path, open_device: Open, name: str, file: str, kv: str
) -> None:
    ids, after = answers(cases, FILES[file])
    model = model_of(cases, f"gguf/{file}.gguf", open_device(name), activations="int8", kv=kv)
    found = prompt_logits(model, ids)
    for length, logits in after.items():
        ours = found[length - 1]
        assert ours @ logits >= COSINE * np.linalg.norm(ours) * np.linalg.norm(logits), length
        second, first = np.sort(logits)[-2:]
        assert first - second <= 0.5 or ours.argmax() == logits.argmax(), length


@pytest.mark.row("M.16", "E.5")
@pytest.mark.parametrize("activations", ["exact", "int8"])
@pytest.mark.parametrize("kv", ["f16", "int8", "f32"])
def test_the_bits_of_a_row_do_not_depend_on_its_company(
    cases: Path, open_device: Open, activations: str, kv: str
) -> None:
    ids, _ = answers(cases, "tiny_yarn")
    options = {"activations": activations, "kv": kv}
    alone = prompt_logits(model_of(cases, "gguf/tiny_yarn.gguf", open_device("cpu"), **options), ids, 1)
    for chunk in (3, 16, 129):
        model = model_of(cases, "gguf/tiny_yarn.gguf", open_device("cpu"), **options)
        np.testing.assert_array_equal(prompt_logits(model, ids, chunk), alone)
    lengths = list(LENGTHS)
    many = model_of(cases, "gguf/tiny_yarn.gguf", open_device("cpu"), sequences=len(lengths), context=130, **options)
    np.testing.assert_array_equal(batch_logits(many, ids, lengths), alone[np.array(lengths) - 1])


@pytest.mark.parametrize("file", FILES)
def test_cpu_and_host_agree_exactly(cases: Path, open_device: Open, file: str) -> None:
    ids, _ = answers(cases, FILES[file])
    found, meant = (prompt_logits(model_of(cases, f"gguf/{file}.gguf", open_device(n)), ids) for n in ("cpu", "host64"))
    assert np.abs(found - meant).max() <= SINGLE


@pytest.mark.parametrize("file", [file for file in FILES if file != "tiny_q2_g64"])
def test_cpu_and_host_agree_with_int8_activations(cases: Path, open_device: Open, file: str) -> None:
    """Both quantise the same way; a value on the border of two codes may fall to either side, and then rows that see
    it move. So many rows agree as in exact mode, and every row in direction.
    """
    ids, _ = answers(cases, FILES[file])
    found, meant = (
        prompt_logits(model_of(cases, f"gguf/{file}.gguf", open_device(n), activations="int8"), ids)
        for n in ("cpu", "host64")
    )
    assert np.mean(np.abs(found - meant).max(axis=1) <= SINGLE) > 0.25
    cosine = (found * meant).sum(axis=1) / np.linalg.norm(found, axis=1) / np.linalg.norm(meant, axis=1)
    assert cosine.min() >= 0.9995


@pytest.mark.row("C01", "C02")
@pytest.mark.parametrize("activations", ["exact", "int8"])
def test_one_model_in_three_containers_has_one_set_of_bits(cases: Path, open_device: Open, activations: str) -> None:
    """The native device repacks all three to PQ2_0, so blocks of 64 share activation groups of 128 there; ``host``
    keeps the file's blocks, and its int8 groups of 64 are finer.
    """
    ids, _ = answers(cases, "tiny_ternary")
    device = open_device("cpu")
    found = [
        prompt_logits(model_of(cases, f"gguf/{file}.gguf", device, activations=activations), ids)
        for file in ("tiny_pq2", "tiny_q2_g64", "tiny_q2_g128")
    ]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.row("C43", "M.12")
@pytest.mark.parametrize("name", DEVICES)
def test_ids_without_a_piece_are_never_picked(cases: Path, open_device: Open, name: str) -> None:
    model = model_of(cases, "gguf/vocab_more_rows.gguf", open_device(name))
    ids = list(range(64))
    step = Step.of(ids, pages=page_table(model))
    ticket = model.tape("prefill", len(ids)).play(step, fetch=("ids", "status", "logits"))
    assert (ticket["ids"] < model.config.vocabulary).all() and not ticket["status"].any()
    best = ticket["logits"][:, : model.config.vocabulary].argmax(axis=1)
    np.testing.assert_array_equal(ticket["ids"], best)


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("file", ["tiny_q1", "tiny_yarn", "tiny_ternary"])
def test_greedy_continuations(cases: Path, open_device: Open, name: str, file: str) -> None:
    source = {"tiny_ternary": "tiny_pq2"}.get(file, file)
    for run in json.loads((cases / "expected" / f"{file}.json").read_text())["greedy"]:
        model = model_of(cases, f"gguf/{source}.gguf", open_device(name))
        assert run["smallest_gap"] > 2 * bound(name)
        ids, found = run["prompt"], []
        position = 0
        while len(found) < len(run["tokens"]):
            step = Step.of(
                ids, positions=np.arange(position, position + len(ids)), pages=page_table(model), wanted=[len(ids) - 1]
            )
            picked = int(model.tape("decode", len(ids), wanted=1).play(step, fetch=("ids",))["ids"][0])
            position += len(ids)
            ids = [picked]
            found.append(picked)
        assert found == run["tokens"]


@pytest.mark.row("S0.25", "E.14")
@pytest.mark.parametrize("activations", ["int8", "exact"])
@pytest.mark.parametrize("name", DEVICES)
def test_a_step_that_wants_no_logits(cases: Path, open_device: Open, name: str, activations: str) -> None:
    """It writes the cache as a step that wants them all, on every device and in both modes."""
    found = []
    for wanted in ([], list(range(5))):
        weights = formats.open(cases / "gguf" / "tiny_q1.gguf")
        model = build(weights, open_device(name), activations=activations, context=64)
        pages = page_table(model)
        tape = model.tape("prefill", 5, wanted=len(wanted))
        ticket = tape.play(Step.of([3, 1, 4, 1, 5], pages=pages, wanted=wanted), ("ids", "status", "logits"))
        assert len(ticket["logits"]) == len(ticket["ids"]) == len(ticket["status"]) == len(wanted)
        last = model.tape("decode", 1).play(Step.of([9], positions=[5], pages=pages), ("logits",))
        found.append(last["logits"])
    np.testing.assert_array_equal(found[0], found[1])
