"""Whether the tokens of a reply are those that the key and the q's give (A22)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from draftwire.kernels.cpu.quantise_loops import sample_inverse_cdf
from draftwire.kernels.jit import compiled
from draftwire.kernels.rows import RowBlock

if TYPE_CHECKING:
    from numpy.typing import NDArray


def first_audit_failure(
    rows: RowBlock, tokens: Sequence[int], uniform24: NDArray[np.int64]
) -> int | None:
    """Return the first row whose token is not the one that its word draws, None if all are right.

    uniform24: int64 (K,), the 24-bit word of each position. Every row is read to its end, whatever
    was drawn (law 4).
    """
    drawn = np.array(tokens, np.int64)
    if rows.ids is None:
        wrong = first_dense_failure(rows.counts, drawn, uniform24)
    else:
        wrong = first_sparse_failure(rows.ids, rows.counts, rows.used, drawn, uniform24)
    return None if wrong < 0 else wrong


@compiled
def first_dense_failure(
    counts: NDArray[np.int32], tokens: NDArray[np.int64], uniform24: NDArray[np.int64]
) -> int:
    """As :func:`first_audit_failure`, of counts (K, V); -1 = all are right."""
    wrong = -1
    for row in range(len(tokens) - 1, -1, -1):
        if sample_inverse_cdf(counts[row], uniform24[row]) != tokens[row]:
            wrong = row
    return wrong


@compiled
def first_sparse_failure(
    ids: NDArray[np.int32],
    counts: NDArray[np.int32],
    used: NDArray[np.int32],
    tokens: NDArray[np.int64],
    uniform24: NDArray[np.int64],
) -> int:
    """As :func:`first_audit_failure`, of ids and counts (K, support); -1 = all are right."""
    wrong = -1
    for row in range(len(tokens) - 1, -1, -1):
        at = sample_inverse_cdf(counts[row, : used[row]], uniform24[row])
        if at < 0 or ids[row, at] != tokens[row]:
            wrong = row
    return wrong
