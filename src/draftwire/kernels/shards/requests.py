"""The other ownership: each rank owns whole rows of some requests, and no columns of the others.

A request's rank has its keys, its p and its q, and judges it as one machine does
(:mod:`draftwire.kernels.cpu`); the leader gathers what was decided and says it to all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from draftwire.kernels.protocol import NO_TOKEN, Verdict
from draftwire.kernels.shards.shard import Steps, broadcast, gather
from draftwire.kernels.shards.verify import ShardVerdicts


def owner_of(slot: int, size: int) -> int:
    """The rank that owns the request in a slot: slots are dealt out in turn."""
    return slot % size


def verify_owned(
    rank: int,
    size: int,
    judges: Sequence[Callable[[], Verdict] | None],
    slots: Sequence[int] | None = None,
) -> Steps[ShardVerdicts]:
    """Judge B rounds, each on the rank that owns its slot; every rank gets all the verdicts.

    judges: this rank's own rounds, None for those of others. slots: whose rounds they are; None =
    of slots 0 to B - 1. A round that the arithmetic
    refuses says so in its status and touches no other.
    """
    own = np.zeros((3, len(judges)), np.int64)
    owners = [owner_of(slot, size) for slot in slots or range(len(judges))]
    for index, judge in enumerate(judges):
        if judge is not None and owners[index] == rank:
            verdict = judge()
            token = NO_TOKEN if verdict.token is None else verdict.token
            own[:, index] = verdict.accepted, token, verdict.status
    gathered = yield from gather(own)
    merged = np.stack([gathered[owner, :, index] for index, owner in enumerate(owners)], axis=1)
    return ShardVerdicts(*(yield from broadcast(np.ascontiguousarray(merged))))
