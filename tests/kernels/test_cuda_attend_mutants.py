"""Changed lines of the attention kernels for CUDA are noticed."""

from __future__ import annotations

from pathlib import Path

import mutants
import numpy as np
import pytest
from emulated import REAL, emulated_cuda
from numpy.typing import NDArray
from test_webgpu_attention import Rig, one_sequence

from shohin import devices
from shohin.devices import Device, Step
from shohin.errors import DeviceFailed
from shohin.kernels.attend import Heads, attend

HEADS = Heads(4, 2, 32)
TOTAL, TABLE = 154, np.array([[3, 0, 2]])
# A prompt, one row, three rows: three kernels, on both sides of a chunk's border.
STEPS = ((0, 150, 150), (150, 151, 1), (151, 154, 3))
# By the check that notices them.
MUTANTS = {
    "f16": {
        "no low halves of queries": ("chunk.cuh", "part < 4; part++)\n#pragma", "part < 4; part += 2)\n#pragma"),
        "no low halves of weights": ("chunk.cuh", "part < 2; part++", "part < 1; part++"),
        "queries keep their size": (
            "chunk.cuh",
            "int biased = __reduce_max_sync(WARP, peak) >> 23;",
            "int biased = 127;",
        ),
        "earlier chunks are not rescaled": ("chunk.cuh", "__fadd_rn(__fmul_rn(value, m.old),", "__fadd_rn(value,"),
        "few rows see one key more": ("decode.cu", "% 2 >= seen) s[t][i]", "% 2 > seen) s[t][i]"),
        "a prompt sees one key more": ("prefill.cu", "> rows.position[i / 2]) s", "> rows.position[i / 2] + 1) s"),
        "own key is not stored": ("decode.cu", "store_own(shared, place, i - GROUP);", ";"),
    },
    "int8": {
        "value scales keep their size": ("chunk.cuh", "KIND == 1 ? __float_as_uint(most) >> 23 : 127", "127"),
        "no key scales": ("chunk.cuh", "if (KIND == 1) part = ", "if (KIND == 2) part = "),
    },
    "norms": {"no norm": ("heads.cuh", "turn.norm[i] = QK_NORM && inside", "turn.norm[i] = false && inside")},
    "mixed up": {
        "broken values are mixed": ("prefill.cu", "guarded = KIND == 0 && ", "guarded = false && "),
        "sequences are mixed": ("prefill.cu", "== run.sequence; run.end++", "!= -1; run.end++"),
    },
    "worn out": {
        "merged backwards": ("decode.cu", "(long long)c * PARTIAL, c", "(long long)(chunks - 1 - c) * PARTIAL, c"),
        "counters are left": ("decode.cu", "arrived[m * NKV + head] = 0;", ";"),
        "own key is stored early or never": ("decode.cu", "c == chunks - 1 && c != split", "false"),
    },
}


@pytest.fixture(scope="module")
def rows() -> NDArray[np.float32]:
    """q, k and v of sizes that halves alone would not hold; later keys have larger scores."""
    qkv = np.random.default_rng(11).standard_normal((TOTAL, 8, 32))
    for part, size in ((slice(0, 4), 1e3), (slice(4, 6), 1e-3), (slice(6, 8), 1e4)):
        qkv[:, part] *= size
    qkv[:, 4:6] *= np.linspace(0.3, 2, TOTAL)[:, None, None]
    return qkv.reshape(TOTAL, -1).astype(np.float32)


def steps(device: Device, kv: str, rows: NDArray[np.float32], norms: tuple[NDArray[np.float64], ...] | None) -> list:
    rig = Rig(device, HEADS, kv, 4, norms=norms)
    return [rig.play(rows[a:b], one_sequence(a, b, TABLE), n) for a, b, n in STEPS]


def inexact(device: Device, kv: str, rows: NDArray[np.float32], norms: tuple[NDArray[np.float64], ...] | None) -> bool:
    """Further from float64 than twice float32 is; or other bits in one launch than in three."""
    hosts = [devices.device("host", dtype=name) for name in ("float64", "float32")]
    exact, plain, got = (steps(d, kv, rows, norms) for d in (*hosts, device))
    for want, near, found in zip(exact, plain, got, strict=True):
        bound = 2 * np.median(np.abs(near - want)) + 2.0**-23 * np.abs(want).max()
        if not np.median(np.abs(found - want)) <= bound:
            return True
    whole = Rig(device, HEADS, kv, 4, norms=norms).play(rows, one_sequence(0, TOTAL, TABLE), TOTAL)
    return not np.array_equal(whole, np.concatenate(got))


def mixed_up(device: Device, rows: NDArray[np.float32]) -> bool:
    """Two sequences in one prompt, one of them with a broken value: everything else has the bits that it has alone."""
    table, sequences = np.array([[3, 0], [1, 2]]), np.repeat([0, 1], 75)
    alone = one_sequence(0, 75, table[:1])
    want = [Rig(device, HEADS, "f16", 4).play(part, alone, 150) for part in (rows[:75], rows[75:150])]
    both = rows[:150].copy()
    both[75 + 40, -3] = np.nan
    step = Step.of(np.zeros(150, int), positions=np.arange(150) % 75, sequences=sequences, pages=table)
    got = Rig(device, HEADS, "f16", 4).play(both, step, 150)
    same = np.array_equal(got[:75], want[0]) and np.array_equal(got[75 : 75 + 40], want[1][:40])
    return not (same and np.isnan(got[75 + 40 :]).any(axis=1).all())


def worn_out(device: Device, rows: NDArray[np.float32]) -> bool:
    """A tape played twice, over a context whose chunks outnumber the blocks, gives what another kernel does."""
    rig = Rig(device, HEADS, "f16", 12, context=768)
    table = np.arange(12)[None]
    for begin in range(0, 700, 140):
        rig.play(rows[:140], one_sequence(begin, begin + 140, table))
    inputs, out = device.buffer("qkv", (1, HEADS.width)), device.buffer("out", (1, 128))
    device.write(inputs, rows[140:141])
    tape = device.recorder("test", 1)
    attend(tape, inputs, rig.cache, rig.rope, out, heads=HEADS)
    tape.output("out", out, "all")
    played, step = tape.finish(), one_sequence(700, 701, table)
    results = []
    for _ in range(2):
        device.write(out, np.full(out.shape, np.nan, np.float32))
        results.append(played.play(step, ("out",))["out"].copy())
    want = rig.play(rows[140:141], step, 140)
    return not all(np.array_equal(result, want) for result in results)


@pytest.mark.skipif(REAL, reason="mutants run under the emulator")
@pytest.mark.parametrize(("check", "name"), [(check, name) for check in MUTANTS for name in ("", *MUTANTS[check])])
def test_mutants_are_caught(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rows: NDArray[np.float32], check: str, name: str
) -> None:
    folder = mutants.copied(tmp_path, monkeypatch, "attend")
    if name:
        file, old, new = MUTANTS[check][name]
        mutants.change(folder / file, name, old, new)
    device = emulated_cuda(multiprocessors=4)
    try:
        if check == "mixed up":
            caught = mixed_up(device, rows)
        elif check == "worn out":
            caught = worn_out(device, rows)
        else:
            norms = (np.linspace(0.5, 2, 32), np.linspace(2, 0.5, 32)) if check == "norms" else None
            caught = inexact(device, "int8" if check == "int8" else "f16", rows, norms)
    except DeviceFailed:
        caught = True
    assert caught == bool(name)
