"""A real number as words: what a law test feeds to a decision."""

from collections.abc import Iterator
from fractions import Fraction


def digits(u: Fraction, bits: int) -> Iterator[int]:
    """The base-2^bits digits of ``u`` in [0, 1), without end."""
    while True:
        u *= 1 << bits
        word = u.numerator // u.denominator
        yield word
        u -= word
