"""What crosses between ranks comes back as it was, and is no larger than it has to be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from draftwire.engines.hf import embedded_folder
from draftwire.engines.parallel.columns import load_columns
from draftwire.engines.parallel.commands import (
    numbers_of_rows,
    packed,
    rows_of_numbers,
    signed,
    unpacked,
    unsigned,
)
from draftwire.engines.parallel.target import RankedTargetEngine
from draftwire.kernels.rows import QRow
from draftwire.verifier.context import HasSettings
from draftwire.verifier.parallelism import Links, Parallelism, ShardingPlan
from draftwire.verifier.sampling import Sampling
from draftwire.wire.registry import TOTAL


@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (3, 5), (2, 4), (5, 129)])
def test_counts_cross_at_the_size_that_is_said_of_them(shape: tuple[int, int]) -> None:
    """4 bytes an id, as ``draftwire sizes`` says, and at most one number of 4 bytes to fill up."""
    counts = np.random.default_rng(1).integers(0, TOTAL + 1, shape).astype(np.int32)
    numbers = packed(counts)
    assert numbers.dtype == np.int64
    np.testing.assert_array_equal(unpacked(numbers, shape), counts)
    depth, width = shape
    said = ShardingPlan(Parallelism.VOCABULARY, Links.LEADER).fabric_bytes(width, depth, 1)
    assert 0 <= numbers.nbytes - said <= 4


@pytest.mark.parametrize("identifier", [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_identifiers_cross_as_signed_numbers(identifier: int) -> None:
    assert -(1 << 63) <= signed(identifier) < 1 << 63
    assert unsigned(signed(identifier)) == identifier


def sparse(vocab_size: int, *ids: int) -> QRow:
    counts = np.full(len(ids), TOTAL // len(ids), np.int32)
    counts[0] += TOTAL - int(counts.sum())
    return QRow(vocab_size, np.array(ids, np.int32), counts)


def dense(vocab_size: int) -> QRow:
    counts = np.zeros(vocab_size, np.int32)
    counts[vocab_size // 2] = TOTAL
    return QRow(vocab_size, None, counts)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [sparse(9, 4)],
        [sparse(9, 0, 8), sparse(9, 1, 2, 3)],
        [dense(9)],
        [dense(7), sparse(9, 3), dense(9), sparse(5, 0, 1, 2, 3, 4)],
    ],
)
def test_whole_qs_cross_as_they_are(rows: list[QRow]) -> None:
    numbers = numbers_of_rows(rows)
    assert numbers.dtype == np.int64
    again = rows_of_numbers(numbers, len(rows))
    for row, other in zip(rows, again, strict=True):
        assert row.vocab_size == other.vocab_size
        assert (row.ids is None) == (other.ids is None)
        assert row.exact() == other.exact()


def test_a_sparse_q_crosses_as_its_ids_and_counts() -> None:
    """K = 5, 32 ids of 129,280: 1.3 KB, where every rank was sent 2.6 MB."""
    rows = [sparse(129_280, *range(0, 32_000, 1000)) for _ in range(5)]
    assert numbers_of_rows(rows).nbytes == 5 * (8 + 32 * 8) == 1_320
    assert packed(np.zeros((5, 129_280), np.int32)).nbytes == 2_585_600
    whole = numbers_of_rows([dense(129_280)] * 5).nbytes
    assert whole == 2_585_600 + 5 * 8


class Alone:
    """A group of one rank."""

    rank, size = 0, 1

    def broadcast(self, values: Any) -> Any:
        return values


@pytest.mark.parametrize("parallelism", Parallelism)
def test_a_changed_processor_is_another_context_on_the_leader(parallelism: Parallelism) -> None:
    """HasSettings is what ``context_version`` asks for; a target over ranks has it too."""
    target = RankedTargetEngine(Alone(), load_columns(embedded_folder("target"), 0, 1), parallelism)
    assert isinstance(target, HasSettings)
    sampling = Sampling(temperature=0.7, repetition_penalty=1.2, seed=1)
    request, other = target.open([5, 9], sampling), target.open([7], sampling)
    before = target.settings(request)
    assert before and target.settings(request) == before == target.settings(other)
    warmer = target.open([5, 9], Sampling(temperature=0.8, repetition_penalty=1.2, seed=1))
    assert target.settings(warmer) != before
