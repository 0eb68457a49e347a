"""Over shards the law is the target's and q is the oracle's, for every split; mutants are not."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

import spec.oracle.arithmetic as oracle
from draftwire.exact import quantise as whole
from draftwire.exact import shards
from draftwire.exact.words import Domain
from draftwire.kernels.shards import quantise as shards_quantise
from draftwire.kernels.shards import verify as shards_verify
from draftwire.kernels.shards.emulator import emulate
from draftwire.kernels.shards.shard import Shard, ShardRows, Steps, shards_at
from draftwire.kernels.shards.verify import Place, Rounds
from draftwire.wire.registry import TOTAL
from spec.oracle.laws import Ending, Tokens, draw_law
from testing.toys.enumeration import WordTree, law_of
from tests.laws.decoding import Pair, Round, assert_lossless, fixed, law_by_rounds
from tests.laws.decoding import law_over_all_words as over_all_words
from tests.laws.enumeration import AllWords, Choices, Points, explore
from tests.laws.pairs import FAMILIES, constant, logits, rows_of, terminating
from tests.laws.sharding import (
    MUTANTS_OF_COUNTS,
    MUTANTS_OF_LAWS,
    ShardRules,
    cut,
    shard_primitives_by_law,
    splits_of,
)

PLACE = Place(1, 1, 5)


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("widths", [(1, 1), (2, 0), (0, 1, 1), (1, 2), (2, 1), (0, 3), (1, 1, 1)])
def test_one_draft_over_all_words(widths: tuple[int, ...], bits: int) -> None:
    """Every p and q on the grid of quarters; the words take all their values."""
    rules, vocab_size = ShardRules(widths), sum(widths)
    for p, q in terminating(vocab_size, 4, 4):
        pair = constant(p, q)

        def program(choices: Choices, pair: Pair = pair) -> Tokens:
            return rules.emit(Round(pair, 1, (), 1, AllWords(choices, bits), bits))[:1]

        law = explore(program)
        assert [law.get((v,), Fraction(0)) for v in range(vocab_size)] == list(pair.target(()))


@pytest.mark.parametrize("widths", [(1, 2), (2, 0, 1)])
def test_whole_texts_over_all_words(widths: tuple[int, ...]) -> None:
    pair, ending = constant((1, 2, 1), (2, 1, 1)), Ending(2)
    law = over_all_words(ShardRules(widths), pair, fixed(1), ending, 2)
    assert_lossless(law, pair, fixed(1), ending)


@pytest.mark.parametrize("family", FAMILIES)
def test_whole_texts_by_decisions_for_every_split(family: str) -> None:
    """Two and three shards of three ids, every split; general rationals; depths 0, 1 and 2."""
    pair, ending = FAMILIES[family](3, 5), Ending(2)
    with shard_primitives_by_law():
        for number in (2, 3):
            for widths in splits_of(3, number):
                for depth in (0, 1, 2):
                    law = law_by_rounds(ShardRules(widths), pair, fixed(depth), ending)
                    assert_lossless(law, pair, fixed(depth), ending)


def test_the_sharded_draw_has_the_law_of_its_counts() -> None:
    with shard_primitives_by_law():
        for row in rows_of(5, 3):
            for widths in splits_of(3, 3):

                def program(choices: Choices, row: object = row, widths: object = widths) -> int:
                    parts = cut(row, widths)  # type: ignore[arg-type]
                    source = Points(choices)
                    return shards.draw(parts, source, PLACE.address(0, Domain.PROPOSAL), total=5)

                law = explore(program)
                assert [law.get(v, 0) for v in range(3)] == list(draw_law(row))


def test_the_sharded_q_is_the_oracles() -> None:
    """Support and tickets at small M, over every split into three shards."""
    policies = [
        {}, {"top_k": 2}, {"limit": 3}, {"top_p": 1 << 23}, {"min_p": 1 << 22},
        {"top_k": 4, "top_p": 12_000_000, "min_p": 1 << 19, "limit": 2},
    ]  # fmt: skip
    for salt, policy, total in product(range(6), policies, (7, 64)):
        row = logits(salt, (salt, 1), 5) if salt else [0.5, 0.5, -0.0, 0.0, 0.5]
        dense = oracle.quantise(row, Fraction(3, 4), total=total, **policy)
        assert whole.quantise(row, 0.75, total=total, **policy).dense() == dense
        for widths in splits_of(5, 3):
            parts = cut(row, widths)  # type: ignore[arg-type]
            found = shards.quantise(parts, 0.75, total=total, **policy)
            assert [count for shard in found for count in shard] == dense
            assert [len(shard) for shard in found] == list(widths)


# The kernels themselves, at M = 2^24, over all words of a grid ------------------------------------

GRID = 4
PAIRS = [
    ((1, 1, 2), (2, 1, 1)),
    ((2, 1, 1), (1, 1, 2)),
    ((4, 0, 0), (2, 0, 2)),
    ((1, 1, 2), (0, 2, 2)),
    ((1, 2, 1), (2, 2, 0)),
    ((0, 2, 2), (2, 2, 0)),
    ((1, 1, 2), (1, 1, 2)),
    ((0, 4, 0), (2, 0, 2)),
]


@pytest.mark.parametrize(("p", "q"), PAIRS)
@pytest.mark.parametrize("cuts", [(1,), (2,), (0,), (1, 1), (1, 2), (3, 3)])
def test_the_kernels_have_the_targets_law(
    p: tuple[int, ...], q: tuple[int, ...], cuts: tuple[int, ...]
) -> None:
    """One draft, drawn and judged over the shards: the first token has the law p exactly."""
    counts = np.array(q, np.int32) * (TOTAL // 4)
    split = shards_at(3, cuts)
    masses = np.array([[counts[s.begin : s.end].sum() for s in split]], np.int64)

    def rank(shard: Shard, tree: WordTree) -> Steps[int]:
        own = counts[None, shard.begin : shard.end]
        rows = ShardRows(shard, own, masses, np.zeros(1, np.int64))
        word = next(tree.words(PLACE.address(0, Domain.PROPOSAL))) if shard.leads else None
        words = None if word is None else np.array([word], np.int64)
        token = yield from shards_quantise.draw(rows, words)
        weights = np.tile(np.array(p, float)[shard.begin : shard.end], (1, 2, 1))
        rounds = Rounds(shard, weights, token[None], own[None])
        sources = [tree] if shard.leads else None
        found = yield from shards_verify.verify(rounds, [PLACE], sources)
        return int(token[0] if found.accepted[0] else found.tokens[0])

    def run(tree: WordTree) -> int:
        emitted = emulate([rank(shard, tree) for shard in split])
        assert len(set(emitted)) == 1
        return emitted[0]

    law = law_of(run, GRID)
    assert [law.get(v, Fraction(0)) for v in range(3)] == [Fraction(a, 4) for a in p]


# Mutants -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mutant", MUTANTS_OF_LAWS)
def test_a_mutant_changes_the_law(mutant: type[ShardRules]) -> None:
    pair, ending = constant((1, 4, 1, 2), (4, 0, 0, 4)), Ending(1)
    with shard_primitives_by_law():
        right = law_by_rounds(ShardRules((2, 2)), pair, fixed(1), ending)
        assert_lossless(right, pair, fixed(1), ending)
        wrong = law_by_rounds(mutant((2, 2)), pair, fixed(1), ending)
    with pytest.raises(AssertionError):
        assert_lossless(wrong, pair, fixed(1), ending)


@pytest.mark.parametrize("mutant", MUTANTS_OF_COUNTS)
def test_a_mutant_changes_the_counts(mutant: object) -> None:
    """Independent normalisation and per-shard leftovers give another q than the oracle's."""
    weights = [1] * 7
    right = oracle.allocate(weights, 16)
    parts = cut(weights, (2, 5))
    assert [c for own in shards.allocate(parts, 16) for c in own] == list(right)
    wrong = [c for own in mutant(parts, 16) for c in own]  # type: ignore[operator]
    assert sum(wrong) == 16 and wrong != list(right)
