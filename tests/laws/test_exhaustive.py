"""The theorem, by enumeration: for any q that tokens are drawn from, the text has the target's law.

``==`` between laws is equality of fractions. Nothing here is sampled.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

import draftwire.exact.verify as real
from draftwire.exact.words import Address, Domain
from spec.oracle.laws import Ending, Tokens, draw_law, one_token_law
from tests.laws.decoding import (
    Pair,
    Round,
    Rules,
    assert_lossless,
    fixed,
    law_by_rounds,
    law_of_whole_texts,
    law_over_all_words,
)
from tests.laws.enumeration import AllWords, Choices, Points, explore, primitives_by_law
from tests.laws.pairs import (
    FAMILIES,
    constant,
    counts_of,
    dense,
    quantised,
    rows_of,
    terminating,
    terminating_pair,
)

REAL = Rules()


def one_round(pair: Pair, choices: Choices, bits: int) -> Tokens:
    return REAL.emit(Round(pair, 1, (), 1, AllWords(choices, bits), bits))


# Over literally all words ------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [1, 2, 3])
@pytest.mark.parametrize("vocab_size", [2, 3])
def test_one_draft_over_all_words_for_every_row_on_the_grid(vocab_size: int, bits: int) -> None:
    for p, q in terminating(vocab_size, 4, 4):
        pair = constant(p, q)
        law = explore(lambda choices, pair=pair: one_round(pair, choices, bits))  # type: ignore[misc]
        first: dict[int, Fraction] = {}
        for text, mass in law.items():
            first[text[0]] = first.get(text[0], Fraction(0)) + mass
        assert [first.get(v, Fraction(0)) for v in range(vocab_size)] == list(pair.target(()))
        assert list(one_token_law(pair.target(()), pair.drafter(()))) == list(pair.target(()))


@pytest.mark.parametrize(
    ("vocab_size", "mass", "total", "bits", "depth", "max_tokens"),
    [
        (2, 4, 4, 1, 1, 3),
        (2, 2, 2, 1, 2, 4),
        (2, 4, 4, 2, 2, 2),
        (2, 2, 2, 1, 3, 4),
        (3, 4, 4, 2, 1, 2),
        (3, 4, 4, 1, 2, 2),
        (4, 4, 8, 3, 1, 2),
    ],
)
@pytest.mark.parametrize("salt", [1, 2, 3])
def test_whole_texts_over_all_words(
    vocab_size: int, mass: int, total: int, bits: int, depth: int, max_tokens: int, salt: int
) -> None:
    pair = terminating_pair(vocab_size, mass, total, salt)
    ending = Ending(max_tokens)
    law = law_over_all_words(REAL, pair, fixed(depth), ending, bits)
    assert_lossless(law, pair, fixed(depth), ending)


# Over all decisions, for general rationals -------------------------------------------------------


@pytest.mark.parametrize(
    ("vocab_size", "total", "depth", "max_tokens"),
    [(3, 8, 0, 3), (3, 8, 1, 3), (4, 5, 1, 3), (2, 4, 2, 4), (3, 5, 2, 3), (2, 3, 3, 4)],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_law_by_tickets_is_the_targets(
    family: str, vocab_size: int, total: int, depth: int, max_tokens: int
) -> None:
    pair, ending = FAMILIES[family](vocab_size, total), Ending(max_tokens)
    law = law_by_rounds(REAL, pair, fixed(depth), ending)
    assert_lossless(law, pair, fixed(depth), ending)


@pytest.mark.parametrize(
    ("vocab_size", "total", "depth", "max_tokens"),
    [(2, 12, 3, 5), (3, 8, 2, 4), (3, 7, 3, 4), (4, 12, 2, 3), (4, 16, 3, 3)],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_law_by_tokens_is_the_targets(
    family: str, vocab_size: int, total: int, depth: int, max_tokens: int
) -> None:
    # As before with draws branching on tokens (see test_draw_has_the_law_of_its_counts).
    pair, ending = FAMILIES[family](vocab_size, total), Ending(max_tokens)
    law = law_by_rounds(REAL, pair, fixed(depth), ending, draws=True)
    assert_lossless(law, pair, fixed(depth), ending)


@pytest.mark.parametrize("family", FAMILIES)
def test_law_is_the_targets_with_all_rounds_from_one_source(family: str) -> None:
    # No address may be asked twice over the whole text; Points refuses it.
    pair, ending = FAMILIES[family](2, 3), Ending(3)
    law = law_of_whole_texts(REAL, pair, fixed(1), ending)
    assert_lossless(law, pair, fixed(1), ending)


def test_first_token_for_every_p_and_every_q_on_a_grid() -> None:
    # 21 target rows of mass 5 and 36 draft rows of 7 tickets over three ids: every pair of them.
    with primitives_by_law():
        for p in rows_of(5, 3):
            for q in rows_of(7, 3):
                pair = constant(p, q)

                def program(choices: Choices, pair: Pair = pair) -> int:
                    return REAL.emit(Round(pair, 1, (), 1, Points(choices), 24))[0]

                law = explore(program)
                assert [law.get(v, 0) for v in range(3)] == list(pair.target(()))


@pytest.mark.parametrize(("vocab_size", "total"), [(2, 4), (3, 5), (3, 8), (4, 6), (4, 8)])
def test_draw_has_the_law_of_its_counts(vocab_size: int, total: int) -> None:
    address = Address(1, 1, 0, Domain.PROPOSAL)
    with primitives_by_law():
        for row in rows_of(total, vocab_size):
            law = explore(lambda c, row=row: real.draw(counts_of(row), Points(c).words(address)))  # type: ignore[misc]
            assert [law.get(v, 0) for v in range(vocab_size)] == list(draw_law(row))


# Schedules that are fixed before the draw, and endings -------------------------------------------


def by_round(number: int, text: Tokens) -> int:
    """Depths 2, 0, 1, 2, 0, 1, ...: target-only rounds by a clock that no draw moves."""
    return (2, 0, 1)[(number - 1) % 3]


def by_text(number: int, text: Tokens) -> int:
    """A depth from committed tokens: known before the draw, however it depends on earlier ones."""
    return (sum(text) + len(text)) % 3


@pytest.mark.parametrize("schedule", [by_round, by_text])
@pytest.mark.parametrize("family", FAMILIES)
def test_depth_by_a_schedule_fixed_before_the_draw(family: str, schedule: object) -> None:
    pair, ending = FAMILIES[family](3, 5), Ending(4)
    law = law_by_rounds(REAL, pair, schedule, ending, draws=True)  # type: ignore[arg-type]
    assert_lossless(law, pair, schedule, ending)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "ending",
    [
        Ending(5, end_tokens=frozenset({0})),
        Ending(5, stops=((1, 0),)),
        Ending(5, stops=((2,), (0, 1, 0))),
        Ending(4, end_tokens=frozenset({2}), stops=((1, 1),)),
        Ending(1),
        Ending(2),
    ],
)
@pytest.mark.parametrize("family", ["unrelated", "quantised", "sparse 2", "equal"])
@pytest.mark.parametrize("depth", [2, 3])
def test_text_that_ends_inside_a_proposal(family: str, ending: Ending, depth: int) -> None:
    pair = FAMILIES[family](3, 8)
    law = law_by_rounds(REAL, pair, fixed(depth), ending, draws=True)
    assert_lossless(law, pair, fixed(depth), ending)
    for text in law:
        assert not any(ending.ended(text[:n]) for n in range(len(text)))


def test_large_totals_by_tokens() -> None:
    # M = 2^24 itself: too many tickets to branch on one by one, so draws are taken by their law.
    for pair in (dense(4, 1 << 24, 3), quantised(4, 1 << 24, 5), quantised(4, 1 << 24, 7, limit=2)):
        law = law_by_rounds(REAL, pair, fixed(2), Ending(3), draws=True)
        assert_lossless(law, pair, fixed(2), Ending(3))
