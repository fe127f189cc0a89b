"""One layer and the full forward: against float64, against itself in other pieces, and its refusals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import bounds
import numpy as np
import packing
import pytest
from opening import another
from oracle import EPS, normed, softmax_rows

from shohin.devices import Device
from shohin.errors import BadRequest, BadShape, BadState
from shohin.formats.blocks import FORMATS as BLOCKS
from shohin.formats.tensor import Tensor
from shohin.kernels import Layers, LayerStack, LayerWeights, Rows, Tail, forward, layer
from shohin.kernels.attend import Heads, QKNorm
from shohin.kernels.norm_swiglu import FeedForward

H, INNER, VOCABULARY, DEPTH = 256, 512, 301, 3
HEADS = Heads(6, 2, 64)  # nq * hd = 384, which is not h: the 4B shape (R.2)
FORMATS = ("Q1_0", "PQ2_0", "Q4_1")
YARN = 1.1386294361119891


@dataclass
class Tiny:
    """A stack on a device and the decoded weights of its layers for the oracle."""

    stack: LayerStack
    dense: list[dict[str, np.ndarray]]
    final: np.ndarray
    head: np.ndarray


def tiny(device: Device, seed: int = 7, *, activations: str = "exact", depth: int = DEPTH, norms: bool = True) -> Tiny:
    rng = np.random.default_rng(seed)
    layers, dense = [], []
    q, kv = HEADS.query * HEADS.dim, HEADS.kv * HEADS.dim
    for i in range(depth):
        fmt = FORMATS[i % len(FORMATS)]
        shapes = {"q": (q, H), "k": (kv, H), "v": (kv, H), "output": (H, q), "gate": (INNER, H), "up": (INNER, H)}
        shapes["down"] = (H, INNER)
        made = {n: packing.pack(device, n, fmt, rng.standard_normal(s) * 0.08) for n, s in shapes.items()}
        vectors = {n: 1 + 0.2 * rng.standard_normal(s) for n, s in (("n1", H), ("n2", H), ("qn", 64), ("kn", 64))}
        vectors = {n: v.astype(np.float32).astype(np.float64) for n, v in vectors.items()}
        w = {n: m.weight for n, m in made.items()} | {n: packing.vector(device, n, v) for n, v in vectors.items()}
        block = FeedForward(w["n2"], w["gate"], w["up"], w["down"])
        heads_norm = QKNorm(w["qn"], w["kn"]) if norms else None
        layers.append(LayerWeights(w["n1"], (w["q"], w["k"], w["v"]), heads_norm, w["output"], block))
        dense.append({n: m.dense for n, m in made.items()} | vectors)
    head = packing.pack(device, "head", "Q1_0", rng.standard_normal((VOCABULARY, H)))
    final = (1 + 0.2 * rng.standard_normal(H)).astype(np.float32)
    tail = Tail(packing.vector(device, "final", final), head.weight, EPS)
    return Tiny(LayerStack(tuple(layers), HEADS, EPS, tail, activations), dense, final.astype(np.float64), head.dense)


def tokens(rng: np.random.Generator, count: int, start: int = 0) -> Rows:
    hidden = rng.standard_normal((count, H)).astype(np.float32)
    angles = np.arange(start, start + count)[:, None] * 0.3 ** np.arange(HEADS.dim // 2)[None]
    cos, sin = ((f(angles) * YARN).astype(np.float32) for f in (np.cos, np.sin))
    return Rows(hidden, cos, sin, start, count)


def piece(rows: Rows, a: int, b: int) -> Rows:
    return Rows(rows.hidden[a:b].copy(), rows.cos[a:b], rows.sin[a:b], rows.start + a, b - a)


def turned(x: np.ndarray, rows: Rows) -> np.ndarray:
    z = x[..., :32] + 1j * x[..., 32:]
    z = z * (rows.cos.astype(np.float64) + 1j * rows.sin.astype(np.float64))[:, None]
    return np.concatenate((z.real, z.imag), axis=-1)


def layer_oracle(x: np.ndarray, w: dict[str, np.ndarray], rows: Rows, *, f16: bool = True, **broken: bool):
    n = normed(x, w["n1"])
    q, k, v = ((n @ w[name].T).reshape(len(x), -1, 64) for name in "qkv")
    q, k = turned(normed(q, w["qn"]), rows), turned(normed(k, w["kn"]), rows)
    if f16:
        k, v = (a.astype(np.float16).astype(np.float64) for a in (k, v))
    lengths = np.arange(len(x)) + 1
    lengths = np.full(len(x), len(x)) if broken.get("not_causal") else lengths
    x = x + softmax_rows(q, k, v, lengths, interleaved=broken.get("interleaved", False)) @ w["output"].T
    m = x if broken.get("second_norm_missing") else normed(x, w["n2"])
    g, u = m @ w["gate"].T, m @ w["up"].T
    down = (g / (1 + np.exp(-g)) * u) @ w["down"].T
    return down if broken.get("residual_missing") else x + down


def forward_oracle(model: Tiny, rows: Rows, **how: bool) -> tuple[np.ndarray, np.ndarray]:
    x = rows.hidden.astype(np.float64)
    for w in model.dense:
        x = layer_oracle(x, w, rows, **how)
    return x, normed(x, model.final) @ model.head.T


def gate(device: Device, want: np.ndarray) -> float:
    """The contract's gate, 1e-3 relative, where the device rounds to float32; rounding of float64 otherwise.

    The float64 run holds the logic to 1e-9, so that 1e-3 has only rounding to cover.
    """
    return (1e-3 if device.float_type == np.float32 else 1e-9) * float(np.abs(want).max())


@pytest.mark.row("S0.14", "S0.15", "S0.17", "S0.18", "S0.1", "S0.12", "T.14", "M.1", "H.5", "R.2")
@pytest.mark.parametrize("index", range(DEPTH))
def test_one_layer(device: Device, rng: np.random.Generator, index: int) -> None:
    model = tiny(device)
    layers = Layers(device, model.stack, 40)
    rows = tokens(rng, 9)
    given = rows.hidden.copy()
    submissions = device.submissions
    assert layer(layers, index, rows) is rows.hidden
    assert device.submissions == submissions + 1
    before = replace(rows, hidden=given)
    x, w = given.astype(np.float64), model.dense[index]
    want = layer_oracle(x, w, before)
    mutants = {
        name: layer_oracle(x, w, before, **{name: True})
        for name in ("not_causal", "interleaved", "second_norm_missing", "residual_missing")
    }
    mutants["next layer"] = layer_oracle(x, model.dense[(index + 1) % DEPTH], before)
    # The result is written into the caller's float32 array.
    bounds.check(rows.hidden, want, gate(device, want) + 2.0**-24 * np.abs(want), mutants)


@pytest.mark.row("S0.19", "S0.21", "S0.24", "S0.13", "E.1", "E.3", "E.4", "E.6", "T.1", "T.2", "S3.44", "S3.45")
def test_forward_against_float64(device: Device, rng: np.random.Generator) -> None:
    model = tiny(device)
    layers = Layers(device, model.stack, 40)
    rows = tokens(rng, 11)
    given = rows.hidden.copy()
    submissions, uploads = device.submissions, device.uploads
    got = forward(layers, rows, ("hidden", "logits", "ids"), every=True)
    assert (device.submissions, device.uploads) == (submissions + 1, uploads)
    hidden, logits = forward_oracle(model, rows)
    other = {name: forward_oracle(model, rows, **{name: True}) for name in ("not_causal", "interleaved")}
    other["cache not rounded"] = forward_oracle(model, rows, f16=False)
    if device.float_type == np.float32:
        other.pop("cache not rounded")  # smaller than the gate; the float64 run and test_attend catch it
    bounds.check(got.hidden, hidden, gate(device, hidden), {name: x for name, (x, _) in other.items()})
    bounds.check(got.logits, logits, gate(device, logits), {name: y for name, (_, y) in other.items()})
    assert got.logits.shape == (11, VOCABULARY)
    for i, (best, row) in enumerate(zip(got.ids, logits, strict=True)):
        assert best == row.argmax() or row.max() - row[best] < 2 * gate(device, logits), i
    np.testing.assert_array_equal(got.ids, got.logits.argmax(axis=1))
    np.testing.assert_array_equal(got.status, 0)
    np.testing.assert_array_equal(rows.hidden, given)
    tape, _ = layers._tape(11, None, every=True)
    assert len(tape.calls) == 5 * DEPTH + 2
    last = forward(Layers(device, model.stack, 40), rows, ("logits", "ids"))
    assert last.logits.shape == (1, VOCABULARY)
    np.testing.assert_array_equal(last.ids, got.ids[-1:])


@pytest.mark.row("E.5", "E.9", "E.16", "R.1", "R.3", "M.16", "C27", "H.10")
@pytest.mark.parametrize("count", [1, 7, 8, 9, 12, 17, 129])
@pytest.mark.parametrize("activations", ["exact", "int8"])
def test_prefill_equals_single_steps_and_any_chunks(
    device: Device, rng: np.random.Generator, count: int, activations: str
) -> None:
    stack = tiny(device, activations=activations, depth=2).stack
    rows = tokens(rng, count)
    want = forward(Layers(device, stack, count + 3), rows, ("hidden", "logits"), every=True)
    singles = Layers(device, stack, count + 3)
    steps = [forward(singles, piece(rows, i, i + 1), ("hidden", "logits")) for i in range(count)]
    cut = min(count, 5)
    chunks = Layers(device, stack, count + 64)
    parts = [forward(chunks, piece(rows, 0, cut), ("hidden", "logits"), every=True)]
    if cut < count:
        parts.append(forward(chunks, piece(rows, cut, count), ("hidden", "logits"), every=True))
    for name in ("hidden", "logits"):
        whole = getattr(want, name)
        for other in (steps, parts):
            joined = np.concatenate([getattr(o, name) for o in other])
            if device.name == "host" and activations == "exact":  # BLAS orders its sums by M
                np.testing.assert_allclose(joined, whole, rtol=0, atol=gate(device, whole))
            else:
                np.testing.assert_array_equal(joined, whole)


@pytest.mark.row("S0.22", "S0.23", "S0.25", "S0.26", "S0.27", "T.7", "T.8", "T.16", "S0.28", "S0.29")
def test_what_is_asked_for_comes_back_and_nothing_else(device: Device, rng: np.random.Generator) -> None:
    model = tiny(device, depth=1)
    rows = tokens(rng, 3)
    given = rows.hidden.copy()

    def run(stack: LayerStack, *want: str):
        return forward(Layers(device, stack, 8), rows, want)

    every = run(model.stack, "hidden", "logits", "ids")
    for want in ((), ("hidden",), ("logits",), ("ids",), ("ids", "logits")):
        got = run(model.stack, *want)
        for name in ("hidden", "logits", "ids"):
            if name in want:
                np.testing.assert_array_equal(getattr(got, name), getattr(every, name))
            else:
                assert getattr(got, name) is None
    ids = run(model.stack, "ids")
    assert ids.ids.nbytes == 4
    bare = replace(model.stack, tail=None)
    np.testing.assert_array_equal(run(bare, "hidden").hidden, every.hidden)
    assert run(bare).hidden is None
    np.testing.assert_array_equal(rows.hidden, given)
    with pytest.raises(BadShape, match=r"outputs \['tokens'\] are unknown; known: hidden, logits, ids"):
        run(model.stack, "tokens")


@pytest.mark.row("E.10", "E.11", "E.14", "T.20", "T.6", "H.21")
def test_verify_needs_a_whole_tail(device: Device, rng: np.random.Generator) -> None:
    model = tiny(device, depth=1)
    layers = Layers(device, model.stack, 40)
    draft = tokens(rng, 6)
    got = forward(layers, draft, ("ids",), every=True)
    alone = Layers(device, model.stack, 40)
    for i in range(6):
        assert forward(alone, piece(draft, i, i + 1), ("ids",)).ids[0] == got.ids[i]
    bare = Layers(device, replace(model.stack, tail=None), 40)
    for how in ({"want": ("ids",)}, {"want": ("logits",)}, {"every": True}):
        with pytest.raises(BadState, match="this stack has no tail"):
            forward(bare, draft, **how)
    assert bare.length == 0
    with pytest.raises(BadShape, match="head is NoneType; a tail needs both"):
        Tail(model.stack.tail.norm, None, EPS)
    with pytest.raises(BadShape, match="norm is NoneType"):
        Tail(None, model.stack.tail.head, EPS)
    for eps in (0, -1e-6, np.nan):
        with pytest.raises(BadShape, match="epsilon"):
            Tail(model.stack.tail.norm, model.stack.tail.head, eps)
        with pytest.raises(BadShape, match="epsilon"):
            replace(model.stack, eps=eps)
    with pytest.raises(BadShape, match="no layer was given"):
        replace(model.stack, layers=())
    with pytest.raises(BadShape, match="vocabulary of 0"):
        Layers(device, replace(model.stack, tail=replace(model.stack.tail, vocabulary=0)), 8)


@pytest.mark.row("S0.16", "E.2", "H.1", "H.2", "H.22", "S0.20", "S0.30")
def test_checks_come_in_order_and_before_any_write(device: Device, rng: np.random.Generator) -> None:
    layers = Layers(device, tiny(device, depth=2).stack, 8)
    good = tokens(rng, 2)
    short = good.hidden.reshape(-1)[:-1], good.cos.reshape(-1)[:-1], good.sin.reshape(-1)[:-1]
    submissions = device.submissions
    orders = [
        (Rows(short[0], short[1], short[2], 9, 2), "hidden: at least 512 values are needed, got 511"),
        (Rows(good.hidden, short[1], short[2], 9, 2), "rope_cos: at least 64 values are needed, got 63"),
        (Rows(good.hidden, good.cos, short[2], 9, 2), "rope_sin: at least 64 values are needed, got 63"),
    ]
    for rows, words in orders:
        with pytest.raises(BadShape, match=f"layer: {words}"):
            layer(layers, 5, rows)
        with pytest.raises(BadShape, match=f"forward: {words}"):
            forward(layers, rows, ("ids",))
    for index in (2, -1):
        with pytest.raises(BadShape, match=f"layer {index} was asked of 2 layers"):
            layer(layers, index, replace(good, start=9))
    for start in (7, 8, -1, 2**40):
        with pytest.raises(BadShape, match=f"positions {start} to {start + 1} do not fit the cache of 8"):
            layer(layers, 0, replace(good, start=start))
        with pytest.raises(BadShape, match=f"positions {start} to {start + 1} do not fit the cache of 8"):
            forward(layers, replace(good, start=start))
    for count in (0, -1):
        with pytest.raises(BadShape, match="at least 1 is needed"):
            forward(layers, replace(good, count=count))
        with pytest.raises(BadShape, match="at least 1 is needed"):
            layer(layers, 0, replace(good, count=count))
    with pytest.raises(BadShape, match="float32 was expected, got float16"):
        forward(layers, replace(good, hidden=good.hidden.astype(np.float16)))
    frozen = good.hidden.copy()
    frozen.flags.writeable = False
    with pytest.raises(BadShape, match="read-only"):
        layer(layers, 0, replace(good, hidden=frozen))
    assert device.submissions == submissions and layers.length == 0
    assert not any(device.read(c.keys).any() for c in layers._caches)
    with pytest.raises(BadShape, match="at least 1 is needed"):
        Layers(device, layers.stack, 0)
    with pytest.raises(BadRequest, match="kv is 'fp8'"):
        Layers(device, layers.stack, 8, kv="fp8")
    with pytest.raises(BadShape, match="more than can be indexed"):
        Layers(device, layers.stack, 2**33)


@pytest.mark.row("S0.16")
def test_longer_arrays_are_accepted_and_their_prefix_used(device: Device, rng: np.random.Generator) -> None:
    stack = tiny(device, depth=1).stack
    good = tokens(rng, 2)
    long = [np.concatenate((a.reshape(-1), np.full(9, np.nan, np.float32))) for a in (good.hidden, good.cos, good.sin)]
    want = forward(Layers(device, stack, 8), good, ("hidden",)).hidden
    rows = Rows(*long, 0, 2)
    np.testing.assert_array_equal(forward(Layers(device, stack, 8), rows, ("hidden",)).hidden, want)
    layer(Layers(device, stack, 8), 0, rows)
    np.testing.assert_array_equal(rows.hidden[: 2 * H], want.reshape(-1).astype(np.float32))
    assert np.isnan(rows.hidden[2 * H :]).all()


@pytest.mark.row("E.13", "S0.5", "S0.8", "H.9", "H.10", "C29", "C30")
def test_rollback_reset_and_two_sequences(device: Device, rng: np.random.Generator) -> None:
    stack = tiny(device, activations="int8", depth=2).stack
    rows = tokens(rng, 12)
    clean = Layers(device, stack, 16)
    want = forward(clean, rows, ("logits",), every=True).logits
    used, other = Layers(device, stack, 16), Layers(device, stack, 16)
    forward(used, piece(rows, 0, 8))
    forward(other, tokens(rng, 10))  # another sequence on the same weights
    drafted = tokens(rng, 6, start=8)
    forward(used, drafted, ("ids",), every=True)
    assert used.length == 14
    got = forward(used, piece(rows, 8, 12), ("logits",), every=True).logits  # the draft is forgotten
    np.testing.assert_array_equal(got, want[8:])
    assert used.length == 12
    with pytest.raises(BadState, match="position 13 would read keys that were never stored: the cache holds 12"):
        forward(used, tokens(rng, 1, start=13))
    layer(used, 0, tokens(rng, 1, start=12))
    with pytest.raises(BadState, match="the cache holds 12 positions"):
        layer(used, 1, tokens(rng, 1, start=13))
    used.reset()
    with pytest.raises(BadState, match="position 8 would read keys that were never stored"):
        forward(used, piece(rows, 8, 9))
    np.testing.assert_array_equal(forward(used, rows, ("logits",), every=True).logits, want)


@pytest.mark.row("S0.31", "S0.2", "S0.6", "S0.7", "E.8", "T.15", "H.25", "S3.36", "R.30")
def test_nothing_is_allocated_per_token_and_scratch_does_not_grow(device: Device, rng: np.random.Generator) -> None:
    stack = tiny(device, depth=2).stack
    layers = Layers(device, stack, 32)
    rows = tokens(rng, 32)
    forward(layers, piece(rows, 0, 7), ("ids",))
    forward(layers, piece(rows, 7, 8), ("ids",))
    allocations, uploads, submissions = device.allocations, device.uploads, device.submissions
    forward(layers, piece(rows, 8, 13), ("ids",))  # five rows: the tape of eight
    for i in range(13, 32):
        forward(layers, piece(rows, i, i + 1), ("ids",))
    assert (device.allocations, device.uploads) == (allocations, uploads)
    assert device.submissions == submissions + 20

    def scratch(stack: LayerStack, positions: int) -> int:
        return Layers(device, stack, positions)._tape(1, None, every=False)[0].scratch_bytes

    assert scratch(stack, 4096) == scratch(stack, 32)
    assert scratch(tiny(device, depth=3).stack, 32) == scratch(tiny(device, depth=1).stack, 32)


@pytest.mark.row("S3.37", "S0.35")
def test_a_profile_times_every_layer_and_changes_nothing(device: Device, rng: np.random.Generator) -> None:
    """Timing of a phase or layer is the tape's own profile, asked for, instead of a line every 36th call."""
    rows = tokens(rng, 3)
    want = forward(Layers(device, tiny(device).stack, 8), rows, ("logits",)).logits
    layers = Layers(device, tiny(device).stack, 8)
    seen: list[tuple[str, float]] = []
    tape, _ = layers._tape(3, None, every=False)

    def profiled(step, fetch=()):
        ticket, times = tape.profile(step, fetch)
        seen.extend(times)
        return ticket

    layers._tapes[(4, None, False)] = (SimpleNamespace(play=profiled), layers._tapes[(4, None, False)][1])
    submissions = device.submissions
    np.testing.assert_array_equal(forward(layers, rows, ("logits",)).logits, want)
    assert [name for name, _ in seen] == ["layer 0", "layer 1", "layer 2", "tail"]
    assert all(seconds >= 0 for _, seconds in seen) and device.submissions == submissions + 4


@pytest.mark.row("H.20", "H.19")
def test_broken_logits_are_reported_for_their_row_alone(device: Device, rng: np.random.Generator) -> None:
    layers = Layers(device, tiny(device, depth=1).stack, 8)
    rows = tokens(rng, 3)
    good = forward(layers, rows, ("ids",), every=True)
    rows.hidden[2, 5] = np.nan
    got = forward(layers, rows, ("ids", "logits"), every=True)
    assert got.status.tolist() == [0, 0, 1]
    assert got.ids.tolist() == [*good.ids[:2].tolist(), -1]
    rows.hidden[2, 5] = 0
    assert forward(layers, rows, ("ids",), every=True).status.tolist() == [0, 0, 0], "nothing broken stays behind"


@pytest.mark.row("H.5", "H.6", "H.7", "S0.11")
def test_weights_that_do_not_fit_are_refused_when_the_stack_is_placed(device: Device) -> None:
    stack = tiny(device, depth=1).stack
    only = stack.layers[0]

    def refused(words: str, **changed) -> None:
        with pytest.raises(BadShape, match=words):
            Layers(device, replace(stack, layers=(replace(only, **changed),)), 8)

    q, k, _ = only.qkv
    refused("norm_linear: out", qkv=(q, k))
    refused("norm_linear: out", qkv=(q, k, q))
    refused("linear_add", output=only.ffn.down)
    refused("norm", norm=only.heads_norm.key)
    refused("attend: q norm", heads_norm=QKNorm(only.norm, only.heads_norm.key))
    refused("linear_add", ffn=replace(only.ffn, down=q))
    refused("up", ffn=replace(only.ffn, up=k))
    with pytest.raises(BadShape, match="norm_linear"):
        Layers(device, replace(stack, tail=replace(stack.tail, head=only.output)), 8)
    other = tiny(another(device), depth=1).stack
    refused("is on device", output=other.layers[0].output)
    # A width that is no multiple of the block: neither written, nor packed, nor cut off.
    with pytest.raises(BadShape, match="192"):
        packing.tensor("ragged", "Q1_0", np.ones((4, 192)))
    ragged = Tensor("ragged", (4, 192), BLOCKS["Q1_0"], np.zeros(4 * 27, np.uint8))
    with pytest.raises(BadShape, match="192 weights do not fill whole blocks of 128"):
        device.pack(ragged)


@pytest.mark.row("M.4")
def test_models_without_head_norms(device: Device, rng: np.random.Generator) -> None:
    """Llama has none; leaving them out is not the same as weights of one."""
    with_norms, without = tiny(device, depth=1), tiny(device, depth=1, norms=False)
    rows = tokens(rng, 4)
    w = without.dense[0]
    x = rows.hidden.astype(np.float64)
    n = normed(x, w["n1"])
    q, k, v = ((n @ w[name].T).reshape(4, -1, 64) for name in "qkv")
    k, v = (a.astype(np.float16).astype(np.float64) for a in (turned(k, rows), v))
    x = x + softmax_rows(turned(q, rows), k, v, np.arange(4) + 1) @ w["output"].T
    m = normed(x, w["n2"])
    g = m @ w["gate"].T
    want = x + (g / (1 + np.exp(-g)) * (m @ w["up"].T)) @ w["down"].T
    got = forward(Layers(device, without.stack, 4), rows, ("hidden",)).hidden
    normed_too = layer_oracle(rows.hidden.astype(np.float64), with_norms.dense[0], rows)
    bounds.check(got, want, gate(device, want), {"head norms applied": normed_too})
