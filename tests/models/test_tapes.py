"""What a model's tapes promise: recorded once, one submission a step, nothing allocated, taps, safe between threads."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from forwarding import page_table, prompt_logits
from memory_models import Sizes

from shohin import formats
from shohin.devices import Device, Step, Weight
from shohin.errors import BadRequest, BadShape, OutOfMemory
from shohin.models import Model, Packed, build, capacity

Open = Callable[[str], Device]

DEVICES = ("host64", "cpu")


def model_on(device: Device, sizes: Sizes | None = None, **options: object) -> Model:
    chosen = {"activations": "exact", "kv": "f32"} | options
    return build((sizes or Sizes()).weights(), device, **chosen)  # type: ignore[arg-type]


@pytest.mark.parametrize(("rows", "expected"), [(1, 1), (2, 2), (3, 4), (9, 16), (65, 128), (129, 512), (512, 512)])
def test_rows_are_rounded_up_to_a_capacity(rows: int, expected: int) -> None:
    assert capacity(rows) == expected


@pytest.mark.parametrize("rows", [0, -1, 513, True, 2.0])
def test_rows_that_no_tape_holds_are_refused(rows: int, open_device: Open) -> None:
    with pytest.raises(BadShape, match="512"):
        model_on(open_device("host32")).tape("prefill", rows)


def test_a_tape_is_recorded_once_per_role_capacity_and_outputs(open_device: Open) -> None:
    model = model_on(open_device("host32"))
    tape = model.tape("prefill", 5)
    assert (tape.role, tape.rows, tape.wanted) == ("prefill", 8, 8)
    assert model.tape("prefill", 8) is tape
    assert model.tape("decode", 8) is not tape
    few = model.tape("prefill", 7, wanted=1)
    assert few is not tape and few.wanted == 1 and model.tape("prefill", 5, wanted=0) is few
    assert model.tape("prefill", 5, outputs=["logits"]) is tape
    assert model.tape("prefill", 5, outputs=["hidden.1"]) is not tape


@pytest.mark.row("S0.11", "S0.12", "S0.14")
def test_the_tape_is_five_phases_a_layer(open_device: Open) -> None:
    tape = model_on(open_device("host32"), Sizes(layers=3)).tape("decode", 1)
    layer = ["norm_linear", "attend", "linear_add", "norm_swiglu", "linear_add"]
    assert [call.op.name for call in tape.calls] == ["embed", *3 * layer, "norm_linear", "pick"]
    assert [name for name, _, _ in tape.sections()] == ["embed", "layer 0", "layer 1", "layer 2", "tail"]
    assert list(tape.outputs) == ["logits", "ids", "status"]


@pytest.mark.row("S0.2", "S0.21", "S0.28", "S0.29", "S0.31", "E.6", "E.8")
@pytest.mark.parametrize("name", DEVICES)
def test_one_submission_a_step_and_nothing_allocated(name: str, open_device: Open) -> None:
    device = open_device(name)
    model = model_on(device)
    pages = page_table(model)

    def steps() -> None:
        for position in range(5):
            model.tape("decode", 1).play(Step.of([3], positions=[position], pages=pages), fetch=("ids",))

    steps()
    submissions, allocations, uploads = device.submissions, device.allocations, device.uploads
    steps()
    assert device.submissions - submissions == 5
    assert (device.allocations, device.uploads) == (allocations, uploads)


@pytest.mark.row("S0.23", "S0.24", "S0.25", "E.4", "E.11", "E.14")
@pytest.mark.parametrize("name", DEVICES)
def test_only_wanted_rows_give_logits_in_their_order(name: str, open_device: Open) -> None:
    model = model_on(open_device(name))
    ids = list(range(20))
    everything = prompt_logits(model, ids)
    step = Step.of(ids, pages=page_table(model), wanted=[19, 0, 7])
    some = model.tape("prefill", 20, wanted=3).play(step, fetch=("logits", "ids"))
    np.testing.assert_allclose(some["logits"], everything[[19, 0, 7]], rtol=1e-5, atol=1e-5)
    assert some["logits"].shape == (3, model.config.rows)
    assert some["ids"].tolist() == everything[[19, 0, 7]].argmax(axis=1).tolist()
    none = model.tape("prefill", 20, wanted=0).play(Step.of(ids, pages=page_table(model), wanted=[]), fetch=("ids",))
    assert none["ids"].shape == (0,)
    assert model.tape("prefill", 20, wanted=3).play(step).outputs == {}
    picked = model.tape("prefill", 20, wanted=3).play(step, fetch=("ids",))
    assert list(picked.outputs) == ["ids"] and picked["ids"].nbytes == 12


@pytest.mark.row("S0.26", "S0.27")
@pytest.mark.parametrize("name", DEVICES)
def test_taps_bring_out_the_stream_between_layers(name: str, open_device: Open) -> None:
    sizes = Sizes(layers=3, seed=21)
    model = model_on(open_device(name), sizes)
    ids = [5, 0, 39, 5]
    names = [f"hidden.{i}" for i in range(4)]
    step = Step.of(ids, pages=page_table(model))
    full = model.tape("encode", 4, outputs=names).play(step, fetch=(*names, "logits"))
    np.testing.assert_array_equal(full["hidden.0"], sizes.arrays()["token_embd.weight"][ids])
    for layers in (1, 2):  # a model cut after that layer
        short = model_on(open_device(name), Sizes(layers=3, seed=21))
        cut = short.tape("encode", 4, outputs=[f"hidden.{layers}"])
        found = cut.play(Step.of(ids, pages=page_table(short)), fetch=(f"hidden.{layers}",))[f"hidden.{layers}"]
        np.testing.assert_array_equal(found, full[f"hidden.{layers}"])
        assert np.abs(full[f"hidden.{layers}"] - full[f"hidden.{layers + 1}"]).max() > 0.1
    last, weights = full["hidden.3"].astype(np.float64), sizes.arrays()
    normed = last / np.sqrt((last**2).mean(axis=1, keepdims=True) + sizes.eps) * weights["output_norm.weight"]
    np.testing.assert_allclose(full["logits"], normed @ weights["output.weight"].T.astype(np.float64), atol=1e-4)


@pytest.mark.parametrize("output", ["hidden.3", "hidden.-1", "hidden.x", "scores", ""])
def test_outputs_that_do_not_exist_are_refused(output: str, open_device: Open) -> None:
    with pytest.raises(BadRequest, match=r"hidden\.0 to hidden\.2") as caught:
        model_on(open_device("host32")).tape("decode", 1, outputs=[output])
    assert caught.value.param == "outputs"


def test_progress_counts_tensors_and_bytes(open_device: Open) -> None:
    seen: list[Packed] = []
    weights = Sizes().weights()
    model = build(weights, open_device("host32"), progress=seen.append)
    assert [p.name for p in seen][:2] == ["token_embd.weight", "blk.0.attn_norm.weight"]
    assert {p.name for p in seen} == set(weights.tensors)
    assert [p.tensors for p in seen] == list(range(1, len(weights.tensors) + 1))
    assert seen[-1].bytes == seen[-1].of_bytes == model.weight_bytes == weights.file_bytes
    assert seen[-1].of_tensors == len(weights.tensors)


def test_bytes_per_token_leave_out_norms_and_an_untied_embedding(open_device: Open) -> None:
    for tied in (True, False):
        weights = Sizes(tied=tied).weights()
        model = build(weights, open_device("host32"))
        matrices = {n: t.data.nbytes for n, t in weights.tensors.items() if len(t.shape) == 2}
        assert model.bytes_per_token == sum(matrices.values()) - (0 if tied else matrices["token_embd.weight"])
        assert model.config.tied == tied


@pytest.mark.row("S0.9", "S3.3")
@pytest.mark.parametrize("name", DEVICES)
def test_threads_share_a_model(name: str, open_device: Open) -> None:
    model = model_on(open_device(name), sequences=4)
    pages = page_table(model, 4)
    prompts = [np.random.RandomState(i).randint(0, 40, 11 + 7 * i) for i in range(4)]

    def run(i: int) -> np.ndarray:
        length = len(prompts[i])
        step = Step.of(prompts[i], sequences=np.full(length, i), pages=pages, wanted=[length - 1])
        return model.tape(f"role {i % 2}", length, wanted=1).play(step, fetch=("logits",))["logits"]

    alone = [run(i) for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for i, found in enumerate(pool.map(lambda n: run(n % 4), range(40))):
            np.testing.assert_array_equal(found, alone[i % 4])


@pytest.mark.row("E.3", "E.5", "E.9")
@pytest.mark.parametrize("length", [1, 7, 8, 9, 12, 17, 129, 512])
@pytest.mark.parametrize("name", DEVICES)
def test_a_chunk_equals_single_steps(name: str, length: int, open_device: Open) -> None:
    model = model_on(open_device(name), Sizes(context=512, layers=1, hidden=16, inner=16, head=8))
    ids = np.random.RandomState(length).randint(0, 40, length).tolist()
    whole, single = prompt_logits(model, ids), prompt_logits(model, ids, 1)
    np.testing.assert_allclose(whole, single, rtol=0, atol=0 if name == "cpu" else 1e-10)


@pytest.mark.row("S0.1", "S0.10", "S0.13")
def test_one_build_packs_every_weight_once_norms_in_f32(cases: Path, open_device: Open) -> None:
    device = open_device("host32")
    weights = formats.open(cases / "gguf" / "tiny_q1.gguf")
    model = build(weights, device)
    held = {w.name: w for call in model.tape("decode", 1).calls for w in call.operands if isinstance(w, Weight)}
    assert set(held) == set(weights.tensors) and device.uploads == len(held)
    assert {w.format.name for w in held.values() if len(w.shape) == 1} == {"F32"}
    assert {w.format.name for w in held.values() if len(w.shape) == 2} == {"Q1_0"}
    assert model.weight_bytes == device.resident_bytes


@pytest.mark.row("H.16")
def test_a_dropped_model_gives_its_memory_back(open_device: Open) -> None:
    device = open_device("host32")
    model = model_on(device)
    model.tape("decode", 1)
    assert device.resident_bytes == model.weight_bytes > 0
    del model
    gc.collect()
    assert device.resident_bytes == 0


def test_no_room_for_intermediate_values_is_an_error_of_ours(
    open_device: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_on(open_device("host32"))

    def refuse(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Device, "_allocate", refuse)
    with pytest.raises(OutOfMemory, match="512 rows, 512 of them with 40 logits"):
        model.tape("prefill", 200)
    monkeypatch.undo()
    assert model.tape("prefill", 200).rows == 512
