"""A16-A20: each decision equals its definition, in fractions, at each number that words spell."""

import math
from fractions import Fraction
from itertools import product

import pytest

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.exact.counts import Counts
from draftwire.exact.quantise import integers
from draftwire.exact.verify import Verdict, accept, correction, draw, target, verify
from draftwire.exact.words import Address, Domain

from .digits import digits

BITS = 3
TOTAL = 8


def row_of(dense):
    ids = tuple(v for v, count in enumerate(dense) if count)
    return Counts(len(dense), sum(dense), ids, tuple(dense[v] for v in ids))


def compositions(total, size):
    for dense in product(range(total + 1), repeat=size):
        if sum(dense) == total:
            yield dense


class Scripted:
    """Words by domain and position; every other address has none."""

    def __init__(self, script, bits=BITS):
        self._script, self._bits = script, bits

    def words(self, address: Address):
        u = self._script.get((address.domain, address.position))
        return no_words() if u is None else digits(u, self._bits)


def no_words():
    raise AssertionError("a word was read where none is needed")
    yield


def chosen(masses, u):
    """The id whose interval of the cumulative masses holds u * sum."""
    point = u * sum(masses)
    cumulative = Fraction(0)
    for token, mass in enumerate(masses):
        cumulative += mass
        if point < cumulative:
            return token
    raise AssertionError("u is below 1")


def decided(masses, points):
    """The points that are no tie with an edge, or one that ends: others need words without end."""
    total = sum(masses)
    edges = {Fraction(sum(masses[: n + 1]), total) for n in range(len(masses))}
    return [u for u in points if u not in edges or not u.denominator & (u.denominator - 1)]


DYADIC = [Fraction(n, 64) for n in range(64)]  # every tie of these is decided
POINTS = sorted({Fraction(n, d) for d in (1, 7, 64) for n in range(d)})


def test_draw_gives_each_token_exactly_its_tickets():
    for dense in compositions(TOTAL, 3):
        tokens = [draw(row_of(dense), iter([word]), BITS) for word in range(TOTAL)]
        assert [tokens.count(v) for v in range(3)] == list(dense)
        assert tokens == sorted(tokens)


def test_accept_is_u_below_the_ratio():
    for p in ((1, 2, 3), (0, 1, 0), (5, 0, 2)):
        for dense in compositions(TOTAL, 3):
            counts = row_of(dense)
            for token in counts.ids:
                ratio = Fraction(p[token], sum(p)) / Fraction(dense[token], TOTAL)
                if ratio == 0 or ratio >= 1:
                    assert accept(p, counts, token, no_words(), BITS) is (ratio >= 1)
                    continue
                for u in decided([ratio, 1 - ratio], POINTS):
                    assert accept(p, counts, token, digits(u, BITS), BITS) is (u < ratio)


def test_correction_is_drawn_from_the_residual_over_the_full_vocabulary():
    for p in ((1, 2, 3), (0, 1, 0), (5, 0, 2)):
        for dense in compositions(TOTAL, 3):
            residual = [
                max(Fraction(a, sum(p)) - Fraction(c, TOTAL), 0)
                for a, c in zip(p, dense, strict=True)
            ]
            if not any(residual):
                continue
            for u in decided(residual, POINTS):
                token = correction(p, row_of(dense), digits(u, BITS), BITS)
                assert token == chosen(residual, u)
                assert residual[token] > 0


def test_target_is_drawn_from_p():
    for p in ((1, 2, 3), (0, 1, 0), (5, 0, 2), (0, 0, 0, 4)):
        for u in decided(p, POINTS):
            assert target(p, digits(u, BITS), BITS) == chosen(p, u)


def test_d4_a_greedy_drafter_on_a_token_of_no_mass_never_emits_it():
    p, counts = (3, 0, 5), row_of((0, TOTAL, 0))
    for u in DYADIC:
        source = Scripted({(Domain.CORRECTION, 4): u})
        verdict = verify(
            [p, p], [(1, counts)], source, generation=1, round=1, first_position=4, bits=BITS
        )
        assert verdict == Verdict(0, 0 if u < Fraction(3, 8) else 2, "correction")


def test_d5_no_mass_is_rejected_at_word_zero_and_the_residual_skips_empty_buckets():
    p, counts = (0, 2, 0, 0, 2, 0), row_of((4, 1, 1, 1, 1, 0))
    assert accept(p, counts, 0, iter([0, 0, 0]), BITS) is False
    assert accept(p, counts, 0, no_words(), BITS) is False
    for edge in range(TOTAL + 1):
        for u in (Fraction(edge, TOTAL), Fraction(edge, TOTAL) - Fraction(1, 512)):
            if 0 <= u < 1:
                token = correction(p, counts, digits(u, BITS), BITS)
                assert token == (1 if u < Fraction(1, 2) else 4)


def test_e48_p_equal_to_q_never_rejects():
    dense = (1, 3, 4)
    for token in range(3):
        assert accept(dense, row_of(dense), token, no_words(), BITS)
        scaled = [7 * count for count in dense]
        assert accept(scaled, row_of(dense), token, no_words(), BITS)


def test_a_residual_of_zero_mass_is_an_error():
    with pytest.raises(ArithmeticRefusalError) as refusal:
        correction((2, 6, 8), row_of((1, 3, 4)), digits(Fraction(0), BITS), BITS)
    assert refusal.value.code is RefusalCode.ZERO_RESIDUAL


def test_g24_a_biased_out_id_is_never_emitted_at_any_position():
    p = (3, 0, 5)  # a bias of minus infinity on id 1
    for dense in compositions(TOTAL, 3):
        counts = row_of(dense)
        for token in counts.ids:
            for u in DYADIC:
                script = {(domain, n): u for domain in Domain for n in range(3)}
                if token == 1:
                    assert not accept(p, counts, 1, digits(u, BITS), BITS)
                proposal = [(token, counts)] * 2
                verdict = verify(
                    [p] * 3, proposal, Scripted(script), generation=1, round=1,
                    first_position=0, bits=BITS,
                )  # fmt: skip
                assert verdict.token != 1
                assert token != 1 or verdict.accepted == 0


def test_g25_one_legal_token_is_always_the_token():
    p = (0, 0, 9)
    for dense in compositions(TOTAL, 3):
        counts = row_of(dense)
        for token in counts.ids:
            if token == 2:
                assert accept(p, counts, token, no_words(), BITS)
            else:
                assert not accept(p, counts, token, no_words(), BITS)
                assert correction(p, counts, no_words(), BITS) == 2
    assert target(p, no_words(), BITS) == 2


def test_d9_a_rejection_at_each_position_leaves_the_prefix_and_one_correction():
    p, counts = (4, 4), row_of((8, 0))
    half = Fraction(1, 2)
    for rejected in range(4):
        script = {
            (Domain.ACCEPTANCE, 10 + n): half if n == rejected else Fraction(0) for n in range(4)
        }
        script[Domain.CORRECTION, 10 + rejected] = Fraction(0)
        verdict = verify(
            [p] * 5, [(0, counts)] * 4, Scripted(script), generation=1, round=1,
            first_position=10, bits=BITS,
        )  # fmt: skip
        assert verdict == Verdict(rejected, 1, "correction")


def test_all_accepted_ends_in_a_bonus_at_the_next_position():
    p, counts = (4, 4), row_of((4, 4))
    source = Scripted({(Domain.BONUS, 12): Fraction(1, 2)})
    verdict = verify(
        [p] * 3, [(0, counts)] * 2, source, generation=1, round=1, first_position=10, bits=BITS
    )
    assert verdict == Verdict(2, 1, "bonus")


def test_a_row_after_a_rejected_draft_is_not_looked_at():
    source = Scripted({(Domain.CORRECTION, 0): Fraction(0)})
    dead_end = (0, 0)
    verdict = verify(
        [(0, 4), dead_end, dead_end], [(0, row_of((8, 0)))] * 2, source,
        generation=1, round=1, first_position=0, bits=BITS,
    )  # fmt: skip
    assert verdict == Verdict(0, 1, "correction")


def test_e49_a_row_that_is_no_distribution_is_refused():
    counts = row_of((4, 4))
    for bad, code in (
        ((0, 0), RefusalCode.ZERO_MASS),
        ((1, -1), RefusalCode.NEGATIVE_WEIGHT),
        ((1.0, math.nan), RefusalCode.NON_FINITE),
        ((math.inf, 1.0), RefusalCode.NON_FINITE),
        ((1, 1, 1), RefusalCode.OUT_OF_RANGE),
    ):
        for call in (
            lambda bad=bad: accept(bad, counts, 0, no_words(), BITS),
            lambda bad=bad: correction(bad, counts, no_words(), BITS),
        ):
            with pytest.raises(ArithmeticRefusalError) as refusal:
                call()
            assert refusal.value.code is code
    with pytest.raises(ArithmeticRefusalError):
        target(integers([1.0])[1:], no_words())


@pytest.mark.parametrize(
    ("rows", "proposal", "code"),
    [
        (1, [], RefusalCode.OUT_OF_RANGE),
        (1, [0], RefusalCode.OUT_OF_RANGE),
        (3, [0], RefusalCode.OUT_OF_RANGE),
        (2, [2], RefusalCode.OUT_OF_RANGE),
        (2, [-1], RefusalCode.OUT_OF_RANGE),
        (3, [0, 1], RefusalCode.ZERO_Q),
    ],
)
def test_a_proposal_that_is_none_is_refused_before_any_word(rows, proposal, code):
    counts = row_of((8, 0))
    with pytest.raises(ArithmeticRefusalError) as refusal:
        verify(
            [(1, 1)] * rows, [(token, counts) for token in proposal], Scripted({}),
            generation=1, round=1, first_position=0, bits=BITS,
        )  # fmt: skip
    assert refusal.value.code is code
