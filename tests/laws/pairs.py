"""Targets and drafters as tables: rows that look arbitrary, differ by context and have holes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from fractions import Fraction
from itertools import product

from draftwire.exact.counts import Counts
from draftwire.exact.quantise import allocate, quantise
from draftwire.exact.words import philox4x32
from spec.oracle.laws import Tokens
from tests.laws.decoding import Pair


def counts_of(row: list[int] | tuple[int, ...]) -> Counts:
    """A whole row of counts, zeros included, as Counts."""
    ids = tuple(v for v, count in enumerate(row) if count)
    return Counts(len(row), sum(row), ids, tuple(row[v] for v in ids))


def constant(p: tuple[int, ...], q: tuple[int, ...]) -> Pair:
    """The same p (weights) and q (counts) after every context."""
    return Pair(lambda text: p, lambda text: counts_of(q))


def noise(salt: int, text: Tokens, size: int) -> list[int]:
    """``size`` reproducible 32-bit numbers that belong to a context."""
    context = 0
    for token in text[-2:]:
        context = context * 31 + token + 1
    lanes: list[int] = []
    for block in range(-(-size // 4)):
        lanes += philox4x32((block, context, len(text), salt), (1, 2))
    return lanes[:size]


def weights(salt: int, text: Tokens, vocab_size: int, largest: int, zeros: int) -> list[int]:
    """Integer weights up to ``largest``; about ``zeros`` in 8 are zero, never all of them."""
    row = [
        0 if lane % 8 < zeros else 1 + lane // 8 % largest for lane in noise(salt, text, vocab_size)
    ]
    return row if any(row) else [1] + [0] * (vocab_size - 1)


def logits(salt: int, text: Tokens, vocab_size: int) -> list[float]:
    """Binary32 logits between -3 and 3, about one in 8 of them -inf, never all of them."""
    lanes = noise(salt, text, vocab_size)
    row = [-float("inf") if lane % 8 == 0 else lane / 2**32 * 6 - 3 for lane in lanes]
    row[0] = max(row[0], 0.0)
    return [struct.unpack("<f", struct.pack("<f", z))[0] for z in row]


def dense(vocab_size: int, total: int, salt: int, *, zeros: int = 2) -> Pair:
    """Unrelated p and q, both with holes: q far from p, mass of each where the other has none."""
    return Pair(
        lambda text: weights(salt, text, vocab_size, 7, zeros),
        lambda text: counts_of(allocate(weights(salt + 1, text, vocab_size, 9, zeros), total)),
    )


def quantised(vocab_size: int, total: int, salt: int, *, limit: int = 0) -> Pair:
    """A drafter with logits, quantised by the real code; ``limit`` makes it sparse (A8)."""
    return Pair(
        lambda text: weights(salt, text, vocab_size, 7, 2),
        lambda text: quantise(logits(salt + 1, text, vocab_size), 0.75, limit=limit, total=total),
    )


def disjoint(vocab_size: int, total: int) -> Pair:
    """Q on the even ids, p on the odd ones; every draft is rejected."""
    return Pair(
        lambda text: [v % 2 * (1 + (v + len(text)) % 3) for v in range(vocab_size)],
        lambda text: counts_of(
            allocate([(1 - v % 2) * (1 + (v + len(text)) % 2) for v in range(vocab_size)], total)
        ),
    )


def equal(vocab_size: int, total: int, salt: int) -> Pair:
    """P and q are the same distribution; no draft is rejected."""

    def q(text: Tokens) -> Counts:
        return counts_of(allocate(weights(salt, text, vocab_size, 5, 2), total))

    return Pair(lambda text: [3 * count for count in q(text).dense()], q)


def greedy(vocab_size: int, total: int, salt: int) -> Pair:
    """A drafter that is sure of itself: all tickets on one id."""

    def q(text: Tokens) -> Counts:
        favourite = noise(salt + 1, text, 1)[0] % vocab_size
        return Counts(vocab_size, total, (favourite,), (total,))

    return Pair(lambda text: weights(salt, text, vocab_size, 7, 3), q)


def point_target(vocab_size: int, total: int, salt: int) -> Pair:
    """A target with one legal token after every context (and a drafter that does not know)."""
    pair = dense(vocab_size, total, salt)

    def p(text: Tokens) -> list[int]:
        legal = noise(salt + 2, text, 1)[0] % vocab_size
        return [3 if v == legal else 0 for v in range(vocab_size)]

    return Pair(p, pair.q)


FAMILIES: dict[str, Callable[[int, int], Pair]] = {
    "unrelated": lambda v, m: dense(v, m, 10),
    "holes": lambda v, m: dense(v, m, 20, zeros=5),
    "quantised": lambda v, m: quantised(v, m, 30),
    "sparse 1": lambda v, m: quantised(v, m, 40, limit=1),
    "sparse 2": lambda v, m: quantised(v, m, 50, limit=2),
    "disjoint": disjoint,
    "equal": lambda v, m: equal(v, m, 60),
    "greedy drafter": lambda v, m: greedy(v, m, 70),
    "one legal token": lambda v, m: point_target(v, m, 80),
}


# Rows for which words of few bits decide everything --------------------------------------------


def rows_of(total: int, vocab_size: int) -> list[tuple[int, ...]]:
    """Every row of ``vocab_size`` non-negative integers that sum to ``total``."""
    return [row for row in product(range(total + 1), repeat=vocab_size) if sum(row) == total]


def dyadic(x: Fraction) -> bool:
    """Whether finitely many binary digits write x."""
    return x.denominator & (x.denominator - 1) == 0


def terminates(p: tuple[int, ...], q: tuple[int, ...]) -> bool:
    """Whether finitely many words decide every question that p and q can raise."""
    mass, total = sum(p), sum(q)
    if not all(dyadic(Fraction(edge, mass)) for edge in p):
        return False
    ratios = [Fraction(a * total, c * mass) for a, c in zip(p, q, strict=True) if c]
    if not all(dyadic(min(ratio, Fraction(1))) for ratio in ratios):
        return False
    residual = [max(a * total - c * mass, 0) for a, c in zip(p, q, strict=True)]
    return not any(residual) or all(dyadic(Fraction(r, sum(residual))) for r in residual)


def terminating(vocab_size: int, mass: int, total: int) -> list[tuple[tuple[int, ...], ...]]:
    """Every (p, q) on the grid that terminates."""
    return [
        (p, q)
        for p in rows_of(mass, vocab_size)
        for q in rows_of(total, vocab_size)
        if terminates(p, q)
    ]


def terminating_pair(vocab_size: int, mass: int, total: int, salt: int) -> Pair:
    """A context-dependent pair made of such rows."""
    choice = terminating(vocab_size, mass, total)

    def at(text: Tokens) -> tuple[tuple[int, ...], ...]:
        return choice[noise(salt, text, 1)[0] % len(choice)]

    return Pair(lambda text: at(text)[0], lambda text: counts_of(at(text)[1]))
