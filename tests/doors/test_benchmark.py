"""``run_bench``: the fields that other tools read, and that they mean what they say."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

from doors.conftest import BENCH_KEYS
from shohin.devices import Device, Step, device
from shohin.errors import BadRequest
from shohin.formats import ModelShape, Yarn, synthetic_weights
from shohin.models import Model, build
from shohin.serve import bandwidth, benchmark, waiting
from shohin.serve.bandwidth import read_bandwidth
from shohin.serve.benchmark import Load, run_bench
from shohin.serve.cli.bench import floors
from shohin.serve.waiting import wait_seconds

SHAPE = ModelShape("bench", 128, 2, 2, 1, 256, head=64, vocabulary=384, yarn=Yarn(4.0, 64), context=128)


@pytest.fixture(scope="module")
def model() -> Model:
    return build(synthetic_weights(SHAPE, "Q1_0"), device("host"), context=64)


def gigabyte_a_second(_device: Device) -> float:
    return 1e9


def test_fields_and_their_relations(model: Model) -> None:
    found = run_bench(model, Load(20, 5, 2), bandwidth=gigabyte_a_second)
    assert found.keys() >= BENCH_KEYS
    assert found["prefill_tokens_per_s"] == pytest.approx(20 / found["first_token_s"])
    assert found["read_bandwidth_gb_s"] == 1.0
    floor = found["bytes_per_token"] / 1e9
    assert found["decode_over_floor"] == pytest.approx(found["decode_tokens_per_s"] * floor)
    assert (found["device"], found["activations"], found["kv"], found["threads"]) == ("host", "int8", "f16", None)


def test_floors_of_a_chain(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Embedding, five phases in each of two layers, head and pick."""
    monkeypatch.setattr(benchmark, "wait_seconds", lambda _device, inside: 1e-6 if inside else 5e-7)
    found = run_bench(model, Load(4, 2), bandwidth=gigabyte_a_second)
    assert (found["phases"], found["phase_us"], found["barrier_us"]) == (13, 0.5, 1.0)
    assert found["chain_floor_us"] == pytest.approx(6.5)
    assert found["stream_floor_us"] == pytest.approx(found["bytes_per_token"] / 1e3)
    told = floors(found)
    assert "0.5" in told[1] and "6.5 us of 13 phases" in told[1]
    monkeypatch.setattr(benchmark, "wait_seconds", lambda _device, inside: None)
    found = run_bench(model, Load(4, 2), bandwidth=gigabyte_a_second)
    assert found["chain_floor_us"] is None and len(floors(found)) == 1


def test_waiting_leaves_out_what_a_play_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plays of 1 ms and 1 us a phase."""
    now = [0.0]

    class Clocked:
        def __init__(self, count: int) -> None:
            self.count = count

        def play(self, _step: Step) -> None:
            now[0] += 1e-3 + self.count * 1e-6

    monkeypatch.setattr(waiting, "_chain", lambda _device, count, _inside: Clocked(count))
    monkeypatch.setattr(waiting, "perf_counter", lambda: now[0])
    assert wait_seconds(device("host")) == pytest.approx(1e-6)


def test_a_device_without_phases_has_no_chain() -> None:
    pytest.importorskip("shohin._core", reason="the native core is not built")
    assert wait_seconds(device("cpu", threads=1)) is None


def test_bytes_are_those_of_the_files_format(model: Model) -> None:
    """Two layers of q, k, v, o, gate, up, down and the tied head at 18 bytes for 128 weights."""
    layer = 128 * (128 + 64 + 64 + 128 + 3 * 256)
    assert run_bench(model, Load(4, 2), bandwidth=gigabyte_a_second)["bytes_per_token"] == (
        (2 * layer + 384 * 128) * 18 // 128
    )


def test_times_are_medians_of_what_generation_took(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = iter([benchmark._Run(4.0, 0.5), benchmark._Run(1.0, 0.1), benchmark._Run(2.0, 0.25)])
    monkeypatch.setattr(benchmark, "_run", lambda *_: next(runs))
    seen: list[tuple[str, int, int]] = []
    found = run_bench(model, Load(8, 4, 3), progress=lambda *state: seen.append(state), bandwidth=gigabyte_a_second)
    assert (found["first_token_s"], found["decode_tokens_per_s"]) == (2.0, 4.0)
    assert seen == [("bench", 1, 3), ("bench", 2, 3), ("bench", 3, 3)]


def test_one_run_is_timed_as_prefill_and_steps(model: Model) -> None:
    begin = time.perf_counter()
    run = benchmark._run(model, np.arange(10), 6)
    assert 0 < run.first + 5 * run.each <= time.perf_counter() - begin


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"prompt": 0}, "prompt"),
        ({"generate": 1}, "generate"),
        ({"repeat": True}, "repeat"),
        ({"seed": -1}, "seed"),
        ({"prompt": 60, "generate": 5}, "prompt"),
    ],
)
def test_a_bad_load_is_refused(model: Model, arguments: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        run_bench(model, Load(**arguments), bandwidth=gigabyte_a_second)
    assert caught.value.param == param


def test_bandwidth_counts_the_bytes_it_read(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 5.0, 10.0, 12.0, 20.0, 23.0])
    monkeypatch.setattr(bandwidth, "perf_counter", lambda: next(clock))
    assert read_bandwidth(device("host"), size=(3 << 20) + 17, rounds=3) == (3 << 20) / 2.0


def test_bandwidth_takes_at_most_half_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    place = device("host")
    monkeypatch.setattr(bandwidth, "available_memory", lambda: 5 << 20)
    whole = place.buffer
    monkeypatch.setattr(place, "buffer", lambda name, *rest: taken.append((name, *rest)) or whole(name, *rest))
    read_bandwidth(place, rounds=1)
    assert taken[0][1] == (2, 1 << 18)


def test_peak_memory_is_this_programs_and_not_its_parents() -> None:
    ballast = np.ones(1 << 25)
    code = "from shohin.serve.peak_memory import peak_memory_bytes; print(peak_memory_bytes())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < ballast.nbytes
