"""What a target's scores lose to its own processors, over vocabulary shards (A17, A25).

Each rank has its own columns and gets those that transformers' processors would leave it of the
whole row. Penalties, top-k and temperature are equal to them bit for bit. The borders of top-p and
min-p are drawn in integers here (A3, A6) and by binary32 sums over the whole row there: they differ
only for ids that lie nearer to the border than those sums are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from draftwire.kernels.cpu.quantise_loops import KEY_MINUS_INFINITY, KEY_OFFSET
from draftwire.kernels.shards import loops
from draftwire.kernels.shards.quantise import descend, largest_kept, nucleus_mass, share_ties
from draftwire.kernels.shards.shard import Integers, Shard, Steps, maximum, total
from draftwire.wire.registry import TOTAL, WEIGHT_BITS

if TYPE_CHECKING:
    from numpy.typing import NDArray

_KEY_BITS: Final = 32


def penalise(
    shard: Shard,
    scores: NDArray[np.float32],
    prefixes: Sequence[Iterable[int]],
    penalty: float,
) -> NDArray[np.float32]:
    """The repetition penalty: own ids of each row's prefix, times or through ``penalty``.

    scores: binary32 (R, width); prefixes: R, all ids. Nothing crosses between the ranks.
    """
    out = scores.copy()
    factor = np.float32(penalty)
    for row, prefix in zip(out, prefixes, strict=True):
        own = np.array(sorted({token for token in prefix if shard.owns(token)}), np.int64)
        at = own - shard.begin
        row[at] = np.where(row[at] < 0, row[at] * factor, row[at] / factor)
    return out


def keep_top_k(shard: Shard, scores: NDArray[np.float32], count: int) -> Steps[NDArray[np.float32]]:
    """The ``count`` largest scores of each row over all shards, and all that equal the last one."""
    if not 0 < count < shard.vocab_size:
        return scores
    keys = _keys(scores)
    thresholds, _ = yield from largest_kept(shard, keys, count, _KEY_BITS)
    return _without(scores, keys < thresholds[:, None])


def keep_top_p(
    shard: Shard, scores: NDArray[np.float32], top_p: float
) -> Steps[NDArray[np.float32]]:
    """The smallest set of each row that has ``top_p`` of its mass over all shards; never empty.

    Masses are those of A3, exact integers. Of equal scores at the border the lowest ids stay (A6);
    transformers' sort leaves that open. A row that the arithmetic will refuse stays as it is.
    """
    if top_p >= 1.0:
        return scores
    keys = _keys(scores)
    facts = np.empty((len(scores), 2), np.int64)
    loops.survey_logits(keys, facts)
    largest, refused = (yield from maximum(facts)).T
    bad = (refused > 0) | (largest <= KEY_MINUS_INFINITY + KEY_OFFSET)
    tops = loops.logits_of(np.where(bad, KEY_OFFSET, largest))
    weights = np.empty(scores.shape, np.int64)
    loops.weigh_rows(np.ascontiguousarray(scores), tops, bad.astype(np.int64), 1.0, weights)
    whole = yield from total(weights.sum(axis=1))
    share = min(max(round(top_p * TOTAL), 1), TOTAL)
    needed = nucleus_mass(whole, share)
    thresholds, left = yield from descend(weights, needed, WEIGHT_BITS + 1, by_mass=True)
    wanted = -(-left // np.maximum(thresholds, 1))
    ties = yield from share_ties(shard, weights, thresholds, wanted)
    kept = weights.copy()
    loops.keep_rows(kept, weights, thresholds, ties)
    return _without(scores, (kept == 0) & ~bad[:, None])


def keep_min_p(
    shard: Shard, scores: NDArray[np.float32], min_p: float
) -> Steps[NDArray[np.float32]]:
    """The ids of each row whose weight is ``min_p`` of the largest one's, or more."""
    if min_p <= 0.0:
        return scores
    keys = _keys(scores)
    facts = np.empty((len(scores), 2), np.int64)
    loops.survey_logits(keys, facts)
    largest, refused = (yield from maximum(facts)).T
    bad = (refused > 0) | (largest <= KEY_MINUS_INFINITY + KEY_OFFSET)
    tops = loops.logits_of(np.where(bad, KEY_OFFSET, largest)).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        below = np.exp(scores.astype(np.float64) - tops[:, None]) < min_p
    return _without(scores, below & ~bad[:, None])


def _keys(scores: NDArray[np.float32]) -> Integers:
    keys = np.empty(scores.shape, np.int64)
    loops.order_keys(np.ascontiguousarray(scores).view(np.int32), keys)
    return keys


def _without(scores: NDArray[np.float32], removed: NDArray[np.bool_]) -> NDArray[np.float32]:
    out: NDArray[np.float32] = np.where(removed, np.float32(-np.inf), scores)
    return out
