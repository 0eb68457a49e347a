"""Decisions from words without rounding: bounded integers (A14) and exact comparisons (A15)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.exact.words import WORD_BITS


def below(bound: int, words: Iterator[int], bits: int = WORD_BITS) -> int:
    """An integer uniform in ``0..bound-1`` (A14).

    Law: exactly uniform when the words are independent and uniform over ``0..2^bits-1``.
    Errors: ArithmeticRefusalError OUT_OF_RANGE for a bound under 1.
    """
    if bound < 1:
        raise ArithmeticRefusalError(RefusalCode.OUT_OF_RANGE, f"no integer is below {bound}")
    count = words_below(bound, bits)
    fair = bound * ((1 << bits * count) // bound)
    while True:
        value = 0
        for _ in range(count):
            value = value << bits | next(words)
        if value < fair:
            return value % bound


def words_below(bound: int, bits: int = WORD_BITS) -> int:
    """Words that one attempt of ``below(bound)`` reads: the least n with 2^(bits*n) >= bound."""
    return -(-(bound - 1).bit_length() // bits)


@dataclass(frozen=True, slots=True)
class Undecided:
    """What is left of a ``locate`` when words so far did not decide it.

    U', the rest of U beyond the words read, is uniform in [0, 1); the answer is ``base`` plus the
    number of edges with ``edge / denominator <= U'``. Every edge lies strictly between 0 and the
    denominator, so the states that can follow one another are finitely many but for their ``base``.
    """

    base: int
    edges: tuple[int, ...]
    denominator: int


def begin(edges: Sequence[int], denominator: int) -> int | Undecided:
    """The state of a ``locate`` before the first word; an int when no word is needed (A15).

    edges: ascending, in 0..denominator. Errors: ArithmeticRefusalError OUT_OF_RANGE otherwise.
    """
    if denominator < 1:
        raise ArithmeticRefusalError(RefusalCode.OUT_OF_RANGE, "the denominator must be positive")
    if edges and (edges[0] < 0 or edges[-1] > denominator):
        raise ArithmeticRefusalError(
            RefusalCode.OUT_OF_RANGE, f"edges must lie in 0..{denominator}"
        )
    if any(low > high for low, high in pairwise(edges)):
        raise ArithmeticRefusalError(RefusalCode.OUT_OF_RANGE, "edges must be ascending")
    low = bisect_right(edges, 0)
    inside = tuple(edges[low : bisect_left(edges, denominator, low)])
    return Undecided(low, inside, denominator) if inside else low


def narrow(state: Undecided, word: int, bits: int = WORD_BITS) -> int | Undecided:
    """Read one more word: the answer, or what is still undecided (one step of A15).

    With U = (word + U') / 2^bits, ``e/D <= U`` is ``(e * 2^bits - word * D) / D <= U'``.
    """
    denominator = state.denominator
    offset = word * denominator
    # e * 2^bits <= offset: counted whatever follows. e * 2^bits >= offset + D: never counted.
    low = bisect_right(state.edges, offset >> bits)
    high = bisect_left(state.edges, -(-(offset + denominator) >> bits), low)
    inside = tuple((edge << bits) - offset for edge in state.edges[low:high])
    base = state.base + low
    return Undecided(base, inside, denominator) if inside else base


def locate(
    edges: Sequence[int], denominator: int, words: Iterator[int], bits: int = WORD_BITS
) -> int:
    """The number of edges with ``edge / denominator <= U``, U the words as a real number (A15).

    Law: answer i has probability ``(e_(i+1) - e_i) / denominator`` exactly, with e_0 = 0 and
    e_(n+1) = denominator. Words are read until the answer is decided.
    Errors: ArithmeticRefusalError OUT_OF_RANGE as in :func:`begin`.
    """
    state = begin(edges, denominator)
    while not isinstance(state, int):
        state = narrow(state, next(words), bits)
    return state
