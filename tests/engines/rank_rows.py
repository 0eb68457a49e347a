"""Rows that every rank makes from one seed, put through the sharded kernels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from draftwire.exact.words import KeyedWords, RequestKey
from draftwire.kernels.shards.quantise import draw, quantise
from draftwire.kernels.shards.shard import Integers, Steps, even_shards
from draftwire.kernels.shards.target import weights_of
from draftwire.kernels.shards.verify import Place, Rounds, verify
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TOTAL, Layout

VOCABULARY = 1001
POLICIES = (
    ProposalPolicy(Layout.DENSE, 1, 0.8),
    ProposalPolicy(Layout.SPARSE, 1, 1.0, support=16, top_p=TOTAL // 10 * 9),
)
Answers = tuple[list[NDArray[np.int32]], list[Integers], list[list[int]]]


def rows() -> tuple[NDArray[np.float32], NDArray[np.float32], Integers]:
    """Draft logits, target logits (two rows a round) and words."""
    rng = np.random.default_rng(8)
    draft = (np.round(rng.standard_normal((12, VOCABULARY)) * 16) / 4).astype(np.float32)
    target = (draft.repeat(2, 0) + rng.standard_normal((24, VOCABULARY))).astype(np.float32)
    return draft, target, rng.integers(0, TOTAL, 12)


def sharded_rows(rank: int, size: int) -> Steps[Answers]:
    """Own columns of counts, the tokens, and the verdicts, for each policy."""
    shard = even_shards(VOCABULARY, size)[rank]
    draft, target, words = rows()
    own = slice(shard.begin, shard.end)
    weights = yield from weights_of(np.ascontiguousarray(target[:, own]))
    counts, drawn, verdicts = [], [], []
    for policy in POLICIES:
        q = yield from quantise(shard, np.ascontiguousarray(draft[:, own]), policy)
        tokens = yield from draw(q, words if shard.leads else None)
        rounds = Rounds(
            shard, weights.reshape(12, 2, -1), tokens[:, None].copy(), q.counts[:, None]
        )
        places = [Place(1, number, 4) for number in range(12)]
        sources = [KeyedWords(RequestKey(5))] * 12 if shard.leads else None
        found = yield from verify(rounds, places, sources)
        counts.append(q.counts)
        drawn.append(np.array(tokens))
        verdicts.append([found.accepted.tolist(), found.tokens.tolist(), found.status.tolist()])
    return counts, drawn, verdicts
