"""RoPE frequencies and tables against worked vectors."""

from __future__ import annotations

import numpy as np
import pytest

from shohin.errors import BadShape
from shohin.kernels.attend.reference import rotate
from shohin.models import Linear, Rope, Yarn

BONSAI = {
    "8B": Rope(1e6, 128, scaling=Yarn(4, 16384)),
    "4B": Rope(5e6, 128, scaling=Yarn(4, 8192)),
    "1.7B": Rope(1e6, 128, scaling=Yarn(4, 8192)),
}
PAIRS = (0, 20, 28, 37, 63)
# Worked out by hand; the shortest has eleven digits.
FREQUENCIES = {
    "8B": (1, 0.01333521432163324, 0.001534418280134, 8.495520822356e-05, 3.102344401879e-07),
    "4B": (1, 0.00604829739142, 0.00041045794593, 3.350410144046e-05, 6.362699470094e-08),
    "1.7B": (1, 0.01157025948495, 0.00122055999556, 8.495520822356e-05, 3.102344401879e-07),
}
AT_1000 = {
    0: (0.640341370518, 0.941509384968),
    20: (0.818350198206, 0.791694351298),
    28: (0.041411979504, 1.137876109572),
    37: (1.134522941975, 0.096616183495),
    63: (1.138629381318, 0.000353242060),
}


@pytest.mark.row("C42")
@pytest.mark.parametrize("name", BONSAI)
def test_yarn_frequencies_are_the_worked_ones(name: str) -> None:
    np.testing.assert_allclose(BONSAI[name].frequencies()[list(PAIRS)], FREQUENCIES[name], rtol=1.3e-11)


def test_yarn_mixes_pair_28_of_the_8b_by_nine_seventeenths() -> None:
    rope = BONSAI["8B"]
    own = 1e6 ** (-2 * 28 / 128)
    assert rope.frequencies()[28] == pytest.approx(own * 9 / 17 + own / 4 * 8 / 17, rel=1e-14)


@pytest.mark.row("C42", "M.6")
def test_cos_and_sin_at_1000_carry_the_magnitude() -> None:
    rope = BONSAI["8B"]
    assert rope.magnitude == pytest.approx(1.138629436111989, rel=1e-15)
    row = rope.table(1001, np.float64)[1000]
    for pair, (cos, sin) in AT_1000.items():
        assert row[pair] == pytest.approx(cos, abs=1e-12)
        assert row[64 + pair] == pytest.approx(sin, abs=1e-12)


def test_yarn_holds_from_the_first_position() -> None:
    row = BONSAI["8B"].table(1, np.float64)[0]
    assert (row[:64] == BONSAI["8B"].magnitude).all() and not row[64:].any()


def test_a_long_table_is_the_short_one_continued_and_rounded_once() -> None:
    rope = BONSAI["1.7B"]
    exact = rope.table(9000, np.float64)
    assert (rope.table(9000) == exact.astype(np.float32)).all()
    assert (rope.table(17, np.float64) == exact[:17]).all()
    angles = np.arange(9000)[:, None] * rope.frequencies()
    np.testing.assert_array_equal(exact, np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * rope.magnitude)


def test_linear_scaling_divides_positions() -> None:
    plain, scaled = Rope(1e4, 8), Rope(1e4, 8, scaling=Linear(2))
    np.testing.assert_allclose(scaled.table(9, np.float64)[8], plain.table(5, np.float64)[4], rtol=1e-14)
    assert scaled.magnitude == 1


def test_divisors_divide_pair_by_pair() -> None:
    divided = Rope(1e4, 8, divisors=(1, 2, 4, 8)).frequencies()
    np.testing.assert_allclose(divided * (1, 2, 4, 8), Rope(1e4, 8).frequencies(), rtol=1e-15)


@pytest.mark.parametrize(
    ("pairing", "expected"),
    [
        ("half", (-1.98411065, 1.95990067, 2.46237780, 4.01979967)),
        ("adjacent", (-1.14263966, 1.92207560, 2.95985067, 4.02979950)),
    ],
)
def test_the_table_rotates_as_the_parity_facts_say(pairing: str, expected: tuple[float, ...]) -> None:
    angles = Rope(1e4, 4, pairing).table(2, np.float64)[1:]
    found = rotate(np.array([[[1.0, 2.0, 3.0, 4.0]]]), angles, pairing)
    np.testing.assert_allclose(found[0, 0], expected, atol=5e-9)


@pytest.mark.parametrize("wrong", [{"dim": 7}, {"dim": 0}, {"base": 0.0}, {"base": np.nan}, {"divisors": (1.0,)}])
def test_impossible_rotations_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadShape, match="rope"):
        Rope(**({"base": 1e4, "dim": 8} | wrong))
