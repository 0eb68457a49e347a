"""The law tests have teeth: every mutant of ``mutants.py`` changes the law, and by how much."""

from __future__ import annotations

import inspect
from fractions import Fraction as F

import pytest

from draftwire.exact.counts import Counts
from draftwire.exact.quantise import quantise
from spec.oracle.laws import Ending, Tokens, target_law
from tests.laws import mutants
from tests.laws.decoding import (
    Pair,
    Rules,
    first_token,
    fixed,
    law_by_rounds,
    law_over_all_words,
)
from tests.laws.pairs import constant, counts_of, dense, quantised

BF16_TIES = (1.0, 1.00390625, 0.99609375, -0.5)  # the first three round to 1.0 in bfloat16


def near_tied(text: Tokens) -> Counts:
    return quantise(BF16_TIES, 0.0078125, total=64)


def rounded_to_bf16(text: Tokens, counts: Counts) -> Counts:
    return quantise((1.0, 1.0, 1.0, -0.5), 0.0078125, total=64)


def top_three(text: Tokens, counts: Counts) -> Counts:
    order = sorted(counts.ids, key=lambda v: (-counts.of(v), v))[:3]
    kept = sorted((v, counts.of(v)) for v in order)
    return Counts(counts.vocab_size, sum(c for _, c in kept), *zip(*kept, strict=True))


def model_in_another_batch(text: Tokens, counts: Counts) -> Counts:
    row = counts.dense()
    shifted = [row[-1], *row[:-1]]
    return counts_of(shifted)


def first_likely(proposal: list[tuple[int, Counts]]) -> int:
    """How many leading drafts have a q above one half: "confident" by their own draw."""
    for index, (token, counts) in enumerate(proposal):
        if 2 * counts.of(token) <= counts.total:
            return index
    return len(proposal)


G21 = constant((1, 1, 0), (2, 1, 1))
UNEVEN = constant((1, 6, 3), (40, 33, 27))

MUTANTS: dict[str, tuple[Rules, Pair, int]] = {
    "R10 noise shared by proposal and correction": (
        mutants.CorrectionSharesTheProposalsNoise(),
        UNEVEN,
        3,
    ),
    "noise shared by proposal and acceptance": (
        mutants.AcceptanceSharesTheProposalsNoise(),
        UNEVEN,
        2,
    ),
    "noise shared by acceptance and correction": (
        mutants.CorrectionSharesTheAcceptancesNoise(),
        UNEVEN,
        2,
    ),
    "D1 q from before top-k": (
        mutants.DrawnFromAnother(top_three),
        dense(8, 64, 3, zeros=0),
        1,
    ),
    "D2 drawn in bfloat16, declared in binary32": (
        mutants.DrawnFromAnother(rounded_to_bf16),
        Pair(lambda text: (5, 3, 4, 1), near_tied),
        1,
    ),
    "residual over the sparse support only": (
        mutants.ResidualOverTheSparseSupport(),
        quantised(4, 16, 5, limit=2),
        2,
    ),
    "residual from q(x) only": (mutants.ResidualFromQOfXAlone(), dense(3, 8, 7), 2),
    "zero-filled top-k": (mutants.ZeroFilledTopK(2), dense(4, 16, 9, zeros=0), 2),
    "retrospective depth": (
        mutants.Retrospective(first_likely),
        constant((2, 1, 1), (5, 2, 1)),
        2,
    ),
    "M55 positions drawn independently": (
        mutants.IndependentPositions(),
        dense(3, 32, 13, zeros=0),
        2,
    ),
    "G21 forbidden token drawn anew": (mutants.ForbiddenTokenDrawnAnew(), G21, 1),
    "M57 point mass mixed with another q": (mutants.ResidualOfAPointMass(), dense(3, 8, 15), 2),
    "redraw under a reused key": (
        mutants.RedrawUnderAReusedKey(model_in_another_batch),
        dense(3, 32, 17, zeros=0),
        2,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_rejected(name: str) -> None:
    rules, pair, depth = MUTANTS[name]
    ending = Ending(2)
    right = target_law(pair.target, ending)
    assert law_by_rounds(Rules(), pair, fixed(depth), ending, draws=True) == right
    assert law_by_rounds(rules, pair, fixed(depth), ending, draws=True) != right


def test_d5_mutant_that_accepts_ties_is_rejected_over_all_words() -> None:
    pair, ending = constant((0, 2, 2), (2, 1, 1)), Ending(1)
    right = law_over_all_words(Rules(), pair, fixed(1), ending, 3)
    assert first_token(right, 3) == [0, F(1, 2), F(1, 2)]
    wrong = law_over_all_words(mutants.TieIsAccepted(), pair, fixed(1), ending, 3)
    # Token 0 has p = 0; it is drawn with 1/2 and its acceptance word is 0 with 1/8.
    assert first_token(wrong, 3)[0] == F(1, 16)


def test_two_steps_of_judgement_apart_are_the_real_ones() -> None:
    # The mutants that change one of the steps start from the right law.
    pair, ending = dense(3, 8, 7), Ending(3)
    law = law_by_rounds(mutants.OtherJudgement(), pair, fixed(2), ending)
    assert law == target_law(pair.target, ending)


def test_every_mutant_is_tried() -> None:
    tried = {type(rules) for rules, _, _ in MUTANTS.values()} | {mutants.TieIsAccepted}
    declared = {
        member
        for _, member in inspect.getmembers(mutants, inspect.isclass)
        if issubclass(member, Rules) and member.__module__ == mutants.__name__
    }
    assert declared - tried == {mutants.OtherJudgement}


# By how much, where the number is known ----------------------------------------------------------


def marginal(rules: Rules, pair: Pair, depth: int) -> list[F]:
    law = law_by_rounds(rules, pair, fixed(depth), Ending(1), draws=True)
    return first_token(law, len(pair.p(())))


def test_r10_one_word_for_draft_and_correction_gives_63_percent() -> None:
    assert marginal(Rules(), UNEVEN, 3) == [F(1, 10), F(6, 10), F(3, 10)]
    wrong = marginal(mutants.CorrectionSharesTheProposalsNoise(), UNEVEN, 3)
    assert wrong == [F(1, 10), F(63, 100), F(27, 100)]


def test_g21_forbidden_draft_is_an_ordinary_rejection() -> None:
    assert marginal(Rules(), G21, 1) == [F(1, 2), F(1, 2), 0]
    assert marginal(mutants.ForbiddenTokenDrawnAnew(), G21, 1) == [F(5, 8), F(3, 8), 0]


def test_m57_a_certain_draft_is_lossless_only_when_all_of_it_is_certain() -> None:
    # The same token judged as a point mass throughout gives p: the fault is the mixture.
    pair = constant((1, 2, 1), (2, 1, 1))
    for token in range(3):
        row = tuple(4 if v == token else 0 for v in range(3))
        assert marginal(Rules(), constant((1, 2, 1), row), 1) == [F(1, 4), F(1, 2), F(1, 4)]
    assert marginal(mutants.ResidualOfAPointMass(), pair, 1) == [F(1, 4), F(5, 12), F(1, 3)]
