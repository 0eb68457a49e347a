"""The layout of v1: no q at all; it is the point mass on the token (A2, P12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from draftwire.kernels.shards.shard import Shard
from draftwire.rows.values import OK, ZERO_Q_AT_TOKEN
from draftwire.wire.registry import TOTAL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from draftwire.rows.values import Counts


def entries(shard: Shard, support: int) -> tuple[int, int]:
    """Return the least and the most entries that a row has in use: none."""
    return 0, 0


def write(
    rows: Sequence[Counts],
    tokens: Sequence[int],
    shard: Shard,
    used: NDArray[np.int32],
    words: NDArray[np.int32],
) -> int:
    """Write nothing; a whole row must give its token a count."""
    used[:] = 0
    if shard.size == 1:
        for (ids, counts), token in zip(rows, tokens, strict=True):
            held = counts[token] if ids is None else counts[ids == token].sum()
            if held < 1:
                return ZERO_Q_AT_TOKEN
    return OK


def read(
    words: NDArray[np.int32],
    used: NDArray[np.int32],
    tokens: NDArray[np.int32],
    shard: Shard,
    out: NDArray[np.int32] | None,
) -> tuple[int, NDArray[np.int32] | None, NDArray[np.int32]]:
    """Return one entry a row, of the whole mass; a shard that does not own the token has none."""
    used[:] = (shard.begin <= tokens) & (tokens < shard.end)
    return OK, tokens[:, None], np.full((len(tokens), 1), TOTAL, np.int32)
