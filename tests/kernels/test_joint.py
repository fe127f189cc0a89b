"""Joint attention: one result whatever the residency, and what each residency owes."""

from __future__ import annotations

import bounds
import numpy as np
import pytest

from shohin.devices import Device
from shohin.errors import BadShape, BadState, OutOfMemory
from shohin.kernels import JointShape, ResidentJoint, joint_attention


def operands(rng: np.random.Generator, shape: JointShape, extra: int = 0) -> tuple[np.ndarray, ...]:
    return tuple(rng.standard_normal(shape.count + extra).astype(np.float32) for _ in range(3))


def plain(shape: JointShape, parts: tuple[np.ndarray, ...], *, causal: bool = False, head_major: bool = False):
    """Float64, head by head; also |p| . |v| and the largest |q| . |k|, which the bound needs."""
    h, s, d = shape.heads, shape.tokens, shape.dim
    q, k, v = (p[: shape.count].astype(np.float64).reshape(h, s, d) for p in parts)
    scores = np.einsum("hsd,htd->hst", q, k) / np.sqrt(d)
    if causal:
        scores = np.where(np.tri(s, dtype=bool), scores, -np.inf)
    p = np.exp(scores - scores.max(axis=2, keepdims=True))
    p /= p.sum(axis=2, keepdims=True)
    out = np.einsum("hst,htd->hsd", p, v)
    return out.reshape(s, h * d) if head_major else out.transpose(1, 0, 2).reshape(s, h * d)


def joint_bound(device: Device, shape: JointShape, parts: tuple[np.ndarray, ...]) -> np.ndarray:
    """As in test_attend: every weight p_t off by e_t moves the mean by sum p_t e_t |v_t - o|."""
    h, s, d = shape.heads, shape.tokens, shape.dim
    q, k, v = (p[: shape.count].astype(np.float64).reshape(h, s, d) for p in parts)
    scores = np.einsum("hsd,htd->hst", q, k) / np.sqrt(d)
    p = np.exp(scores - scores.max(axis=2, keepdims=True))
    p /= p.sum(axis=2, keepdims=True)
    delta = np.einsum("hsd,htd->hst", np.abs(q), np.abs(k)) / np.sqrt(d) * bounds.gamma(device, d + 2)
    delta += 3 * bounds.unit(device) * (np.abs(scores) + np.abs(scores.max(axis=2, keepdims=True)))
    e = np.expm1(delta + bounds.gamma(device, 16))
    out = np.einsum("hst,htd->hsd", p, v)
    spread = np.abs(v[:, None] - out[:, :, None])
    moved = np.einsum("hst,hstd->hsd", p * e, spread) / (1 - e.max())
    moved += bounds.gamma(device, s + 16) * np.einsum("hst,htd->hsd", p, np.abs(v))
    return moved.transpose(1, 0, 2).reshape(s, h * d)


@pytest.mark.row("S3.23", "S3.25", "S3.26", "I.3", "T.9")
@pytest.mark.parametrize(
    "shape", [(3, 17, 8), (2, 257, 16), (1, 1, 1), (2, 5, 130), (1, 9, 200), (2, 3, 256), (4, 64, 5)]
)
def test_against_plain_float64(device: Device, rng: np.random.Generator, shape) -> None:
    """D = 130 and 200 run as well as they are prepared, and D need not be a multiple of 8."""
    shape = JointShape(*shape)
    parts = operands(rng, shape)
    q, k, v = parts
    mutants = {}
    if shape.tokens > 1:
        mutants["causal"] = plain(shape, parts, causal=True)
        mutants["k and v exchanged"] = plain(shape, (q, v, k))
        mutants["scaled by D"] = plain(shape, (q / np.sqrt(shape.dim) * 0.99, k, v))
    if shape.heads > 1:
        mutants["head-major result"] = plain(shape, parts, head_major=True)
    got = joint_attention(device, shape, parts)
    bounds.check(got, plain(shape, parts), joint_bound(device, shape, parts), mutants)


@pytest.mark.row("S3.23", "I.3")
def test_against_torch(device: Device, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch", reason="torch is an optional oracle")
    shape = JointShape(3, 40, 24)
    parts = operands(rng, shape)
    q, k, v = (torch.from_numpy(p.astype(np.float64)).reshape(3, 40, 24) for p in parts)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v).permute(1, 0, 2).reshape(40, 72).numpy()
    bounds.check(joint_attention(device, shape, parts), want, joint_bound(device, shape, parts), {})


@pytest.mark.row("S3.24", "T.18", "R.44", "I.3")
def test_more_than_2048_tokens(device: Device, rng: np.random.Generator) -> None:
    """4,608 tokens: 1024 x 1024 pixels and their text. Checked on a spread of tokens."""
    shape = JointShape(1, 4608, 8)
    parts = operands(rng, shape)
    got = joint_attention(device, shape, parts)
    q, k, v = (p.astype(np.float64).reshape(4608, 8) for p in parts)
    at = np.array([0, 255, 256, 2048, 4607])
    scores = q[at] @ k.T / np.sqrt(8)
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    want = p @ v / p.sum(axis=1, keepdims=True)
    capped = p[:, :2048] @ v[:2048] / p[:, :2048].sum(axis=1, keepdims=True)
    bounds.check(got[at], want, bounds.gamma(device, 4608 + 64) * np.abs(v).max(), {"capped at 2048": capped})


@pytest.mark.row("S3.24", "S3.28", "H.12")
def test_shapes_are_checked_in_order(device: Device, rng: np.random.Generator) -> None:
    for dims in ((0, 4, 8), (2, 0, 8), (2, 4, 0), (-1, 4, 8)):
        with pytest.raises(BadShape, match="each must be at least 1"):
            JointShape(*dims)
    with pytest.raises(BadShape, match="head_dim is 257, at most 256"):
        JointShape(1, 4, 257)
    with pytest.raises(BadShape, match="more than can be indexed"):
        JointShape(2**31, 2**31, 8)
    with pytest.raises(BadShape, match="more than can be indexed"):
        JointShape(1, 2**32, 1)
    shape = JointShape(2, 4, 8)
    q, k, v = operands(rng, shape)
    out = np.zeros(shape.count, np.float32)
    resident = ResidentJoint(device)
    for short, name in ((0, "q"), (1, "k"), (2, "v")):
        parts = [q, k, v]
        parts[short:] = [p[:-1] for p in parts[short:]]  # this one and all later ones are short: the first is named
        for call in (
            lambda p=parts: joint_attention(device, shape, tuple(p), out[:-1]),
            lambda p=parts: joint_attention(device, shape, tuple(p), out[:-1], pooled=True),
            lambda p=parts: resident.prepare(shape, tuple(p)),
        ):
            with pytest.raises(BadShape, match=f"joint_attention: {name}: at least 64 values are needed, got 63"):
                call()
    with pytest.raises(BadShape, match="out: at least 64 values are needed, got 63"):
        joint_attention(device, shape, (q, k, v), out[:-1])
    assert not out.any()


@pytest.mark.row("S3.24", "S3.26", "S3.27", "S3.29", "S3.42", "I.4")
def test_residencies_agree_bit_for_bit(device: Device, rng: np.random.Generator) -> None:
    shape = JointShape(3, 33, 24)
    parts = operands(rng, shape, extra=5)
    alone = joint_attention(device, shape, parts)
    tight = joint_attention(device, shape, parts, pooled=True)
    large = JointShape(3, 80, 24)
    joint_attention(device, large, operands(rng, large), pooled=True)
    oversized = joint_attention(device, shape, parts, pooled=True)
    resident = ResidentJoint(device)
    resident.prepare(shape, parts)
    resident.dispatch()
    joint_attention(device, large, operands(rng, large), pooled=True)  # somebody else's call in between
    out = np.full(shape.count + 4, 7, np.float32)
    assert resident.download(out) is out
    for other in (tight, oversized, resident.download()):
        np.testing.assert_array_equal(other, alone)
    np.testing.assert_array_equal(out[: shape.count], alone.reshape(-1).astype(np.float32))
    assert (out[shape.count :] == 7).all(), "values behind the result stay as they were"
    resident.prepare(large, operands(rng, large))
    resident.prepare(shape, parts)
    resident.dispatch()
    resident.dispatch()
    np.testing.assert_array_equal(resident.download(), alone)


@pytest.mark.row("S3.29", "S3.30", "H.17")
def test_resident_calls_out_of_order(device: Device, rng: np.random.Generator) -> None:
    shape, small = JointShape(2, 8, 8), JointShape(2, 4, 8)
    resident = ResidentJoint(device)
    with pytest.raises(BadState, match="dispatch before prepare"):
        resident.dispatch()
    with pytest.raises(BadState, match="download before"):
        resident.download()
    resident.prepare(shape, operands(rng, shape))
    with pytest.raises(BadState, match="download before"):
        resident.download()
    resident.dispatch()
    resident.prepare(small, operands(rng, small))
    with pytest.raises(BadState, match="download before"):
        resident.download()  # the pool still holds the larger result, which is nobody's any more
    resident.dispatch()
    assert resident.download().shape == (4, 16)
    with pytest.raises(BadShape, match="at least 64 values are needed, got 63"):
        resident.download(np.zeros(63, np.float32))


@pytest.mark.row("S3.31", "S3.32", "S3.26", "I.4", "T.17")
def test_counters_prove_the_residency(device: Device, rng: np.random.Generator) -> None:
    shape, large = JointShape(2, 8, 8), JointShape(2, 16, 8)
    pool = device.pool("attention")
    counts = []
    for s in (shape, shape, large, shape, large):
        joint_attention(device, s, operands(rng, s), pooled=True)
        counts.append(pool.allocations)
    assert counts == [4, 4, 8, 8, 8]
    # q, k and v grow without out when only they are asked for more, and the other way round.
    pool.take((10_000,), "out")
    assert pool.allocations == 9
    joint_attention(device, JointShape(2, 32, 8), operands(rng, JointShape(2, 32, 8)), pooled=True)
    assert pool.allocations == 12
    before = pool.allocations
    joint_attention(device, shape, operands(rng, shape))  # standalone: buffers of its own
    assert pool.allocations == before
    resident = ResidentJoint(device)
    resident.prepare(shape, operands(rng, shape))
    assert resident.pool.allocations == 4
    allocations, submissions = device.allocations, device.submissions
    for _ in range(3):
        resident.dispatch()
    assert (device.allocations, device.submissions) == (allocations, submissions + 3)


@pytest.mark.row("H.24", "H.19")
@pytest.mark.parametrize("succeed", [0, 1, 2, 3])
def test_failed_growth_keeps_the_old_set(device: Device, rng: np.random.Generator, monkeypatch, succeed: int) -> None:
    shape, large = JointShape(2, 8, 8), JointShape(2, 64, 8)
    parts = operands(rng, shape)
    want = joint_attention(device, shape, parts, pooled=True)
    pool = device.pool("attention")
    owner, name = (device.driver, "allocate") if device.name == "cuda" else (device, "_allocate")
    allocate, left = getattr(owner, name), [succeed]

    def failing(*size):
        if left[0] == 0:
            raise OutOfMemory("no more")
        left[0] -= 1
        return allocate(*size)

    monkeypatch.setattr(owner, name, failing)
    with pytest.raises(OutOfMemory):
        joint_attention(device, large, operands(rng, large), pooled=True)
    assert pool.allocations == (4 if succeed < 3 else 7), "q, k, v count together or not at all"
    assert pool.capacity("q", "k", "v") == (shape.count if succeed < 3 else large.count)
    assert pool.capacity("out") == shape.count
    left[0] = 0
    if device.name == "host":  # elsewhere a tape may take scratch of its own
        np.testing.assert_array_equal(joint_attention(device, shape, parts, pooled=True), want)
    monkeypatch.undo()
    np.testing.assert_array_equal(joint_attention(device, shape, parts, pooled=True), want)
    joint_attention(device, large, operands(rng, large), pooled=True)
    assert pool.allocations == 8
