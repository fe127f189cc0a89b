"""The block formats against published bytes and sums, and against decoders that are wrong in the usual ways."""

from __future__ import annotations

import struct
from fractions import Fraction

import numpy as np
import pytest

from shohin.formats.blocks import FORMATS, by_name
from shohin.formats.blocks.repack import to_pq2_0

pytestmark = pytest.mark.row("SC.4", "SC.5")


def raw(text: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(text), np.uint8)


def repeated(scale: str, step: int, start: int, count: int) -> np.ndarray:
    field = bytes((step * i + start) % 256 for i in range(count))
    return np.frombuffer(bytes.fromhex(scale) + field, np.uint8)


def sums(weights: np.ndarray) -> tuple[Fraction, Fraction]:
    exact = [Fraction(float(w)) for w in weights]
    return sum(exact, Fraction(0)), sum((j * w for j, w in enumerate(exact)), Fraction(0))


Q1 = raw("66 2e 0b 30 55 7a 9f c4 e9 0e 33 58 7d a2 c7 ec 11 36")
G64 = raw("00 34 07 24 41 5e 7b 98 b5 d2 ef 0c 29 46 63 80 9d ba")
G128 = raw("55 35 03 38 6d a2 d7 0c 41 76 ab e0 15 4a 7f b4 e9 1e 53 88 bd f2 27 5c 91 c6 fb 30 65 9a cf 04 39 6e")
OXI = np.concatenate([G128[2:], G128[:2]])

# One ternary group in every container: weight e is 0.5 * (((e^2 + e // 7) mod 3) - 1).
GROUP = {
    "PQ2_0": "00 38 14 85 a6 89 20 50 14 9a 26 82 40 51 68 9a 08 02 45 a1 69 22 08 14 85 a6 89 20 50 14 9a 26 82 40",
    "TQ2_0_G128": "14 85 a6 89 20 50 14 9a 26 82 40 51 68 9a 08 02"
    "45 a1 69 22 08 14 85 a6 89 20 50 14 9a 26 82 40 00 38",
    "Q2_0": "00 38 14 85 a6 89 20 50 14 9a 26 82 40 51 68 9a 08 02"
    "00 38 45 a1 69 22 08 14 85 a6 89 20 50 14 9a 26 82 40",
    "PTQ1_0": "15 67 a8 05 70 5c 22 e3 ac 7b ca b6 a1 e4 29 ee 29 dd 05 52 3b 76 a7 39 ab 3d 00 38",
}
GROUP["Q2_0_G128"] = GROUP["PQ2_0"]
LONG = {
    "TQ2_0": "58 95 09 90 19 01 a0 2a 12 21 62 56 25 42 64 06 80 a8 4a 84 88 58 95 09 90 19 01 a0 2a 12 21 62"
    "09 90 19 01 a0 2a 12 21 62 56 25 42 64 06 80 a8 4a 84 88 58 95 09 90 19 01 a0 2a 12 21 62 56 25 00 38",
    "TQ1_0": "47 82 90 11 98 58 1c f8 b7 6b c2 d6 85 b0 33 c8 09 53 e7 23 41 47 82 90 11 98 58 1c f8 b7 6b c2"
    "e4 29 ee 3d 35 f7 0d 50 15 67 a8 05 70 5c 22 e3 8f c1 e7 56 00 38",
}


def rule(n: int) -> np.ndarray:
    e = np.arange(n)
    return (((e * e + e // 7) % 3 - 1) * 0.5).astype(np.float32)


def test_q1_0() -> None:
    assert np.array_equal(Q1, repeated("66 2e", 37, 11, 16))
    w = by_name("Q1_0").decode(Q1)
    d = Fraction(0.0999755859375)
    assert (w[:8] > 0).tolist() == [True, True, False, True, False, False, False, False]
    assert (w[124:] > 0).tolist() == [True, True, False, False]
    assert (w > 0).sum() == 63 and set(np.abs(w)) == {float(d)}
    assert sums(w) == (-2 * d, -20 * d)


def test_q2_0() -> None:
    assert np.array_equal(G64, repeated("00 34", 29, 7, 16))
    w = by_name("Q2_0").decode(G64)
    assert w[:8].tolist() == [0.5, 0, -0.25, -0.25, -0.25, 0, 0.25, -0.25] and w[60:].tolist() == [
        0.25,
        0.25,
        0.5,
        0.25,
    ]
    assert [(w == v).sum() for v in (-0.25, 0, 0.25, 0.5)] == [17, 17, 17, 13]
    assert sums(w) == (Fraction("6.5"), Fraction("241.25"))


@pytest.mark.parametrize("name", ["PQ2_0", "Q2_0_G128"])
def test_blocks_of_128_with_the_scale_first(name: str) -> None:
    assert np.array_equal(G128, repeated("55 35", 53, 3, 32))
    w = by_name(name).decode(G128)
    d = 0.333251953125
    assert [w[0], w[1], w[5]] == [0.66650390625, -d, d] and w[124:].tolist() == [d, 2 * d, d, 0]
    assert [(w == c * d).sum() for c in (-1, 0, 1, 2)] == [33, 32, 31, 32]
    assert sums(w) == (Fraction("20.66162109375"), Fraction("1419.6533203125"))


def test_blocks_of_128_with_the_scale_last() -> None:
    w = by_name("TQ2_0_G128").decode(OXI)
    d = 0.333251953125
    assert w[:8].tolist() == [0, -d, -d, -d, -d, d, 0, -d] and w[124:].tolist() == [d, 0, d, 0]
    assert sums(w) == (Fraction("-0.66650390625"), Fraction("17.99560546875"))


@pytest.mark.parametrize("name", [*GROUP, *LONG])
def test_one_ternary_rule_in_every_container(name: str) -> None:
    fmt, bytes_ = by_name(name), raw((GROUP | LONG)[name])
    w = rule(128 if name in GROUP else 256)
    assert np.array_equal(fmt.decode(bytes_), w)
    assert fmt.encode(w).tobytes() == bytes_.tobytes()
    assert sums(w) == ((Fraction("-3.5"), Fraction("-259.5")) if name in GROUP else (Fraction(-7), Fraction("-1024.5")))


def test_ptq1_0_extreme_bytes() -> None:
    fmt = by_name("PTQ1_0")
    for value, qs, qh in ((1.0, 255, 253), (-1.0, 0, 0)):
        field = fmt.encode(np.full(128, value, np.float32))
        assert set(field[:24]) == {qs} and set(field[24:26]) == {qh}
    zeros = fmt.encode(np.zeros(128, np.float32))
    assert set(zeros[:24]) == {128} and set(zeros[24:26]) == {127} and not zeros[26:].any()


def test_quantisers() -> None:
    ramp = ((np.arange(128) - 63.5) / 64).astype(np.float32)
    assert by_name("Q1_0").encode(ramp).tobytes() == bytes.fromhex("00 38" + "00" * 8 + "ff" * 8)
    ties = np.tile(np.array([0.5, -0.5, 0.25, -0.25, 0.2499, -0.2499, 0, 0.375], np.float32), 8)
    assert by_name("Q2_0").encode(ties).tobytes() == bytes.fromhex("00 38" + "22 95" * 8)


@pytest.mark.parametrize(
    ("value", "bits"),
    [(0.1, 0x2E66), (1 / 3, 0x3555), (65519, 0x7BFF), (6e-8, 0x0001), (2.9e-8, 0)],
)
def test_f16_rounding(value: float, bits: int) -> None:
    assert by_name("F16").encode(np.array([value], np.float32)).view("<u2")[0] == bits


def test_f16_is_the_ieee_format() -> None:
    every = np.arange(65536, dtype="<u2").view(np.uint8)
    decoded = by_name("F16").decode(every)
    expected = np.array([v for (v,) in struct.iter_unpack("<e", every.tobytes())], np.float32)
    assert np.array_equal(decoded, expected, equal_nan=True)
    halfway = by_name("F16").encode(np.array([2049, 2051], np.float32))
    assert by_name("F16").decode(halfway).tolist() == [2048, 2052]


# ---- decoders that are wrong in the ways that have been shipped: the vectors must tell every one of them apart


def big_end_first(block: np.ndarray) -> np.ndarray:
    d = block[:2].view("<f2")[0]
    return (np.unpackbits(block[2:]) * 2.0 - 1) * d


def sign_inverted(block: np.ndarray) -> np.ndarray:
    d = block[:2].view("<f2")[0]
    return (1 - np.unpackbits(block[2:], bitorder="little") * 2.0) * d


def sequential_trits(block: np.ndarray) -> np.ndarray:
    digits = [int(b) * 3 ** (n + 1) // 256 % 3 - 1 for b in block[:24] for n in range(5)]
    digits += [int(b) * 3 ** (n + 1) // 256 % 3 - 1 for b in block[24:26] for n in range(4)]
    return np.array(digits) * float(block[26:].view("<f2")[0])


def high_pair_first(block: np.ndarray) -> np.ndarray:
    pairs = block[2:, None] >> np.array([6, 4, 2, 0], np.uint8) & 3
    return (pairs.astype(int).ravel() - 1) * float(block[:2].view("<f2")[0])


def plain_order_of_pairs(block: np.ndarray) -> np.ndarray:
    pairs = block[:64, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    return (pairs.astype(int).ravel() - 1) * float(block[64:].view("<f2")[0])


@pytest.mark.parametrize(
    ("name", "vector", "wrong"),
    [
        ("Q1_0", Q1, big_end_first),
        ("Q1_0", Q1, sign_inverted),
        ("PTQ1_0", raw(GROUP["PTQ1_0"]), sequential_trits),
        ("PQ2_0", G128, high_pair_first),
        ("PQ2_0", G128, by_name("TQ2_0_G128").decode),
        ("TQ2_0_G128", OXI, by_name("PQ2_0").decode),
        ("TQ2_0_G128", OXI, lambda b: by_name("PQ2_0").decode(np.roll(b, 2))),
        ("TQ2_0", raw(LONG["TQ2_0"]), plain_order_of_pairs),
    ],
)
def test_the_vectors_catch_wrong_decoders(name: str, vector: np.ndarray, wrong: object) -> None:
    assert callable(wrong)
    assert sums(by_name(name).decode(vector)) != sums(wrong(vector))


# ---- lossless repacks


@pytest.mark.parametrize("name", [*GROUP, *LONG])
def test_every_ternary_container_becomes_the_same_pq2_0(name: str) -> None:
    source = by_name(name)
    w = np.stack([rule(256), -rule(256), rule(256)[::-1]])
    packed = to_pq2_0(source.encode(w), source)
    assert packed is not None and packed.shape == (3, 68)
    assert np.array_equal(packed, by_name("PQ2_0").encode(w))


def test_repack_keeps_code_11_as_each_dialect_means_it() -> None:
    pq2 = by_name("PQ2_0")
    both = np.concatenate([G64, G64])[None]
    for name, row in (("Q2_0", both), ("Q2_0_G128", G128[None]), ("TQ2_0_G128", OXI[None])):
        packed = to_pq2_0(row, by_name(name))
        assert packed is not None
        assert np.array_equal(pq2.decode(packed), by_name(name).decode(row)), name
    oxi = to_pq2_0(OXI[None], by_name("TQ2_0_G128"))
    assert oxi is not None and not np.array_equal(oxi[0], G128)
    threes = np.concatenate([np.full(64, 0xFF, np.uint8), raw("00 38")])[None]
    packed = to_pq2_0(threes, by_name("TQ2_0"))
    assert packed is not None and (pq2.decode(packed) == 1).all()


def test_repack_refuses_what_would_lose_something() -> None:
    q2 = by_name("Q2_0")
    other = G64.copy()
    other[0] ^= 1
    assert to_pq2_0(np.concatenate([G64, other])[None], q2) is None
    assert to_pq2_0(G64[None], q2) is None
    # Two rows of three blocks: the pairs would fit only across the row boundary.
    assert to_pq2_0(np.tile(G64, (2, 3)), q2) is None
    for name in ("Q1_0", "Q4_0", "F16", "Q2_K"):
        fmt = FORMATS[name]
        assert to_pq2_0(np.zeros((1, fmt.nbytes(256)), np.uint8), fmt) is None
