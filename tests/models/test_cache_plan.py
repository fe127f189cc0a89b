"""How long a context gets, and that memory is asked about before it is taken (case C31)."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from memory_models import Sizes

from shohin import formats
from shohin.devices import Device, device
from shohin.errors import BadRequest, OutOfMemory
from shohin.models import DEFAULT_CONTEXT, Model, build, configure, memory
from shohin.models import cache as cache_module
from shohin.models.cache import CachePlan

MIB = 1 << 20


def plan(sizes: Sizes, context: int | None = None, sequences: int = 1, kind: str = "f16") -> CachePlan:
    target = device("host")
    return CachePlan.of(configure(sizes.weights()), target, context=context, sequences=sequences, kind=kind)


def test_the_default_context_is_the_trained_one_up_to_4096() -> None:
    assert plan(Sizes(context=65536)).context == DEFAULT_CONTEXT == 4096
    assert plan(Sizes(context=100)).context == 100
    assert plan(Sizes(context=65536), 65536).context == 65536


@pytest.mark.parametrize("kind", ["f16", "int8", "f32"])
def test_the_cache_has_the_bytes_it_says(kind: str) -> None:
    target = device("host")
    model = build(Sizes(layers=3).weights(), target, context=200, sequences=3, kv=kind)
    buffers = [b for layer in model.cache for b in vars(layer).values() if b is not None]
    assert len(model.cache) == 3 and model.cache.pages == 3 * 4 and model.cache.page == 64
    assert sum(b.nbytes for b in buffers) == model.cache.pages * 64 * model.kv_bytes_per_token
    assert model.cache[2].keys.shape == (12, 2, 64, 16)


@pytest.mark.parametrize(
    ("kind", "float_bytes", "expected"),
    [("f16", 4, 147_456), ("int8", 4, 2 * 8 * 130 * 36), ("f32", 4, 294_912), ("f32", 8, 589_824)],
)
def test_cache_bytes_of_the_8b(kind: str, float_bytes: int, expected: int) -> None:
    config = configure(Sizes(hidden=8, inner=8, layers=36, heads=8, kv_heads=8, head=128).weights())
    assert CachePlan(config, 64, 1, kind, float_bytes).bytes_per_token == expected


@pytest.mark.row("C31")
@pytest.mark.parametrize("name", ["context_262144", "context_2p31"])
def test_a_file_that_promises_much_loads_in_a_few_megabytes(cases: Path, name: str) -> None:
    tracemalloc.start()
    try:
        model = build(formats.open(cases / "gguf" / f"{name}.gguf"), device("host"))
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()
    assert model.context == 4096 and model.kv_bytes_per_token == 1024


def too_much(cases: Path, name: str, context: int, target: Device) -> str:
    with pytest.raises(OutOfMemory) as caught:
        build(formats.open(cases / "gguf" / f"{name}.gguf"), target, context=context)
    assert target.allocations == 0 and target.uploads == 0
    return str(caught.value)


@pytest.mark.row("C31")
def test_two_tebibytes_are_refused_before_anything_is_taken(cases: Path) -> None:
    message = too_much(cases, "context_2p31", 2**31, device("host"))
    assert "2147483648 positions" in message and "2 TiB of f16 cache (1024 bytes a token)" in message


@pytest.mark.row("C31")
def test_the_largest_context_that_fits_is_named_and_fits(cases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "available_memory", lambda: 100 * MIB)
    message = too_much(cases, "context_262144", 262144, device("host"))
    config = configure(formats.open(cases / "gguf" / "context_262144.gguf"))
    fits = (100 * MIB - CachePlan(config, 512, 1, "f16", 4).step_bytes) // (1024 + 4 * 128) // 64 * 64
    assert "256 MiB of f16 cache" in message and "100 MiB are free" in message and f"that fits is {fits};" in message
    CachePlan(config, fits, 1, "f16", 4).check_memory()
    with pytest.raises(OutOfMemory):
        CachePlan(config, fits + 64, 1, "f16", 4).check_memory()


@pytest.mark.row("C31")
@pytest.mark.parametrize(
    "sizes", [Sizes(hidden=512), Sizes(inner=700), Sizes(heads=32, kv_heads=8), Sizes(vocabulary=900)], ids=repr
)
def test_intermediate_values_are_counted(sizes: Sizes) -> None:
    """Held against what a tape of the largest step really plans; the rest is one input to a matrix."""
    target = device("host")
    model = build(replace(sizes, context=1024).weights(), target)
    taken: list[int] = []
    planned = target.plan
    target.plan = lambda *args: taken.append(planned(*args)) or taken[-1]  # type: ignore[method-assign, func-returns-value]
    model.tape("prefill", 512, wanted=1)
    config = model.config
    counted = CachePlan(config, 1024, 1, "f16", 4).step_bytes
    widest = max(config.hidden, config.inner, config.heads * config.head_dim)
    assert taken[0] <= counted - 512 * widest * 4 + 64 and counted <= 2 * taken[0] + 512 * widest * 4


def test_a_wide_model_is_refused_for_its_intermediate_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache takes next to nothing here."""
    sizes = Sizes(hidden=16384, layers=1, heads=1, kv_heads=1, head=2, inner=1, vocabulary=4, context=600)
    weights, target = sizes.weights(), device("host")
    monkeypatch.setattr(cache_module, "available_memory", lambda: 60 * MIB)
    with pytest.raises(OutOfMemory, match=r"64 MiB of intermediate values.*fits is 448;"):
        build(weights, target)
    assert target.allocations == 0 and target.uploads == 0
    assert build(weights, target, context=448).context == 448
    with pytest.raises(OutOfMemory):
        build(weights, target, context=512)


def test_repacked_weights_are_counted(cases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("shohin._core", reason="the native core is not built")
    weights, target = formats.open(cases / "gguf" / "tiny_q2_g128.gguf"), device("cpu", threads=1)
    model = build(weights, target, context=64)
    repacked = [t for t in weights.tensors.values() if target.accepts(t.format) == "repacked"]
    needed = CachePlan(model.config, 64, 1, "f16", 4).step_bytes + 64 * (model.kv_bytes_per_token + 4 * 128)
    assert repacked
    extra = sum(t.rows * t.columns // 128 * 34 for t in repacked)
    monkeypatch.setattr(cache_module, "available_memory", lambda: needed + extra)
    build(weights, target, context=64)
    monkeypatch.setattr(cache_module, "available_memory", lambda: needed + extra - 1)
    with pytest.raises(OutOfMemory, match="repacked weights"):
        build(weights, target, context=64)


def test_no_memory_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "available_memory", lambda: 0)
    with pytest.raises(OutOfMemory, match="not even a short one fits"):
        build(Sizes().weights(), device("host"))


def test_a_system_that_refuses_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(cache_module, "available_memory", lambda: None)
    monkeypatch.setattr(Device, "_allocate", refuse)
    with pytest.raises(OutOfMemory, match="context of 256 positions"):
        build(Sizes().weights(), device("host"))


@pytest.mark.parametrize("context", [0, -1, 257, 1.5, True, "many"])
def test_contexts_that_cannot_be(context: object) -> None:
    with pytest.raises(BadRequest, match=r"context is .*") as caught:
        build(Sizes().weights(), device("host"), context=context)  # type: ignore[arg-type]
    assert caught.value.param == "context"
    if context == 257:
        assert "257" in str(caught.value) and "256" in str(caught.value)


@pytest.mark.parametrize("wrong", [{"sequences": 0}, {"sequences": True}, {"kv": "f8"}, {"activations": "bf16"}])
def test_parameters_that_cannot_be(wrong: dict[str, object]) -> None:
    target = device("host")
    with pytest.raises(BadRequest) as caught:
        build(Sizes().weights(), target, **wrong)  # type: ignore[arg-type]
    assert caught.value.param == next(iter(wrong)) and target.uploads == 0


def test_the_table_of_a_short_context_is_short() -> None:
    target = device("host")
    model: Model = build(Sizes(context=65536).weights(), target, context=70)
    assert model.context == 70 and model.cache.pages == 2
    assert model._graph.rope.shape == (70, 16)


def test_available_memory_reads_what_the_system_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(meminfo: str, limit: str = "max", used: str = "0") -> int | None:
        for name, text in (("meminfo", meminfo), ("max", limit), ("current", used)):
            (tmp_path / name).write_text(text)
        monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
        monkeypatch.setattr(memory, "CGROUP", (tmp_path / "max", tmp_path / "current"))
        return memory.available_memory()

    line = "MemTotal: 9 kB\nMemAvailable:    2048 kB\n"
    assert told(line) == 2 * MIB
    assert told(line, limit=str(MIB), used="1024") == MIB - 1024
    assert told(line, limit=str(MIB), used=str(2 * MIB)) == 0
    monkeypatch.setattr(memory.os, "sysconf", lambda name: {"SC_AVPHYS_PAGES": 3, "SC_PAGE_SIZE": 4096}[name])
    assert told("MemAvailable: lots\n") == 3 * 4096
    monkeypatch.setattr(memory.os, "sysconf", lambda name: {"SC_PHYS_PAGES": 5, "SC_PAGE_SIZE": 4096}.get(name, -1))
    assert told("") == 5 * 4096


def test_sizes_are_shown_for_people() -> None:
    found = [memory.shown(n) for n in (0, 1023, 1536, 1000 * MIB, 1 << 30, 3 << 40, 5000 << 40)]
    assert found == ["0 bytes", "1023 bytes", "1.5 KiB", "1000 MiB", "1 GiB", "3 TiB", "5000 TiB"]


def test_rope_table_of_the_device_is_the_configurations() -> None:
    model = build(Sizes().weights(), device("host", dtype="float64"), context=50)
    table = model.device.read(model._graph.rope)
    np.testing.assert_array_equal(table, model.config.rope.table(50, np.float64))
