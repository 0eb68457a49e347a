"""Request-sharded: whole rows on one rank each, the same verdicts on all as on one machine."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from draftwire.kernels.shards.emulator import emulate
from draftwire.kernels.shards.requests import owner_of, verify_owned
from draftwire.kernels.shards.shard import Steps
from draftwire.kernels.shards.verify import ShardVerdicts
from tests.kernels.test_shards_verify import Batch, batch_of, refused_batch


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_verdicts_equal_those_of_one_machine(size: int) -> None:
    for batch in (batch_of(0, 9, 7, 3, np.random.default_rng(size)), refused_batch()):
        expected = batch.whole()

        def rank(index: int, batch: Batch = batch) -> Steps[ShardVerdicts]:
            slots = range(len(batch.rows))
            own = [
                partial(batch.alone, slot) if owner_of(slot, size) == index else None
                for slot in slots
            ]
            return verify_owned(index, size, own)

        for found in emulate([rank(index) for index in range(size)]):
            assert found.accepted.tolist() == [accepted for accepted, _, _ in expected]
            assert found.tokens.tolist() == [token for _, token, _ in expected]
            assert [status == 0 for status in found.status] == [not code for _, _, code in expected]


def test_every_rank_owns_its_share() -> None:
    owners = [owner_of(slot, 3) for slot in range(9)]
    assert all(owners.count(rank) == 3 for rank in range(3))
