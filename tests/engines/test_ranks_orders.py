"""What crosses between ranks comes back as it was, and is no larger than it has to be."""

from __future__ import annotations

import numpy as np
import pytest

from draftwire.engines.parallel.commands import packed, signed, unpacked, unsigned
from draftwire.verifier.parallelism import Links, Ownership, ShardingPlan
from draftwire.wire.registry import TOTAL


@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (3, 5), (2, 4), (5, 129)])
def test_counts_cross_at_the_size_that_is_said_of_them(shape: tuple[int, int]) -> None:
    """4 bytes an id, as ``draftwire sizes`` says, and at most one number of 4 bytes to fill up."""
    counts = np.random.default_rng(1).integers(0, TOTAL + 1, shape).astype(np.int32)
    numbers = packed(counts)
    assert numbers.dtype == np.int64
    np.testing.assert_array_equal(unpacked(numbers, shape), counts)
    depth, width = shape
    said = ShardingPlan(Ownership.VOCABULARY, Links.LEADER).fabric_bytes(width, depth, 1)
    assert 0 <= numbers.nbytes - said <= 4


@pytest.mark.parametrize("identifier", [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_identifiers_cross_as_signed_numbers(identifier: int) -> None:
    assert -(1 << 63) <= signed(identifier) < 1 << 63
    assert unsigned(signed(identifier)) == identifier
