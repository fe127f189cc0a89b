"""gemv, gemm, gemm_f32, qkv and the projections inside the phases, in exact and int8 mode."""

from __future__ import annotations

import bounds
import numpy as np
import packing
import pytest

import shohin.devices
from shohin import kernels
from shohin.devices import Device, Recorder, Step
from shohin.kernels.linear_add import linear_add
from shohin.kernels.norm_linear import norm_linear
from shohin.kernels.norm_swiglu import FeedForward, norm_swiglu

K, N = 512, 24
EPS = 1e-6


def rows_of(rng: np.random.Generator, m: int, k: int = K) -> np.ndarray:
    """Activations with a few outliers and unequal rows."""
    x = rng.standard_normal((m, k)) * np.exp(rng.standard_normal((m, 1)))
    x[:, :: k // 4] *= 8
    return x.astype(np.float32)


def product_mutants(x: np.ndarray, w: packing.Matrix) -> dict[str, np.ndarray]:
    """What a broken kernel would give: the tail group dropped, neighbours swapped, signs turned, minima forgotten."""
    x64, dense = x.astype(np.float64), w.dense
    group = max(w.weight.source_format.group, 16)
    cut = x64.copy()
    cut[:, -group:] = 0
    swapped = dense.reshape(len(dense), -1, 2)[:, :, ::-1].reshape(dense.shape)
    mutants = {
        "last group dropped": cut @ dense.T,
        "codes in the wrong order": x64 @ swapped.T,
        "sign inverted": -(x64 @ dense.T),
        "next row's scale": x64 @ np.roll(dense, 1, axis=0).T,
    }
    fmt = w.weight.source_format
    if fmt.quantised and (codes := fmt.unpack(w.raw)).minimum is not None:
        bare = codes.code.astype(np.float64) * codes.scale.astype(np.float64)[..., None]
        mutants["minimum forgotten"] = x64 @ bare.reshape(dense.shape).T
    return mutants


@pytest.mark.row("S3.14", "M.11", "M.2", "I.1")
@pytest.mark.parametrize("fmt", packing.QUANTISED + packing.FLOATS)
def test_exact_product_in_every_format(device: Device, rng: np.random.Generator, fmt: str) -> None:
    w, x = packing.matrix(device, rng, fmt, N, K), rows_of(rng, 3)
    got = kernels.gemm(device, w.weight, x)
    want = np.einsum("mk,nk->mn", x.astype(np.float64), w.dense)
    bound = bounds.product(device, x, bounds.magnitude(w.weight, w.raw))
    bounds.check(got, want, bound, product_mutants(x, w))


@pytest.mark.row("S3.11", "S3.12", "S3.13", "S3.43", "S0.11", "T.13")
@pytest.mark.parametrize("fmt", ["Q1_0", "PQ2_0", "Q4_1"])
@pytest.mark.parametrize("activations", ["exact", "int8"])
def test_gemv_is_a_row_of_gemm_and_qkv_is_gemv_side_by_side(
    device: Device, rng: np.random.Generator, fmt: str, activations: str
) -> None:
    parts = [packing.matrix(device, rng, fmt, n, K) for n in (16, 8, 8)]
    x = rows_of(rng, 1)
    each = [kernels.gemv(device, w.weight, x[0], activations=activations) for w in parts]
    fused = kernels.qkv(device, [w.weight for w in parts], x[0], activations=activations)
    np.testing.assert_array_equal(fused, np.concatenate(each))
    np.testing.assert_array_equal(kernels.qkv(device, parts[0].weight, x[0], activations=activations), each[0])
    for w, y in zip(parts, each, strict=True):
        np.testing.assert_array_equal(kernels.gemm(device, w.weight, x, activations=activations)[0], y)


@pytest.mark.row("S3.17", "I.2")
@pytest.mark.parametrize("k", [1, 5, 31, 100, 577])
@pytest.mark.parametrize("m", [1, 7, 33])
def test_f32_gemm_takes_any_k(device: Device, rng: np.random.Generator, k: int, m: int) -> None:
    w, x = packing.matrix(device, rng, "F32", 9, k), rng.standard_normal((m, k)).astype(np.float32)
    want = np.einsum("mk,nk->mn", x.astype(np.float64), w.dense)
    last = x.astype(np.float64).copy()
    last[:, -1] = 0
    bound = bounds.product(device, x, np.abs(w.dense))
    bounds.check(kernels.gemm_f32(device, w.weight, x), want, bound, {"ragged tail dropped": last @ w.dense.T})


@pytest.mark.row("S3.14", "E.5", "R.1", "M.16")
@pytest.mark.parametrize("fmt", ["Q1_0", "PQ2_0", "Q4_1", "F16"])
@pytest.mark.parametrize("m", [1, 7, 8, 9, 12, 17, 129])
def test_a_row_does_not_depend_on_its_neighbours(device: Device, rng: np.random.Generator, fmt: str, m: int) -> None:
    w, x = packing.matrix(device, rng, fmt, N, K), rows_of(rng, m)
    for mode in ("int8", "exact"):
        batch = kernels.gemm(device, w.weight, x, activations=mode)
        picked = sorted({0, m // 2, m - 1})
        alone = np.stack([kernels.gemv(device, w.weight, x[i], activations=mode) for i in picked])
        if device.name == "host" and (mode == "exact" or not w.weight.format.quantised):
            bound = 2 * bounds.product(device, x[picked], bounds.magnitude(w.weight, w.raw))
            assert bounds.within(batch[picked], alone.astype(np.float64), bound)
        else:
            np.testing.assert_array_equal(batch[picked], alone)


def int8_oracle(x: np.ndarray, norm: np.ndarray | None, w: packing.Matrix, r: np.ndarray | None = None) -> np.ndarray:
    """The int8 product from scalars: float32 codes one by one, then float64 sums of code * weight."""
    m, k = x.shape
    group = w.weight.group
    v = x.astype(np.float32) if norm is None else (x.astype(np.float32) * norm.astype(np.float32))
    back = np.zeros((m, k))
    for i in range(m):
        for start in range(0, k, group):
            part = v[i, start : start + group]
            a = np.float32(max(abs(float(e)) for e in part))
            if a < np.float32(1.5e-36):
                continue
            inverse = np.float32(127) / a
            codes = [max(-127, min(127, round(float(e * inverse)))) for e in part]  # round() is half-even
            scale = float(a) / 127 * (1 if r is None else float(r[i]))
            back[i, start : start + group] = np.array(codes, np.float64) * scale
    return back


@pytest.mark.row("M.18", "S3.14")
@pytest.mark.parametrize("fmt", packing.QUANTISED)
def test_int8_product_in_every_format(device: Device, rng: np.random.Generator, fmt: str) -> None:
    w, x = packing.matrix(device, rng, fmt, N, K), rows_of(rng, 3)
    seen = int8_oracle(x, None, w)
    got = kernels.gemm(device, w.weight, x, activations="int8")
    size = bounds.magnitude(w.weight, w.raw)
    tight = bounds.product(device, seen, size, extra=4)
    bounds.check(got, seen @ w.dense.T, tight, product_mutants(seen, w) | {"not quantised": x @ w.dense.T})
    # Against the true product: half a step of every input, and the roundings of a step.
    group = w.weight.group
    top = np.abs(x.astype(np.float64)).reshape(3, -1, group).max(axis=2)
    step = np.repeat(top / 127, group, axis=1)
    loose = (0.5 * step * (1 + 2.0**-14)) @ np.abs(w.dense).T + tight
    assert bounds.within(got, x.astype(np.float64) @ w.dense.T, loose)


@pytest.mark.row("M.18")
def test_float_weights_are_never_quantised(device: Device, rng: np.random.Generator) -> None:
    x = rows_of(rng, 2)
    for fmt in packing.FLOATS:
        w = packing.matrix(device, rng, fmt, N, K)
        exact, int8 = (kernels.gemm(device, w.weight, x, activations=mode) for mode in ("exact", "int8"))
        np.testing.assert_array_equal(exact, int8)


def identity(device: Device, k: int = 32) -> packing.Matrix:
    """Q8_0 rows that pick one input each: out[j] = code_j * activation scale * (127 * f16(1 / 127))."""
    return packing.pack(device, "identity", "Q8_0", np.eye(k))


def codes_seen(device: Device, x: np.ndarray) -> np.ndarray:
    """The int8 codes of a group of 32, read through the identity."""
    w = identity(device)
    out = kernels.gemv(device, w.weight, x, activations="int8").astype(np.float64)
    return out / (w.dense.max() * np.abs(x.astype(np.float64)).max() / 127)


@pytest.mark.row("M.18", "S3.14")
def test_quantiser_rounds_half_to_even(device: Device) -> None:
    x = np.zeros(32, np.float32)
    x[0] = 127  # the step is exactly 1, so halves are ties
    x[1:13] = [0.5, 1.5, 2.5, 3.5, -0.5, -1.5, -2.5, 126.5, -126.5, 0.49, 0.51, -127]
    want = np.array([127, 0, 2, 2, 4, 0, -2, -2, 126, -126, 0, 1, -127])
    got = codes_seen(device, x)[:13]
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)
    away = np.array([127, 1, 2, 3, 4, -1, -2, -3, 127, -127, 0, 1, -127])
    assert np.abs(away - want).max() > 0.5, "round half away is a different answer here"


@pytest.mark.row("M.18", "H.20")
def test_quantiser_silent_and_broken_groups(device: Device) -> None:
    w = packing.pack(device, "wide", "Q8_0", np.concatenate([np.eye(32), np.eye(32)], axis=1))
    x = np.zeros(64, np.float32)
    x[32:] = 127
    np.testing.assert_allclose(kernels.gemv(device, w.weight, x, activations="int8"), 127, rtol=1e-3)
    x[:32] = 1.4e-36  # below the limit: exactly zero, and no infinity from 127 / a
    quiet = kernels.gemv(device, w.weight, x, activations="int8")
    np.testing.assert_allclose(quiet, 127, rtol=1e-3)
    for bad in (np.nan, np.inf, -np.inf):
        broken = x.copy()
        broken[5] = bad
        assert np.isnan(kernels.gemv(device, w.weight, broken, activations="int8")).all(), f"{bad} was lost"


@pytest.mark.row("M.15")
@pytest.mark.parametrize("activations", ["exact", "int8"])
def test_linear_add_keeps_the_residual(device: Device, rng: np.random.Generator, activations: str) -> None:
    w, x = packing.matrix(device, rng, "Q4_1", N, K), rows_of(rng, 4)
    hidden = rng.standard_normal((4, N)).astype(np.float32)

    def record(tape, buffers):
        linear_add(tape, buffers[0], w.weight, buffers[1], activations=activations)
        return buffers[1]

    got = packing.play(device, record, (x, hidden), step=Step.rows_only(3))
    seen = x.astype(np.float64) if activations == "exact" else int8_oracle(x, None, w)
    want = hidden + seen @ w.dense.T
    want[3] = hidden[3]  # not a live row
    bound = bounds.product(device, seen, bounds.magnitude(w.weight, w.raw), extra=8)
    bound += bounds.gamma(device, 1) * np.abs(want)
    every = hidden + seen @ w.dense.T
    bounds.check(got, want, bound, {"no residual": seen @ w.dense.T, "dead row written": every})


@pytest.mark.row("M.3", "S0.14")
@pytest.mark.parametrize("activations", ["exact", "int8"])
def test_norm_linear(device: Device, rng: np.random.Generator, activations: str) -> None:
    """eps counts: rows are small enough that eps inside, outside or without the root are three answers."""
    ws = [packing.matrix(device, rng, "Q4_1", 8, K), packing.matrix(device, rng, "Q1_0", 16, K)]
    x = (rows_of(rng, 5) * 1e-3).astype(np.float32)
    norm = (1 + 0.3 * rng.standard_normal(K)).astype(np.float32)
    weight = packing.vector(device, "norm", norm)

    def record(tape, buffers):
        out = tape.scratch("out", (tape.wanted, 24))
        norm_linear(
            tape, buffers[0], weight, [w.weight for w in ws], out, eps=EPS, activations=activations, gather=True
        )
        return out

    wanted = np.array([4, 0, 2])
    got = packing.play(device, record, (x,), step=Step.of(np.zeros(5, int), wanted=wanted), wanted=3)
    x64 = x.astype(np.float64)[wanted]
    mean = (x64**2).mean(axis=1, keepdims=True)

    def project(r: np.ndarray, scaled: np.ndarray) -> np.ndarray:
        if activations == "exact":
            return np.concatenate([(x64 * r * scaled) @ w.dense.T for w in ws], axis=1)
        return np.concatenate([int8_oracle(x[wanted], scaled, w, r[:, 0]) @ w.dense.T for w in ws], axis=1)

    r = 1 / np.sqrt(mean + EPS)
    want = project(r, norm)
    extra = bounds.norm_roundings(K) + 6
    bound = np.concatenate(
        [bounds.product(device, x64 * r * norm, bounds.magnitude(w.weight, w.raw), extra) for w in ws], axis=1
    )
    if activations == "int8":
        bound *= 1.2  # a code may exceed its value by half a step, at most 1 / 254 of the group's largest
        bound += bounds.gamma(device, K + extra) * np.concatenate(
            [np.abs(int8_oracle(x[wanted], norm, w, r[:, 0])) @ bounds.magnitude(w.weight, w.raw).T for w in ws], axis=1
        )
    mutants = {
        "eps outside the root": project(1 / (np.sqrt(mean) + EPS), norm),
        "no eps": project(1 / np.sqrt(mean), norm),
        "no norm weight": project(r, np.ones_like(norm)),
        "rows not gathered": np.roll(want, 1, axis=0),
    }
    bounds.check(got, want, bound, mutants)


def swiglu_bound(device: Device, g: np.ndarray, u: np.ndarray, dg: np.ndarray, du: np.ndarray) -> np.ndarray:
    """|silu'| <= 1.1, so silu moves by 1.1 dg; exp, addition, division and product add eight roundings."""
    silu = g / (1 + np.exp(-g))
    error = 1.1 * dg + bounds.gamma(device, 8) * (np.abs(silu) + np.abs(g) * np.abs(silu))
    return error * (np.abs(u) + du) + np.abs(silu) * du + bounds.gamma(device, 1) * np.abs(silu * u)


@pytest.mark.row("M.14", "I.9")
def test_norm_swiglu(device: Device, rng: np.random.Generator) -> None:
    gate, up = (packing.matrix(device, rng, "Q4_1", 40, K) for _ in range(2))
    x, norm = rows_of(rng, 3), (1 + 0.3 * rng.standard_normal(K)).astype(np.float32)
    down = packing.matrix(device, rng, "F32", K, 40)
    block = FeedForward(packing.vector(device, "norm", norm), gate.weight, up.weight, down.weight)

    def record(tape, buffers):
        out = tape.scratch("out", (tape.rows, 40))
        norm_swiglu(tape, buffers[0], block, out, eps=EPS, activations="exact")
        return out

    got = packing.play(device, record, (x,))
    x64 = x.astype(np.float64)
    n = x64 / np.sqrt((x64**2).mean(axis=1, keepdims=True) + EPS) * norm
    g, u = n @ gate.dense.T, n @ up.dense.T
    dg, du = (
        bounds.product(device, n, bounds.magnitude(w.weight, w.raw), bounds.norm_roundings(K)) for w in (gate, up)
    )
    mutants = {
        "gate and up exchanged": u / (1 + np.exp(-u)) * g,
        "sigmoid alone": 1 / (1 + np.exp(-g)) * u,
        "tanh form of gelu": 0.5 * g * (1 + np.tanh(0.7978845608 * (g + 0.044715 * g**3))) * u,
    }
    bounds.check(got, g / (1 + np.exp(-g)) * u, swiglu_bound(device, g, u, dg, du), mutants)


@pytest.mark.row("S3.33", "S3.35", "S3.43", "H.5")
def test_ffn_phase_with_an_output_that_is_not_square(device: Device, rng: np.random.Generator) -> None:
    """nq * hd = 128 and h = 64, as in the 4B model, where the seed's h x h would be wrong."""
    h, k, inner = 64, 128, 96
    output, gate, up, down = (
        packing.matrix(device, rng, "F32", n, c) for n, c in ((h, k), (inner, h), (inner, h), (h, inner))
    )
    norm = (1 + 0.3 * rng.standard_normal(h)).astype(np.float32)
    block = FeedForward(packing.vector(device, "norm", norm), gate.weight, up.weight, down.weight)
    hidden, attended = (rng.standard_normal(n).astype(np.float32) for n in (h + 3, k + 5))
    before = hidden.copy()
    submissions = device.submissions
    assert kernels.ffn(device, output.weight, block, hidden, attended, eps=EPS) is hidden
    assert device.submissions == submissions + 1
    np.testing.assert_array_equal(hidden[h:], before[h:])
    a = before[:h].astype(np.float64) + output.dense @ attended[:k].astype(np.float64)
    n = a / np.sqrt((a**2).mean() + EPS) * norm
    g, u = gate.dense @ n, up.dense @ n
    want = a + down.dense @ (g / (1 + np.exp(-g)) * u)
    # Worst case of each stage carried through the next: the stream's error reaches the end by both ways.
    da = bounds.product(device, attended[:k], np.abs(output.dense)) + bounds.gamma(device, 1) * np.abs(a)
    dn = da.max() / np.sqrt((a**2).mean()) * 2 + bounds.gamma(device, bounds.norm_roundings(h)) * np.abs(n).max()
    dg, du = (np.abs(w.dense).sum(axis=1) * dn + bounds.product(device, n, np.abs(w.dense)) for w in (gate, up))
    ds = swiglu_bound(device, g, u, dg, du)
    s = g / (1 + np.exp(-g)) * u
    bound = da + np.abs(down.dense) @ ds + bounds.product(device, s, np.abs(down.dense))
    bound += bounds.gamma(device, 1) * np.abs(want) + 2.0**-24 * np.abs(want)  # the answer is returned in float32
    mutants = {"no residual": want - a, "norm before the projection": want - (a - before[:h])}
    bounds.check(hidden[:h], want, bound, mutants)


@pytest.mark.row("S3.38", "M.13")
@pytest.mark.parametrize("fmt", ["PQ2_0", "Q2_0", "TQ2_0_G128", "PTQ1_0", "TQ1_0", "TQ2_0", "Q1_0"])
def test_ternary_weights_are_exact_in_f16(host: Device, rng: np.random.Generator, fmt: str) -> None:
    values = packing.pack(host, "w", fmt, rng.standard_normal((8, 512))).dense
    np.testing.assert_array_equal(values, values.astype(np.float16).astype(np.float64))


@pytest.mark.row("S3.39", "S3.40")
def test_gates_of_the_contract_at_image_widths(device: Device, rng: np.random.Generator) -> None:
    """K = 3072: 1e-3 for ternary weights, 1e-4 for F32, absolute, with activations and outputs of about 1."""
    x = rng.standard_normal((4, 3072)).astype(np.float32)
    for fmt, limit in (("PQ2_0", 1e-3), ("F32", 1e-4)):
        w = packing.pack(device, "w", fmt, rng.standard_normal((64, 3072)) / 55)
        want = x.astype(np.float64) @ w.dense.T
        cut = x[:, :-128].astype(np.float64) @ w.dense[:, :-128].T
        bounds.check(kernels.gemm(device, w.weight, x), want, limit, {"last group dropped": cut})


@pytest.mark.row("SC.6", "S3.47")
@pytest.mark.parametrize("n", [1, 2, 3, 5, 31, 63, 64, 65, 129])
def test_rows_that_workers_do_not_divide(device: Device, rng: np.random.Generator, n: int) -> None:
    """Every row is computed once, however many are left for the last worker."""
    w, x = packing.matrix(device, rng, "Q1_0", n, 128), rows_of(rng, 1, 128)
    want = x.astype(np.float64) @ w.dense.T
    bound = bounds.product(device, x, bounds.magnitude(w.weight, w.raw))
    last = want.copy()
    last[0, -1] = 0
    bounds.check(kernels.gemm(device, w.weight, x), want, bound, {"last row forgotten": last})


@pytest.mark.row("T.3", "T.1")
def test_every_product_is_one_kernel(host: Device, rng: np.random.Generator, monkeypatch) -> None:
    """gemv and both GEMMs record the same op: there is no older version beside it to be called by mistake."""
    names = []
    add = Recorder.add

    def noted(self, op, operands, writes):
        names.append(op.name)
        add(self, op, operands, writes)

    monkeypatch.setattr(Recorder, "add", noted)
    w, x = packing.matrix(host, rng, "F32", 4, 32), rows_of(rng, 2, 32)
    kernels.gemv(host, w.weight, x[0])
    kernels.gemm(host, w.weight, x)
    kernels.gemm_f32(host, w.weight, x)
    assert names == ["gemm"] * 3


@pytest.mark.row("S3.48", "M.16")
@pytest.mark.parametrize("activations", ["exact", "int8"])
def test_the_thread_count_changes_no_bit(rng: np.random.Generator, activations: str) -> None:
    try:
        devices = [shohin.devices.device("cpu", threads=n) for n in (1, 2, 5)]
    except ImportError as error:
        pytest.skip(f"the native core is not built: {error}")
    made = packing.tensor("w", "Q1_0", rng.standard_normal((333, 512)))
    x = rows_of(rng, 9)
    first, *others = [kernels.gemm(d, d.pack(made), x, activations=activations) for d in devices]
    for other in others:
        np.testing.assert_array_equal(other, first)
