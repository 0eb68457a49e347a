"""The target's p over vocabulary shards: one largest score for all of them (A17, A25)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from draftwire.kernels.cpu.quantise_loops import KEY_OFFSET
from draftwire.kernels.cpu.verify_loops import score_weights
from draftwire.kernels.shards import loops
from draftwire.kernels.shards.shard import Integers, Shard, Steps, maximum

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NAN_KEY: Final = 0x7FC00000 + KEY_OFFSET


def weights_of(scores: NDArray[np.float32]) -> Steps[NDArray[np.float64]]:
    """The target's p, not normalised: exp64(score - largest), largest over all shards (A24).

    scores: binary32 (R, width), the rank's columns after every mask and the temperature. A refused
    row comes out as NaN (NaN, +inf) or as zeros (-inf alone) on every shard: verification refuses
    both. The bits are those of the whole row.
    """
    _, keys = yield from _largest(scores)
    weights = np.empty(scores.shape)
    largest = loops.logits_of(keys).astype(np.float64).tolist()
    for row, top, out in zip(np.ascontiguousarray(scores), largest, weights, strict=True):
        if -np.inf < top < np.inf:
            score_weights(row, top, out)
        else:
            out[:] = 0.0 if top == -np.inf else np.nan
    return weights


def point_of(shard: Shard, scores: NDArray[np.float32]) -> Steps[NDArray[np.float64]]:
    """The greedy target's p: one weight, on the lowest id with the largest score (A21, A25).

    scores: as for :func:`weights_of`, and refused rows come out the same.
    """
    keys, largest = yield from _largest(scores)
    at = np.empty(len(scores), np.int64)
    loops.first_equal(keys, largest, at)
    first = -(yield from maximum(np.where(at < 0, -shard.vocab_size, -(at + shard.begin))))
    weights = np.zeros(scores.shape)
    own = np.flatnonzero((first >= shard.begin) & (first < shard.end))
    weights[own, first[own] - shard.begin] = 1.0
    top = loops.logits_of(largest)
    weights[np.isneginf(top)] = 0.0
    weights[~np.isneginf(top) & ~np.isfinite(top)] = np.nan
    return weights


def _largest(scores: NDArray[np.float32]) -> Steps[tuple[Integers, Integers]]:
    """Order keys of the scores, and the largest of each row over all shards; NaN is above all."""
    keys = np.empty(scores.shape, np.int64)
    ordered = np.ascontiguousarray(scores, np.float32)
    loops.order_keys(ordered.view(np.int32), keys)
    facts = np.empty((len(scores), 2), np.int64)
    loops.survey_logits(keys, facts)
    largest, refused = (yield from maximum(facts)).T
    return keys, np.where(refused > 0, _NAN_KEY, largest)
