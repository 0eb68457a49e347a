"""Draw, acceptance, correction and bonus, every decision exact (A16-A20)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.exact.counts import Counts
from draftwire.exact.decide import below, locate
from draftwire.exact.quantise import check_weights
from draftwire.exact.words import WORD_BITS, Address, Domain, WordSource


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a round ended: drafts accepted, and the token that follows them.

    token: the correction at the first rejected draft, or the bonus after all of them.
    """

    accepted: int
    token: int
    outcome: Literal["correction", "bonus"]


def draw(counts: Counts, words: Iterator[int], bits: int = WORD_BITS) -> int:
    """The proposed token: the first id whose cumulative count is above the word (A16).

    Law: token v with probability ``counts.of(v) / counts.total`` exactly.
    """
    ticket = below(counts.total, words, bits)
    return counts.ids[bisect_right(list(accumulate(counts.counts)), ticket)]


def accept(
    p: Sequence[int], counts: Counts, token: int, words: Iterator[int], bits: int = WORD_BITS
) -> bool:
    """Whether the draft stands: U < min(1, p(token) / q(token)) (A18).

    p: V integer weights. Law: true with probability min(1, p/q) exactly; no word is read where that
    is 0 or 1. Errors: ArithmeticRefusalError as in A11, ZERO_Q, OUT_OF_RANGE (token, width).
    """
    _check_row(p, counts)
    _check_draft(counts, token)
    ours = p[token] * counts.total
    theirs = counts.of(token) * sum(p)
    if ours == 0:
        return False
    if ours >= theirs:
        return True
    return locate([ours], theirs, words, bits) == 0


def correction(
    p: Sequence[int], counts: Counts, words: Iterator[int], bits: int = WORD_BITS
) -> int:
    """The token after a rejection, from max(p - q, 0) over the full vocabulary (A19).

    Law: token v with probability ``r_v / sum(r)`` exactly; an id with r = 0 is never drawn.
    Errors: ArithmeticRefusalError as in A11, OUT_OF_RANGE (width), ZERO_RESIDUAL where p = q.
    """
    _check_row(p, counts)
    mass = sum(p)
    residual = [weight * counts.total for weight in p]
    for token, count in zip(counts.ids, counts.counts, strict=True):
        residual[token] = max(residual[token] - count * mass, 0)
    if not any(residual):
        raise ArithmeticRefusalError(
            RefusalCode.ZERO_RESIDUAL, "a draft was rejected although p equals q"
        )
    return _categorical(residual, words, bits)


def target(p: Sequence[int], words: Iterator[int], bits: int = WORD_BITS) -> int:
    """A token from p alone: the bonus, or the token of a round without a proposal (A20).

    Law: token v with probability ``p[v] / sum(p)`` exactly. Errors: as in A11.
    """
    check_weights(p)
    return _categorical(p, words, bits)


def verify(
    rows: Sequence[Sequence[int]],
    proposal: Sequence[tuple[int, Counts]],
    source: WordSource,
    *,
    generation: int,
    round: int,
    first_position: int,
    bits: int = WORD_BITS,
) -> Verdict:
    """Judge a proposal of K >= 1 drafts against K + 1 rows of p (A18-A20).

    rows: integer weights, row i conditioned on the drafts before i. A row is looked at only when
    the drafts before it were accepted: what follows a rejected draft may be no distribution at all.
    Law: accepted drafts and the token after them are distributed as p alone, whatever the q.
    Errors: ArithmeticRefusalError as in A11, ZERO_Q, ZERO_RESIDUAL, OUT_OF_RANGE (shapes, tokens).
    """
    check_shape(len(rows), len(proposal))
    for token, counts in proposal:
        _check_draft(counts, token)
    for index, (token, counts) in enumerate(proposal):
        row, position = rows[index], first_position + index
        words = source.words(Address(generation, round, position, Domain.ACCEPTANCE))
        if not accept(row, counts, token, words, bits):
            words = source.words(Address(generation, round, position, Domain.CORRECTION))
            return Verdict(index, correction(row, counts, words, bits), "correction")
    depth = len(proposal)
    words = source.words(Address(generation, round, first_position + depth, Domain.BONUS))
    return Verdict(depth, target(rows[depth], words, bits), "bonus")


def check_shape(rows: int, depth: int) -> None:
    """Refuse a round that has not one row of p for each draft and one for the bonus."""
    if depth < 1 or rows != depth + 1:
        raise ArithmeticRefusalError(
            RefusalCode.OUT_OF_RANGE,
            f"K >= 1 drafts need K + 1 rows of p, not {rows} rows for {depth} drafts",
        )


def _categorical(weights: Sequence[int], words: Iterator[int], bits: int) -> int:
    edges = list(accumulate(weights))
    # U < 1 never reaches the last edge, the whole mass; equal edges pass over a zero weight.
    return locate(edges, edges[-1], words, bits)


def _check_row(p: Sequence[int], counts: Counts) -> None:
    check_weights(p)
    if len(p) != counts.vocab_size:
        raise ArithmeticRefusalError(
            RefusalCode.OUT_OF_RANGE, f"p has {len(p)} ids and q has {counts.vocab_size}"
        )


def _check_draft(counts: Counts, token: int) -> None:
    if not 0 <= token < counts.vocab_size:
        raise ArithmeticRefusalError(RefusalCode.OUT_OF_RANGE, "there is no such id")
    if counts.of(token) == 0:
        raise ArithmeticRefusalError(RefusalCode.ZERO_Q, "a draft has q = 0")
