"""Cases from the field at the level of laws and exact decisions, one test or more for each."""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from fractions import Fraction as F

import pytest

import draftwire.exact.verify as real
from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.exact.counts import TOTAL, Counts
from draftwire.exact.payload import decode_q, encode_q
from draftwire.exact.quantise import quantise
from draftwire.exact.words import KeyedWords, RequestKey
from draftwire.wire.registry import Layout
from spec.oracle.laws import Ending, Tokens, target_law
from tests.laws.decoding import (
    PROMPT,
    Pair,
    Round,
    Rules,
    assert_lossless,
    first_token,
    fixed,
    law_by_rounds,
)
from tests.laws.enumeration import Choices, Points, explore, primitives_by_law
from tests.laws.pairs import FAMILIES, constant, counts_of, dense, logits, quantised, weights

REAL = Rules()


def binary32(x: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", x))[0])


def bfloat16(x: float) -> float:
    """X rounded to bfloat16, ties to even, as the binary32 number it is."""
    bits = int(struct.unpack("<I", struct.pack("<f", x))[0])
    bits += 0x7FFF + (bits >> 16 & 1)
    return float(struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0])


def digest(counts: Counts) -> bytes:
    return hashlib.sha256(repr((counts.ids, counts.counts)).encode()).digest()


# Distribution ------------------------------------------------------------------------------------


def test_d1_top_k_counts_are_zero_outside_and_the_law_is_p() -> None:
    def q(text: Tokens) -> Counts:
        return quantise(logits(3, text, 8), 1.0, top_k=3, total=32)

    pair = Pair(lambda text: weights(4, text, 8, 7, 2), q)
    assert len(q(()).ids) == 3
    assert sum(q(()).counts) == 32
    assert_lossless(
        law_by_rounds(REAL, pair, fixed(2), Ending(2), draws=True), pair, fixed(2), Ending(2)
    )
    whole = quantise(logits(3, (), 8), 1.0, top_k=3)
    assert len(whole.ids) == 3
    assert sum(whole.counts) == TOTAL


def test_d2_rounded_once_drawn_from_those_counts_and_those_are_sent() -> None:
    near_tied = [bfloat16(z) for z in (2.0, 2.004, 1.997, 1.99, -3.0, 2.01)]
    counts = quantise(near_tied, binary32(0.7))
    sent = decode_q(encode_q(counts, Layout.DENSE, 0), Layout.DENSE, 6, 0, 6, counts.ids[0])
    assert sent == counts
    # Every ticket of a smaller total, through the real draw: the law of the draw is those counts.
    small = quantise(near_tied, binary32(0.7), total=256)
    drawn = Counter(real.draw(small, iter([ticket]), 8) for ticket in range(256))
    assert [drawn[v] for v in range(6)] == small.dense()


def test_d4_greedy_drafter_whose_token_the_target_forbids() -> None:
    counts = quantise([0.0, 1.0, 3.0, 3.0], 0.0)
    assert (counts.ids, counts.counts) == ((2,), (TOTAL,))
    pair = Pair(lambda text: (1, 2, 0, 5), lambda text: counts)
    law = law_by_rounds(REAL, pair, fixed(3), Ending(3), draws=True)
    assert_lossless(law, pair, fixed(3), Ending(3))
    assert all(2 not in text for text in law)


def test_d5_p_zero_is_rejected_even_at_word_zero() -> None:
    p, counts = (0, 3, 0, 5, 0), counts_of((4, 1, 1, 1, 1))
    for token in (0, 2, 4):
        assert not real.accept(p, counts, token, iter([0] * 8))


def test_d5_residual_skips_empty_buckets_on_every_edge() -> None:
    # Residual of (0, 3, 0, 5, 0)/8 and (4, 0, 4, 0, 0)/8 is p itself: ids 1 and 3 only.
    p, counts = (0, 3, 0, 5, 0), counts_of((4, 0, 4, 0, 0))
    drawn = [real.correction(p, counts, iter([word]), 3) for word in range(8)]
    assert drawn == [1, 1, 1, 3, 3, 3, 3, 3]
    for edge in (0, 3):  # the first word on each edge of the cumulative residual, in 24 bits
        word = edge << 21
        assert real.correction(p, counts, iter([word])) == (1 if edge == 0 else 3)
        if word:
            assert real.correction(p, counts, iter([word - 1])) == 1
    assert real.correction(p, counts, iter([(1 << 24) - 1])) == 3


def test_d5_draw_on_every_edge_of_the_cumulative_counts() -> None:
    counts = counts_of((0, 3, 0, 0, 4, 1, 0))
    assert [real.draw(counts, iter([w]), 3) for w in range(8)] == [1, 1, 1, 4, 4, 4, 4, 5]


def test_d7_nothing_changes_q_between_draw_and_verification() -> None:
    pair = FAMILIES["sparse 2"](4, 8)
    source = KeyedWords(RequestKey(7))
    this = Round(pair, 1, (), 3, source, 24)
    proposal = REAL.propose(this)
    before = [digest(counts) for _, counts in proposal]
    REAL.judge(this, proposal)
    assert [digest(counts) for _, counts in proposal] == before
    with pytest.raises(AttributeError):
        proposal[0][1].total = 1  # type: ignore[misc]


def test_d8_every_row_is_the_processed_p() -> None:
    # T = 0.1 and top_p = 0.1 on the target; the drafter knows nothing of it.
    def p(text: Tokens) -> list[int]:
        processed = quantise(logits(5, text, 4), binary32(0.1), top_p=round(0.1 * TOTAL))
        return processed.dense()

    pair = Pair(p, lambda text: quantise(logits(5, text, 4), 1.0, total=16))
    law = law_by_rounds(REAL, pair, fixed(3), Ending(4), draws=True)
    assert_lossless(law, pair, fixed(3), Ending(4))
    for text in law:
        for n, token in enumerate(text):
            assert p(text[:n])[token] > 0


@pytest.mark.parametrize("rejected", range(4))
def test_d9_rejection_at_every_position_in_turn(rejected: int) -> None:
    depth, favourite, instead = 4, 2, 0

    def p(text: Tokens) -> tuple[int, ...]:
        return (1, 0, 0) if len(text) == rejected else (0, 0, 1)

    sure = Counts(3, 8, (favourite,), (8,))
    pair = Pair(p, lambda text: sure)
    source = KeyedWords(RequestKey(1))
    proposal = REAL.propose(Round(pair, 1, (), depth, source, 24))
    verdict = real.verify(
        pair.rows((), proposal),
        proposal,
        source,
        generation=1,
        round=1,
        first_position=PROMPT,
    )
    assert (verdict.accepted, verdict.token, verdict.outcome) == (rejected, instead, "correction")
    # What each side appends to its committed prefix: own drafts by the accepted count, the token.
    drafters = [*(token for token, _ in proposal[: verdict.accepted]), verdict.token]
    verifiers = list(REAL.judge(Round(pair, 1, (), depth, source, 24), proposal))
    assert drafters == verifiers == [favourite] * rejected + [instead]


# Constraints -------------------------------------------------------------------------------------


def test_g21_each_row_has_its_own_mask() -> None:
    # Two requests with masks of their own; the one without a proposal goes on alone.
    masks = {"A": (1, 1, 0), "B": (0, 1, 1)}
    pairs = {
        name: Pair(lambda text, mask=mask: mask, lambda text: counts_of((2, 1, 1)))
        for name, mask in masks.items()
    }
    assert first_token(law_by_rounds(REAL, pairs["A"], fixed(0), Ending(1)), 3) == [
        F(1, 2),
        F(1, 2),
        0,
    ]
    assert first_token(law_by_rounds(REAL, pairs["B"], fixed(2), Ending(1)), 3) == [
        0,
        F(1, 2),
        F(1, 2),
    ]


def test_g21_grammar_by_context_masks_every_position() -> None:
    def p(text: Tokens) -> list[int]:
        row = weights(8, text, 3, 5, 0)
        row[text[-1] if text else 0] = 0  # no token twice in a row
        return row

    pair = Pair(p, lambda text: counts_of((2, 3, 3)))
    law = law_by_rounds(REAL, pair, fixed(2), Ending(4))
    assert_lossless(law, pair, fixed(2), Ending(4))
    assert all(a != b for text in law for a, b in zip((0, *text), text, strict=False))


def test_g24_biased_away_token_is_never_emitted_at_any_position() -> None:
    banned = 1
    pair = Pair(
        lambda text: [0 if v == banned else 1 + v for v in range(4)],
        lambda text: counts_of((1, 5, 1, 1)),
    )
    for depth in (1, 2, 3):
        law = law_by_rounds(REAL, pair, fixed(depth), Ending(3), draws=True)
        assert_lossless(law, pair, fixed(depth), Ending(3))
        assert all(banned not in text for text in law)


def test_g25_one_legal_token_is_that_token_at_every_position() -> None:
    pair = FAMILIES["one legal token"](4, 12)
    for depth in (0, 1, 2, 3):
        law = law_by_rounds(REAL, pair, fixed(depth), Ending(4), draws=True)
        assert list(law.values()) == [1]
        assert law == target_law(pair.target, Ending(4))


# Extremes ----------------------------------------------------------------------------------------


def test_e48_p_equal_to_q_never_rejects() -> None:
    pair = FAMILIES["equal"](3, 8)

    def program(choices: Choices) -> str:
        this = Round(pair, 1, (), 2, Points(choices), 24)
        proposal = REAL.propose(this)
        return real.verify(
            pair.rows((), proposal),
            proposal,
            this.source,
            generation=1,
            round=1,
            first_position=PROMPT,
        ).outcome

    with primitives_by_law():
        assert explore(program) == {"bonus": F(1)}
    with pytest.raises(ArithmeticRefusalError) as caught:
        real.correction((2, 1, 1), counts_of((4, 2, 2)), iter([0]))
    assert caught.value.code is RefusalCode.ZERO_RESIDUAL


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ([float("-inf")] * 3, RefusalCode.ZERO_MASS),
        ([0.0, float("nan"), 1.0], RefusalCode.NON_FINITE),
        ([float("nan")] * 3, RefusalCode.NON_FINITE),
        ([float("inf"), 0.0, 1.0], RefusalCode.NON_FINITE),
    ],
)
def test_e48_draft_rows_without_a_distribution_are_refused(
    row: list[float], code: RefusalCode
) -> None:
    with pytest.raises(ArithmeticRefusalError) as caught:
        quantise(row, 1.0)
    assert caught.value.code is code


@pytest.mark.parametrize(
    ("row", "code"),
    [((0, 0, 0), RefusalCode.ZERO_MASS), ((1, -1, 1), RefusalCode.NEGATIVE_WEIGHT)],
)
def test_e48_target_rows_without_a_distribution_are_refused(
    row: tuple[int, ...], code: RefusalCode
) -> None:
    with pytest.raises(ArithmeticRefusalError) as caught:
        real.target(row, iter([0]))
    assert caught.value.code is code


# Counting ----------------------------------------------------------------------------------------


def test_m55_each_q_is_conditioned_on_the_token_drawn_before_it() -> None:
    seen: list[Tokens] = []
    pair = dense(3, 8, 21)

    def q(text: Tokens) -> Counts:
        seen.append(text)
        return pair.q(text)

    def program(choices: Choices) -> bool:
        seen.clear()
        this = Round(Pair(pair.p, q), 1, (1,), 3, Points(choices), 24)
        drafts = tuple(token for token, _ in REAL.propose(this))
        return seen == [(1, *drafts[:i]) for i in range(3)]

    with primitives_by_law():
        assert explore(program) == {True: F(1)}


def test_m57_whole_proposal_is_dropped_and_the_law_stays() -> None:
    # A reply that lacks one q is a target-only round; that it lacks one depends on no draw.
    pair = quantised(3, 8, 33)

    def schedule(number: int, text: Tokens) -> int:
        return 0 if number == 2 else 2

    law = law_by_rounds(REAL, pair, schedule, Ending(4))
    assert_lossless(law, pair, schedule, Ending(4))


def test_constant_pair_is_what_it_says() -> None:
    assert constant((1, 3), (2, 2)).target(()) == [F(1, 4), F(3, 4)]
