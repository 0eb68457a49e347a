"""The target's p over vocabulary shards: one largest score for all of them (A17, A25)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from draftwire.kernels import shards_loops as loops
from draftwire.kernels.shards import Steps, maximum

if TYPE_CHECKING:
    from numpy.typing import NDArray


def weights_of(scores: NDArray[np.float32]) -> Steps[NDArray[np.float64]]:
    """The target's p, not normalised: exp(score - largest), largest over all shards (A17).

    scores: binary32 (R, width), the rank's columns after every mask and the temperature. A row with
    NaN or +inf comes out as NaN on the shard that has it, one of -inf alone as zeros: verification
    refuses both. The bits are those of ``cpu.weights_of`` on the whole row.
    """
    keys = np.empty(scores.shape, np.int64)
    ordered = np.ascontiguousarray(scores, np.float32)
    loops.order_keys(ordered.view(np.int32), keys)
    facts = np.empty((len(scores), 2), np.int64)
    loops.survey_logits(keys, facts)
    largest = loops.logits_of((yield from maximum(facts))[:, 0]).astype(np.float64)
    weights: NDArray[np.float64] = ordered.astype(np.float64)
    weights -= np.where(np.isfinite(largest), largest, 0.0)[:, None]
    with np.errstate(over="ignore"):
        np.exp(weights, out=weights)
    return weights
