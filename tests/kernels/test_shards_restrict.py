"""A target's processors over shards: transformers' own on the whole row, for every split."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers.generation import logits_process as stock

from draftwire.exact.quantise import weights as exact_weights
from draftwire.kernels.shards import restrict
from draftwire.kernels.shards.emulator import emulate
from draftwire.kernels.shards.shard import Shard, Steps, shards_at
from draftwire.wire.registry import TOTAL
from tests.kernels.sharded import Split, columns, splits

Scores = NDArray[np.float32]
Restriction = Callable[[Shard, Scores], Steps[Scores]]
NEAR = 2e-6  # of the mass: what binary32 sums over a row may be wrong by


def sharded(split: Split, scores: Scores, restriction: Restriction) -> Scores:
    parts = [restriction(shard, columns(scores, shard)) for shard in split]  # type: ignore[arg-type]
    return np.concatenate(emulate(parts), axis=1)


def stocked(processor: object, scores: Scores, prefix: list[int] | None = None) -> Scores:
    ids = torch.tensor([prefix or [0]] * len(scores))
    out: Scores = processor(ids, torch.from_numpy(scores.copy())).numpy()  # type: ignore[operator]
    return out


def rows(vocab_size: int, count: int, seed: int) -> Scores:
    """Ties, masked ids, flat and peaked rows."""
    rng = np.random.default_rng(seed)
    scores = np.round(rng.standard_normal((count, vocab_size)) * 12) / 4
    scores[::3] *= 6
    scores[1::4][rng.random(scores[1::4].shape) < 0.3] = -np.inf
    scores[:, 0] = 0.0
    return scores.astype(np.float32)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_top_k_is_that_of_transformers_bit_for_bit(count: int) -> None:
    rng = np.random.default_rng(count)
    for vocab_size, top_k in product((5, 64, 1001), (1, 3, 50, 2000)):
        scores = rows(vocab_size, 12, count)
        expected = stocked(stock.TopKLogitsWarper(top_k), scores)
        for split in splits(vocab_size, count, rng):
            found = sharded(split, scores, lambda s, x, k=top_k: restrict.keep_top_k(s, x, k))
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("penalty", [0.7, 1.3, 2.0])
def test_the_repetition_penalty_is_that_of_transformers_bit_for_bit(penalty: float) -> None:
    rng = np.random.default_rng(4)
    prefix = [3, 900, 3, 17, 0, 500]
    scores = rng.standard_normal((6, 1001)).astype(np.float32)
    expected = stocked(stock.RepetitionPenaltyLogitsProcessor(penalty), scores, prefix)
    for count in (1, 2, 3, 4, 7):
        for split in splits(1001, count, rng):
            parts = [
                restrict.penalise(shard, columns(scores, shard), [prefix] * 6, penalty)  # type: ignore[arg-type]
                for shard in split
            ]
            np.testing.assert_array_equal(np.concatenate(parts, axis=1), expected)


def border(scores: Scores, found: Scores, expected: Scores, top: float) -> None:
    """The two differ only for ids that lie within NEAR of the border."""
    wide = scores.astype(np.float64)
    p = np.exp(wide - wide.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    for row, token in zip(*np.nonzero(np.isneginf(found) != np.isneginf(expected)), strict=True):
        above = p[row][p[row] > p[row, token]].sum()
        with_equals = p[row][p[row] >= p[row, token]].sum()
        assert above - NEAR <= top <= with_equals + NEAR


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_top_p_differs_from_transformers_only_at_the_border(count: int) -> None:
    """And for ids that equal one at the border, of which its sort keeps any."""
    rng = np.random.default_rng(count)
    same = of = 0
    for vocab_size, top_p in product((5, 64, 1001), (1e-9, 0.1, 0.5, 0.9, 0.999)):
        tied = rows(vocab_size, 24, count)
        for scores in (tied, tied + rng.standard_normal(tied.shape).astype(np.float32)):
            expected = stocked(stock.TopPLogitsWarper(top_p), scores)
            for split in splits(vocab_size, count, rng):
                found = sharded(split, scores, lambda s, x, t=top_p: restrict.keep_top_p(s, x, t))
                border(scores, found, expected, top_p)
                if scores is not tied:
                    same += int((found == expected).all(axis=1).sum())
                    of += len(scores)
    assert same >= 0.99 * of


@pytest.mark.parametrize("min_p", [0.01, 0.3, 1.0])
def test_min_p_is_that_of_transformers(min_p: float) -> None:
    """No weight of these rows is within binary32 rounding of the border, but the largest."""
    rng = np.random.default_rng(9)
    scores = rows(1001, 24, 9)
    expected = stocked(stock.MinPLogitsWarper(min_p), scores)
    for count in (1, 2, 7):
        for split in splits(1001, count, rng):
            found = sharded(split, scores, lambda s, x: restrict.keep_min_p(s, x, min_p))
            np.testing.assert_array_equal(found, expected)


def test_top_p_by_enumeration_is_the_smallest_set_with_the_mass() -> None:
    """All rows of four ids on a grid of logits, all splits into three: exact fractions."""
    grid = (-np.inf, -1.5, 0.0, 2.0)
    scores = np.array([row for row in product(grid, repeat=4) if max(row) > -np.inf], np.float32)
    tickets = TOTAL // 3
    kept = []
    for row in scores.tolist():
        weights = exact_weights(row, 1.0)
        order = sorted(range(4), key=lambda token: (-weights[token], token))
        keep, mass = set(), Fraction(0)
        while mass < Fraction(tickets, TOTAL) * sum(weights):
            token = order[len(keep)]
            keep.add(token)
            mass += weights[token]
        kept.append([token in keep for token in range(4)])
    expected = np.where(kept, scores, -np.inf)
    for first, second in product(range(5), repeat=2):
        if first <= second:
            split = shards_at(4, (first, second))
            found = sharded(split, scores, lambda s, x: restrict.keep_top_p(s, x, tickets / TOTAL))
            np.testing.assert_array_equal(found, expected)


def test_rows_that_will_be_refused_stay_as_they_are() -> None:
    scores = np.array([[np.nan, 1, 2], [np.inf, 0, 0], [-np.inf] * 3], np.float32)
    for split in (shards_at(3, ()), shards_at(3, (1,)), shards_at(3, (0, 2))):
        for restriction in (restrict.keep_top_p, restrict.keep_min_p):
            found = sharded(split, scores, lambda s, x, r=restriction: r(s, x, 0.5))
            np.testing.assert_array_equal(found, scores)
