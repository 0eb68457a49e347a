"""A matrix product whose rows have the same bits in any company.

A general matrix product chooses its order of additions by the number of rows, so a model gives a
session other last bits in a batch than alone. Here every element is one sum over the same loop,
whatever stands beside it; the weights are still read once for all rows. This belongs to a model's
own arithmetic, which rounds as it likes; nothing of spec/arithmetic.md is computed with it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from draftwire.kernels.jit import jit_reassociated

Float32 = NDArray[np.float32]

_TOGETHER: Final = 4  # outputs whose sums run side by side
_WORTH_A_THREAD: Final = 1 << 18  # weights; fewer are multiplied sooner than handed over


class RowProduct:
    """Computes ``rows @ weight.T`` for a few rows at a time, on up to ``threads`` threads."""

    def __init__(self, threads: int = 1) -> None:
        """Take that many threads, at least one."""
        self._threads = max(threads, 1)
        self._pool = ThreadPoolExecutor(self._threads - 1) if self._threads > 1 else None

    def __call__(self, rows: Float32, weight: Float32, out: Float32) -> None:
        """Fill ``out`` (n, O) with ``rows`` (n, K) times the transposed ``weight`` (O, K).

        All are C-contiguous binary32. Each element depends on its own row and its own weights
        alone, to the bit, and not on the number of threads.
        """
        outputs = weight.shape[0]
        if self._pool is None or weight.size < _WORTH_A_THREAD:
            _multiply(rows, weight, out, 0, outputs)
            return
        # Cut between the groups of outputs that are summed together, so that no group changes.
        share = -(-outputs // (self._threads * _TOGETHER)) * _TOGETHER
        cuts = [*range(0, outputs, share), outputs]
        parts: list[Any] = [
            self._pool.submit(_multiply, rows, weight, out, begin, end)
            for begin, end in pairwise(cuts[1:])
        ]
        _multiply(rows, weight, out, 0, cuts[1])
        for part in parts:
            part.result()


@jit_reassociated
def _multiply(rows: Float32, weight: Float32, out: Float32, begin: int, end: int) -> None:
    """Fill the columns ``[begin, end)`` of ``out``."""
    count, width = rows.shape
    whole = begin + (end - begin) // _TOGETHER * _TOGETHER
    for column in range(begin, whole, _TOGETHER):
        first, second = weight[column], weight[column + 1]
        third, fourth = weight[column + 2], weight[column + 3]
        for row in range(count):
            values = rows[row]
            one = two = three = four = np.float32(0.0)
            for at in range(width):
                value = values[at]
                one += first[at] * value
                two += second[at] * value
                three += third[at] * value
                four += fourth[at] * value
            out[row, column] = one
            out[row, column + 1] = two
            out[row, column + 2] = three
            out[row, column + 3] = four
    for column in range(whole, end):
        for row in range(count):
            total = np.float32(0.0)
            for at in range(width):
                total += weight[column, at] * rows[row, at]
            out[row, column] = total
