"""Proposals: the very counts that were drawn from, each conditioned on the tokens before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from draftwire.drafter.propose import DraftJob, propose
from draftwire.exact.counts import Counts
from draftwire.exact.quantise import quantise as exact_quantise
from draftwire.exact.verify import draw as exact_draw
from draftwire.exact.words import Address, Domain, ProposalWords
from draftwire.kernels.rows import QRow
from draftwire.session.proposal import Draft
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TOTAL, Layout, Status
from testing.toys.models import ToyContext, ToyDrafter, mixed

V = 7
KEY = 0x0123456789ABCDEF

POLICIES = [
    ProposalPolicy(Layout.DENSE, 4, 1.0),
    ProposalPolicy(Layout.DENSE, 1, 0.7, top_k=3),
    ProposalPolicy(Layout.SPARSE, 5, 1.3, support=4),
    ProposalPolicy(Layout.SPARSE, 3, 1.0, support=5, top_p=TOTAL // 2, min_p=TOTAL // 100),
    ProposalPolicy(Layout.DENSE, 3, 0.0),
    ProposalPolicy(Layout.IDS_ONLY, 3, 0.0),
]


def job(
    engine: ToyDrafter, prefix: Sequence[int], policy: ProposalPolicy, *, round: int = 1
) -> DraftJob[ToyContext]:
    return DraftJob(engine.open(), tuple(prefix), policy, KEY, 1, round, len(prefix))


def counts_of(row: QRow) -> Counts:
    ids = range(row.vocab_size) if row.ids is None else row.ids.tolist()
    pairs = [(i, c) for i, c in zip(ids, row.counts.tolist(), strict=True) if c]
    return Counts(V, TOTAL, tuple(i for i, _ in pairs), tuple(c for _, c in pairs))


def expected(engine: ToyDrafter, context: Sequence[int], policy: ProposalPolicy) -> Counts:
    logits = np.log(np.asarray(engine.table(tuple(context)))).astype(np.float32)
    return exact_quantise(
        [float(z) for z in logits],
        policy.temperature,
        top_k=policy.top_k,
        top_p=policy.top_p,
        min_p=policy.min_p,
        limit=policy.support,
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_m55_every_row_is_conditioned_on_the_sampled_tokens_before_it(
    policy: ProposalPolicy,
) -> None:
    """Row i is q after prefix + x_1..x_i-1, and x_i is the draw from row i: all exactly."""
    engine = ToyDrafter(mixed(V, 1), V)
    prefix = (3, 1, 4)
    (draft,) = propose(engine, [job(engine, prefix, policy)])
    assert isinstance(draft, Draft)
    assert len(draft.tokens) == len(draft.rows) == policy.depth
    words = ProposalWords(KEY)
    for i, (token, row) in enumerate(zip(draft.tokens, draft.rows, strict=True)):
        counts = expected(engine, (*prefix, *draft.tokens[:i]), policy)
        assert counts_of(row) == counts
        address = Address(1, 1, len(prefix) + i, Domain.PROPOSAL)
        assert token == exact_draw(counts, words.words(address))


def test_m55_positions_drawn_independently_are_caught() -> None:
    """With a table that follows its last token, ignoring the sampled one shows in every row."""
    engine = ToyDrafter(mixed(V, 1), V)
    policy = POLICIES[0]
    (draft,) = propose(engine, [job(engine, (3, 1, 4), policy)])
    assert isinstance(draft, Draft)
    ignoring = [expected(engine, (3, 1, 4), policy) for _ in range(policy.depth)]
    assert [counts_of(row) for row in draft.rows][1:] != ignoring[1:]


def test_a_batch_draws_what_each_session_draws_alone() -> None:
    """Sessions of different prefixes, depths and policies, in any order."""
    engine = ToyDrafter(mixed(V, 2), V)
    prefixes = [(1,), (2, 3, 4, 5), (6, 0), (1, 1, 1), (2,), (5, 4)]
    cases = list(zip(prefixes, POLICIES, strict=True))
    alone = [propose(engine, [job(engine, *case)])[0] for case in cases]
    together = propose(engine, [job(engine, *case) for case in cases])
    backwards = propose(engine, [job(engine, *case) for case in reversed(cases)])[::-1]
    for drafts in (together, backwards):
        for one, other in zip(alone, drafts, strict=True):
            assert isinstance(one, Draft)
            assert isinstance(other, Draft)
            assert one.tokens == other.tokens
            assert list(map(counts_of, one.rows)) == list(map(counts_of, other.rows))
    assert max(engine.batches) == len(cases)


def test_the_last_draft_is_not_fed() -> None:
    engine = ToyDrafter(mixed(V, 1), V)
    one = job(engine, (3, 1, 4), POLICIES[0])
    (draft,) = propose(engine, [one])
    assert isinstance(draft, Draft)
    assert one.context.tokens == [3, 1, 4, *draft.tokens[:-1]]
    assert engine.extended == 3 + 3


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0])
@pytest.mark.parametrize("at", range(3))
def test_e49_a_bad_row_ends_its_own_session_alone(bad: float, at: int) -> None:
    """A row of session 0 is NaN, +inf or all -inf; the neighbour is untouched.

    Before anything was drawn that is a refusal; afterwards all tickets go to id 0, because whether
    a row is bad may follow from the draws before it (law 4).
    """

    def table(context: tuple[int, ...]) -> Sequence[float]:
        if context[0] == 0 and len(context) == 1 + at:
            return [bad] * V
        return mixed(V, 3)(context)

    engine = ToyDrafter(table, V)
    policy = POLICIES[0]
    refused, whole = propose(engine, [job(engine, (0,), policy), job(engine, (1,), policy)])
    if at == 0:
        assert refused is Status.REFUSED_ARITHMETIC
    else:
        good = ToyDrafter(mixed(V, 3), V)
        (unharmed,) = propose(good, [job(good, (0,), policy)])
        assert isinstance(refused, Draft) and isinstance(unharmed, Draft)
        assert refused.tokens == [*unharmed.tokens[:at], *[0] * (policy.depth - at)]
        for i, row in enumerate(refused.rows):
            mine = counts_of(row)
            assert mine == counts_of(unharmed.rows[i]) if i < at else mine.of(0) == mine.total
    assert isinstance(whole, Draft)
    (alone,) = propose(engine, [job(engine, (1,), policy)])
    assert isinstance(alone, Draft)
    assert whole.tokens == alone.tokens
    assert all(0 <= token < V for token in whole.tokens)


def test_d1_top_k_leaves_nothing_outside_and_the_token_comes_from_within() -> None:
    engine = ToyDrafter(mixed(8, 5), 8)
    policy = ProposalPolicy(Layout.DENSE, 6, 1.0, top_k=3)
    (draft,) = propose(engine, [DraftJob(engine.open(), (1,), policy, KEY, 1, 1, 1)])
    assert isinstance(draft, Draft)
    for token, row in zip(draft.tokens, draft.rows, strict=True):
        dense = np.zeros(8, dtype=np.int64)
        dense[slice(None) if row.ids is None else row.ids] = row.counts
        assert np.count_nonzero(dense) <= 3
        assert dense.sum() == TOTAL
        assert dense[token] > 0


def test_the_law_of_two_positions_by_all_words_of_a_grid() -> None:
    """q on quarters: all 16 pairs of words give exactly q(x_1) q(x_2 | x_1)."""
    rows = {(0,): (2, 1, 1), (0, 0): (1, 0, 3), (0, 1): (4, 0, 0), (0, 2): (1, 1, 2)}
    engine = ToyDrafter(lambda context: rows[context], 3)
    policy = ProposalPolicy(Layout.DENSE, 2, 1.0)

    class Fixed:
        def __init__(self, pair: tuple[int, int]) -> None:
            self.pair = pair

        def words(self, address: Address):  # type: ignore[no-untyped-def]
            yield self.pair[address.position - 1] * (TOTAL // 4)

    law: dict[tuple[int, ...], Fraction] = {}
    for first in range(4):
        for second in range(4):
            source = Fixed((first, second))
            one = DraftJob(engine.open(), (0,), policy, KEY, 1, 1, 1)
            (draft,) = propose(engine, [one], lambda key, source=source: source)  # type: ignore[misc]
            assert isinstance(draft, Draft)
            pair = tuple(draft.tokens)
            law[pair] = law.get(pair, Fraction(0)) + Fraction(1, 16)
    assert law == {
        (x, y): Fraction(rows[(0,)][x], 4) * Fraction(rows[(0, x)][y], 4)
        for x in range(3)
        for y in range(3)
        if rows[(0,)][x] and rows[(0, x)][y]
    }
