"""Random numbers that depend on nothing but (seed, choice, index): Philox4x32-10.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). NumPy's Philox is the 4x64
variant; the 4x32 variant is cheap on every device, so the same draw can be made where the logits are.
"""

from __future__ import annotations

__all__ = ["philox", "uniform"]

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Ten rounds over four 32-bit counter words under two 32-bit key words; four 32-bit words."""
    a, b, c, d = counter
    left, right = key
    for _ in range(_ROUNDS):
        first, second = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        a, b, c, d = (second >> 32) ^ b ^ left, second & _MASK, (first >> 32) ^ d ^ right, first & _MASK
        left, right = left + _KEY_STEPS[0] & _MASK, right + _KEY_STEPS[1] & _MASK
    return a, b, c, d


def uniform(seed: int, choice: int, index: int) -> float:
    """The draw for generated token ``index``: a float in [0, 1) with 53 random bits.

    A 64-bit seed fills the whole key, so the choice takes a word of the counter, beside the index: no two of
    (seed, choice, index) share a block.
    """
    counter = (index & _MASK, index >> 32 & _MASK, choice & _MASK, 0)
    high, low, _, _ = philox(counter, (seed & _MASK, seed >> 32 & _MASK))
    return float((high >> 5 << 26) + (low >> 6)) / 2.0**53
