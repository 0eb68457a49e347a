"""Counts and draws over any split equal those of the whole row, bit for bit."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.kernels import cpu
from draftwire.kernels.rows import QRow
from draftwire.kernels.shards import quantise as shards_quantise
from draftwire.kernels.shards.emulator import emulate
from draftwire.kernels.shards.shard import OK, Shard, ShardRows, even_shards, shards_at
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TOTAL, Layout
from tests.kernels.rows_of_logits import adversarial
from tests.kernels.sharded import quantised, splits

COUNTS = (2, 3, 4, 7)
NUCLEUS = TOTAL // 4 * 3
POLICIES = (
    ProposalPolicy(Layout.DENSE, 1, 1.0),
    ProposalPolicy(Layout.DENSE, 1, 0.7),
    ProposalPolicy(Layout.DENSE, 1, 0.0),
    ProposalPolicy(Layout.DENSE, 1, 3.5, top_k=5),
    ProposalPolicy(Layout.DENSE, 1, 1.0, top_p=NUCLEUS),
    ProposalPolicy(Layout.DENSE, 1, 1.0, top_k=1, top_p=1),
    ProposalPolicy(Layout.DENSE, 1, 0.3, min_p=1 << 18),
    ProposalPolicy(Layout.SPARSE, 1, 1.0, support=3),
    ProposalPolicy(Layout.SPARSE, 1, 2.0, top_k=9, top_p=NUCLEUS, min_p=1 << 16, support=4),
    ProposalPolicy(Layout.SPARSE, 1, 0.0, support=2),
)


def rows_of(kind: int, count: int, size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Rows in which the work is: ties inside and across shards, tiny weights, few legal ids."""
    normal = rng.standard_normal((count, size))
    if kind == 0:
        rows = normal * rng.choice([0.01, 1, 4, 12], (count, 1))
    elif kind == 1:
        rows = np.round(normal * 2) / 2  # many equal logits, so many equal remainders
    elif kind == 2:
        rows = np.where(rng.random((count, size)) < 0.6, -np.inf, normal)
        rows[:, rng.integers(size)] = 0.0
    elif kind == 3:
        rows = rng.integers(0, 2, (count, size)) * np.float32(-0.0) + rng.integers(0, 2, (count, 1))
    elif kind == 4:
        rows = 1.0 + rng.integers(0, 3, (count, size)) * 2.0**-23
    else:
        rows = -26.34 * rng.random((count, size)) * rng.integers(0, 2, (count, size))
    return rows.astype(np.float32)


def unsharded(
    logits: NDArray[np.float32], policy: ProposalPolicy, words: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    counts = np.zeros(logits.shape, np.int32)
    tokens = np.empty(len(logits), np.int64)
    for index, row in enumerate(logits):
        q = cpu.quantise(row, policy)
        counts[index, slice(None) if q.ids is None else q.ids] = q.counts
        tokens[index] = cpu.draw(q, int(words[index]))
    return counts, tokens


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 33])
def test_counts_and_draws_equal_those_of_the_whole_row(size: int) -> None:
    """102,240 rows over the sizes, each over 2, 3, 4 and 7 shards, the kinds of split in turn."""
    rng = np.random.default_rng(size)
    for turn, (policy, kind) in enumerate(product(POLICIES, range(6))):
        logits = rows_of(kind, 284, size, rng)
        words = rng.integers(0, TOTAL, len(logits))
        words[:4] = [0, TOTAL - 1, 1, TOTAL // 2]
        counts, tokens = unsharded(logits, policy, words)
        for number in COUNTS:
            split = list(splits(size, number, rng))[(turn + number) % 3]
            found = quantised(split, logits, policy, words)
            np.testing.assert_array_equal(found[0], counts)
            np.testing.assert_array_equal(found[2], tokens)
            assert not found[1].any()


@pytest.mark.parametrize("size", [129, 1000])
def test_adversarial_rows(size: int) -> None:
    rng = np.random.default_rng(size)
    logits = np.stack(list(adversarial(size, rng)))
    words = rng.integers(0, TOTAL, len(logits))
    for policy in POLICIES:
        counts, tokens = unsharded(logits, policy, words)
        for number in (1, *COUNTS):
            for split in splits(size, number, rng):
                found = quantised(split, logits, policy, words)
                np.testing.assert_array_equal(found[0], counts)
                np.testing.assert_array_equal(found[2], tokens)


@pytest.mark.parametrize("size", [129_280, 262_144])
def test_real_vocabularies(size: int) -> None:
    """200 rows of each size, over 2 and 7 or 3 and 4 shards: dense, sparse, nucleus, top-k."""
    rng = np.random.default_rng(size)
    chosen = [POLICIES[0], POLICIES[4], ProposalPolicy(Layout.SPARSE, 1, 1.0, support=64)]
    chosen.append(ProposalPolicy(Layout.DENSE, 1, 1.0, top_k=5000))  # over MOST_CANDIDATES
    for turn in range(25):
        logits = rows_of(turn % 6, 8, size, rng)
        policy = chosen[turn % len(chosen)]
        words = rng.integers(0, TOTAL, len(logits))
        counts, tokens = unsharded(logits, policy, words)
        for number in ((2, 7), (3, 4))[turn % 2]:
            split = list(splits(size, number, rng))[turn % 3]
            found = quantised(split, logits, policy, words)
            np.testing.assert_array_equal(found[0], counts)
            np.testing.assert_array_equal(found[2], tokens)


def test_a_refused_row_touches_no_other_row() -> None:
    """NaN and +inf anywhere, -inf alone: each costs its own row, on every rank alike."""
    logits = np.zeros((6, 9), np.float32)
    logits[1, 8] = np.nan
    logits[2, 0] = np.inf
    logits[3] = -np.inf
    logits[4, 3] = -np.float32(np.nan)
    logits[5, :] = np.arange(9)
    words = np.full(6, 5, np.int64)
    good, _ = unsharded(logits[[0, 5]], POLICIES[0], words[:2])
    for policy in POLICIES:
        for split in (even_shards(9, 3), shards_at(9, [0, 9]), shards_at(9, [8, 8])):
            counts, status, tokens = quantised(split, logits, policy, words)
            non_finite, no_mass = RefusalCode.NON_FINITE, RefusalCode.ZERO_MASS
            assert status.tolist() == [OK, non_finite, non_finite, no_mass, non_finite, OK]
            assert not counts[1:5].any() and (tokens[1:5] == -1).all()
            if policy is POLICIES[0]:
                np.testing.assert_array_equal(counts[[0, 5]], good)


@pytest.mark.parametrize(
    "policy",
    [
        ProposalPolicy(Layout.DENSE, 1, 2.0**-15),
        ProposalPolicy(Layout.DENSE, 1, 1.0, top_p=0),
        ProposalPolicy(Layout.SPARSE, 1, 1.0),
        ProposalPolicy(Layout.DENSE, 1, 1.0, support=4),
        ProposalPolicy(Layout.IDS_ONLY, 1, 1.0),
    ],
)
def test_a_policy_that_cannot_be_is_refused_on_every_rank(policy: ProposalPolicy) -> None:
    with pytest.raises(ArithmeticRefusalError) as refused:
        quantised(even_shards(4, 2), np.zeros((1, 4), np.float32), policy, np.zeros(1))
    assert refused.value.code is RefusalCode.OUT_OF_RANGE


def test_columns_that_are_not_the_shards_are_refused() -> None:
    for logits in (np.zeros((1, 3), np.float32), np.zeros((1, 2))):
        with pytest.raises(ArithmeticRefusalError):
            emulate([shards_quantise.quantise(Shard(2, 0, 2), logits, POLICIES[0])])  # type: ignore[arg-type]


def test_every_word_draws_from_the_shard_that_holds_it() -> None:
    """Words on every edge of the cumulative counts, either side; empty shards never drawn from."""
    q = QRow(5, None, np.array([0, 3, 0, TOTAL - 4, 1], np.int32))
    edges = np.cumsum(q.counts)
    words = np.unique(np.clip(np.concatenate([edges - 1, edges, edges + 1]), 0, TOTAL - 1))
    expected = [cpu.draw(q, int(word)) for word in words]
    for cuts in product(range(6), repeat=2):
        split = shards_at(5, sorted(cuts))
        masses = np.array([[q.counts[s.begin : s.end].sum() for s in split]] * len(words), np.int64)
        ranks = [
            shards_quantise.draw(
                ShardRows(
                    shard,
                    np.tile(q.counts[shard.begin : shard.end], (len(words), 1)),
                    masses,
                    np.zeros(len(words), np.int64),
                ),
                words.astype(np.int64) if shard.leads else None,
            )
            for shard in split
        ]
        for drawn in emulate(ranks):
            assert drawn.tolist() == expected
