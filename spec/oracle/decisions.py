"""One draw and one round, decided by words, rules A16 to A22 of spec/arithmetic.md.

A target row is a sequence of non-negative rationals (weights; p is their normalisation). A draft
row is a sequence of counts over the whole vocabulary. ``words(position, domain)`` gives the words
of an address of this round.

The decisions take either kind of row as a mapping too, from an id to its weight or count: an id
that is not named has none, so a row of any vocabulary is as long as what it names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any

from spec.oracle.arithmetic import Refused
from spec.oracle.words import ACCEPTANCE, BONUS, CORRECTION, PROPOSAL, WORD_BITS, below, locate

Words = Callable[[int, int], Iterator[int]]
Row = Sequence[Fraction]
Weights = Sequence[Fraction] | Sequence[int] | Mapping[int, Fraction] | Mapping[int, int]


def normalise(row: Sequence[Fraction] | Sequence[int]) -> tuple[Fraction, ...]:
    """A17: p, the exact rational normalisation of the target's weights."""
    if any(a < 0 for a in row):
        raise Refused("NEGATIVE_WEIGHT")
    mass = sum(Fraction(a) for a in row)
    if mass == 0:
        raise Refused("ZERO_MASS")
    return tuple(Fraction(a) / mass for a in row)


def aligned(*rows: Any) -> tuple[Sequence[int], list[Sequence[Any]]]:
    """Ids in rising order, and each row's weights of them; all ids unless a row is a mapping.

    An id without weight in every row left out changes no decision: its intervals are empty.
    """
    if not any(isinstance(row, Mapping) for row in rows):
        return range(len(rows[0])), [row for row in rows if not isinstance(row, Mapping)]
    named = [row if isinstance(row, Mapping) else dict(enumerate(row)) for row in rows]
    ids = sorted({v for row in named for v, weight in row.items() if weight})
    return ids, [[Fraction(row.get(v, 0)) for v in ids] for row in named]


def draw(counts: Weights, words: Iterator[int], bits: int = WORD_BITS) -> int:
    """A16: the first id whose cumulative count is strictly greater than a uniform ticket."""
    ids, (row,) = aligned(counts)
    ticket = below(int(sum(row)), words, bits)
    return next(v for v, edge in zip(ids, accumulate(row), strict=True) if edge > ticket)


def sample(row: Weights, words: Iterator[int], bits: int = WORD_BITS) -> int:
    """A19, A20: an id from a row of weights, by the interval of the cumulative row that holds U."""
    ids, (weights,) = aligned(row)
    p = normalise(weights)
    edges = list(accumulate(p))[:-1]
    return ids[locate(edges, words, bits)]


def acceptance(p: Row, q: Row, token: int) -> Fraction:
    """A18: the probability with which the draft is accepted."""
    if q[token] == 0:
        raise Refused("ZERO_Q")
    return min(Fraction(1), p[token] / q[token])


def accept(p: Row, q: Row, token: int, words: Iterator[int], bits: int = WORD_BITS) -> bool:
    """A18: U < min(1, p(x) / q(x))."""
    return locate([acceptance(p, q, token)], words, bits) == 0


def residual(p: Row, q: Row) -> tuple[Fraction, ...]:
    """A19: max(p - q, 0) over the full vocabulary, not normalised."""
    left = tuple(max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True))
    if sum(left) == 0:
        raise Refused("ZERO_RESIDUAL")
    return left


@dataclass(frozen=True)
class Verdict:
    """How a round ended: drafts accepted, and the correction or bonus after them."""

    accepted: int
    token: int
    outcome: str


def verify(
    rows: Sequence[Weights],
    drafts: Sequence[int],
    counts: Sequence[Weights],
    words: Words,
    first_position: int,
    bits: int = WORD_BITS,
) -> Verdict:
    """A18 to A20: a proposal of K drafts against K + 1 target rows."""
    for i, token in enumerate(drafts):
        ids, (weights, row) = aligned(rows[i], counts[i])
        p, q = normalise(weights), normalise(row)
        position = first_position + i
        if token not in ids:
            raise Refused("ZERO_Q")
        if not accept(p, q, ids.index(token), words(position, ACCEPTANCE), bits):
            corrected = sample(residual(p, q), words(position, CORRECTION), bits)
            return Verdict(i, ids[corrected], "correction")
    last = first_position + len(drafts)
    bonus = sample(rows[len(drafts)], words(last, BONUS), bits)
    return Verdict(len(drafts), bonus, "bonus")


def audit(counts: Weights, token: int, words: Words, position: int, bits: int = WORD_BITS) -> bool:
    """A22: the token is the one that its own word draws from its own counts."""
    return draw(counts, words(position, PROPOSAL), bits) == token
