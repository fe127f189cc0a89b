"""The profile switch is parsed, and the lines carry what the contract lists."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import numpy as np
import pytest

from shohin.devices import Host, Step, Tape
from shohin.errors import BadRequest
from shohin.formats.blocks import FORMATS
from shohin.formats.tensor import Tensor
from shohin.kernels.embed import embed
from shohin.kernels.linear_add import linear_add
from shohin.kernels.norm_linear import norm_linear
from shohin.kernels.pick import pick
from shohin.serve.profile import LayerProfile, TokenProfile, parse_profile, phase_lines, tail_label


@pytest.mark.row("T.12", "S0.32", "S0.36")
@pytest.mark.parametrize(
    ("value", "mode"),
    [(None, None), ("", None), ("0", None), ("false", None), ("off", None), ("No", None)]
    + [(word, "token") for word in ("1", "true", "YES", "on", " token ")]
    + [("layer", "layer")],
)
def test_switch_is_parsed(value: str | None, mode: str | None) -> None:
    assert parse_profile(value) == mode


def test_other_words_are_refused() -> None:
    with pytest.raises(BadRequest, match="maybe"):
        parse_profile("maybe")


def small_tape(device: Host, *, picks: bool = True) -> Tape:
    rng = np.random.default_rng(1)
    k, vocabulary = 8, 16

    def weight(name: str, *shape: int):
        values = rng.normal(size=shape).astype(np.float32)
        return device.pack(Tensor(name, shape, FORMATS["F32"], FORMATS["F32"].encode(values).reshape(-1)))

    tape = device.recorder("decode", 1)
    hidden = tape.scratch("hidden", (1, k))
    with tape.section("embed"):
        embed(tape, weight("table", vocabulary, k), hidden)
    for i in range(3):
        with tape.section(f"layer {i}"):
            linear_add(tape, hidden, weight(f"w{i}", k, k), hidden, activations="exact")
    with tape.section("tail"):
        logits = tape.scratch("logits", (1, vocabulary))
        norm, head = weight("norm", k), weight("head", vocabulary, k)
        norm_linear(tape, hidden, norm, [head], logits, eps=1e-6, activations="exact")
        tape.output("logits", logits, "wanted")
        if picks:
            ids = tape.scratch("ids", (1,), np.int32)
            status = tape.scratch("status", (1,), np.int32)
            pick(tape, logits, ids, status, vocabulary=vocabulary)
            tape.output("ids", ids, "wanted")
    return tape.finish()


@pytest.mark.row("S0.32", "S0.33", "S0.34", "S0.35", "S0.39")
def test_layer_profile(capsys: pytest.CaptureFixture[str]) -> None:
    device = Host()
    tape = small_tape(device)
    plain = tape.play(Step.of([3]), ["logits"])["logits"]
    before = device.submissions
    out = io.StringIO()
    profiled = LayerProfile(out).play(tape, Step.of([3]), ["logits"])["logits"]
    assert device.submissions - before == 5, "one submission per section: embed, three layers, tail"
    assert np.array_equal(plain, profiled)
    lines = out.getvalue().splitlines()
    assert [line for line in lines if re.fullmatch(r"layer \d\d = \d+\.\d{3}ms", line)] == lines[1:4]
    summary = r"layers: total (\S+\.\d{3})ms, avg \S+\.\d{3}ms, min \S+\.\d{3}ms, max \S+\.\d{3}ms, (\S+\.\d) GB/s"
    assert re.fullmatch(summary, lines[4])
    assert re.fullmatch(r"tail \(norm\+lmhead\+argmax\) = \d+\.\d{3}ms", lines[5])
    assert capsys.readouterr().out == ""


@pytest.mark.row("S0.33")
def test_layer_profile_counts_the_matrices_of_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of 8 x 8 float32 in 3 x 0.1 us: 768 bytes, 2.56 GB/s; table, norms and head are no layer's."""
    device, out = Host(), io.StringIO()
    tape = small_tape(device)
    ticket, _ = tape.profile(Step.of([3]), ["logits"])
    times = [("embed", 1.0), *((f"layer {i}", 1e-7) for i in range(3)), ("tail", 1.0)]
    monkeypatch.setattr(tape, "profile", lambda *_: (ticket, times))
    LayerProfile(out).play(tape, Step.of([3]), ["logits"])
    assert out.getvalue().splitlines()[4].endswith(", 2.6 GB/s")


@pytest.mark.row("S0.32")
def test_phases_of_a_device_with_a_clock() -> None:
    """Ops with weights of one shape are one phase; an embedding reads a row of its table, so it has no bandwidth."""
    tape = small_tape(Host())
    ticket = replace(tape.play(Step.of([3])), calls=(1e-3, 2e-6, 3e-6, 5e-6, 1e-6, 4e-6))
    assert phase_lines(tape, ticket) == [
        "phase embed 16x8 = 1.000ms in 1",
        f"phase linear_add 8x8 = 0.010ms in 3, {3 * 8 * 8 * 4 / 10e-6 / 1e9:.1f} GB/s",
        f"phase norm_linear 16x8 = 0.001ms in 1, {16 * 8 * 4 / 1e-6 / 1e9:.1f} GB/s",
        "phase pick = 0.004ms in 1",
    ]
    assert phase_lines(tape, tape.play(Step.of([3]))) == []


@pytest.mark.row("S0.34")
def test_tail_label_says_which_tail_ran() -> None:
    device = Host()
    assert tail_label(small_tape(device, picks=False), Step.of([1])) == "norm+lmhead"
    assert tail_label(small_tape(device), Step.of([1], wanted=[])) == "no lmhead"


@pytest.mark.row("S0.36", "S0.37", "S0.38", "S0.39")
def test_token_profile() -> None:
    device = Host()
    tape = small_tape(device)
    out = io.StringIO()
    profile = TokenProfile(10**9, out)
    for token in (1, 2, 3):
        profile.play(tape, Step.of([token]), ["ids"])
    profile.finish()
    lines = out.getvalue().splitlines()
    four = r"wall \d+\.\dms, encode \d+\.\dms, device \d+\.\dms, overhead \d+\.\dms"
    assert [bool(re.fullmatch(rf"token {i}: {four}", lines[i])) for i in range(3)] == [True] * 3
    match = re.fullmatch(rf"3 tokens, average {four}, (\d+\.\d) GB/s", lines[3])
    device_seconds = sum(r[2] for r in profile.records) / 3
    assert match and float(match[1]) == pytest.approx(1.0 / device_seconds, abs=0.051)


@pytest.mark.row("S0.37")
def test_nothing_recorded_prints_nothing() -> None:
    out = io.StringIO()
    TokenProfile(1, out).finish()
    assert out.getvalue() == ""
