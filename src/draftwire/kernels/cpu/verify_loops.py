"""The loops of A17-A20 in binary64, each with a bound within which it decides and outside not.

Error analysis. u = 2^-53 is the rounding unit; every number here is non-negative but the
differences p - q. With A the true sum of a row of weights and A' the computed one:

- Summation. The sum of a block of 512 is made of 8 lanes of up to 71 terms and 3 additions to join
  them; blocks are added one after another; a prefix that ends inside a block adds up to 512 more
  terms. No term passes through more than ``h = ceil(V / 512) + 600`` additions, so every computed
  sum or prefix of non-negative terms is within ``g = 1.01 h u`` of the true one, relatively
  (Higham, "Accuracy and Stability of Numerical Algorithms", 4.2; h u < 0.01 for all V up to 2^24).
  Additions have no underflow error.
- Acceptance. The threshold ``t = a_x M 2^48 / (c_x A)`` is computed with one product and one
  quotient beside A': ``|t' - t| <= (g + 2.1 u) t``.
- Residual. In tickets, ``r_v = max(a_v s - c_v, 0)`` with s = M / A. s' carries g and one rounding,
  the product and the difference one each, and max(., 0) enlarges no error: ``|r'_v - r_v| <=
  (g + 3.1 u) a_v s``. The a_v s sum to M, so a prefix of the r' is wrong by at most (g + 3.1 u) M
  in its terms and 1.01 g M in its additions: (2.04 h + 4) u M < 2.1 (h + 4) u M together.
- Target. A prefix of the a is wrong by at most g A.

:func:`bound_of` returns ``4 (h + 4) u``: nearly twice the largest of these, and the excess, above
1.9 * 600 u, covers the few roundings (under 10 u) made while comparing with it. With A outside
2^-900..2^900 nothing is decided here, so that no product or quotient of A overflows or loses bits;
a product ``a_v s`` that underflows is wrong by at most 2^-1075, V times which is nothing beside
u M. All this asks for the default rounding mode of IEEE 754.

A decision that falls inside its bound is *undecided* and is taken by :mod:`draftwire.exact` from
the same words and the exact rational value of the weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from draftwire.kernels.jit import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK: Final = 512  # terms a block of a sum
UNDECIDED: Final = -1
SMALLEST: Final = 2.0**-900
LARGEST: Final = 2.0**900
_ADDITIONS: Final = 600  # in and around a block; see above
_UNIT: Final = 2.0**-53
_SCALE: Final = 2.0**-48  # two words of 24 bits


def bound_of(size: int) -> float:
    """The bound, relative to the whole mass, that covers every sum over ``size`` weights."""
    return 4.0 * (-(-size // BLOCK) + _ADDITIONS + 4) * _UNIT


@compiled
def scan(row: NDArray[np.int64]) -> tuple[int, int]:
    """Least and largest binary64 pattern of a row, as signed integers.

    Without a sign the patterns are in the order of the numbers, infinity and NaN last; a set sign
    makes a pattern negative.
    """
    least, largest = row[0], row[0]
    for i in range(row.size):
        least = min(least, row[i])
        largest = max(largest, row[i])
    return least, largest


@compiled
def block_sums(row: NDArray[np.float64], sums: NDArray[np.float64]) -> float:
    """Sums of blocks of 512 weights into ``sums`` (ceil(V / 512),); returns their sum."""
    total = 0.0
    for block in range(sums.size):
        start = block * BLOCK
        end = min(start + BLOCK, row.size)
        a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = 0.0
        i = start
        while i + 8 <= end:
            a0 += row[i]
            a1 += row[i + 1]
            a2 += row[i + 2]
            a3 += row[i + 3]
            a4 += row[i + 4]
            a5 += row[i + 5]
            a6 += row[i + 6]
            a7 += row[i + 7]
            i += 8
        while i < end:
            a0 += row[i]
            i += 1
        mass = ((a0 + a4) + (a2 + a6)) + ((a1 + a5) + (a3 + a7))
        sums[block] = mass
        total += mass
    return total


@compiled
def residual_dense(
    row: NDArray[np.float64], scale: float, counts: NDArray[np.int32], out: NDArray[np.float64]
) -> None:
    """max(p - q, 0) in tickets over the full vocabulary, q dense (A19); scale = M / A."""
    for v in range(row.size):
        difference = row[v] * scale - counts[v]
        out[v] = difference if difference > 0.0 else 0.0


@compiled
def residual_sparse(
    row: NDArray[np.float64],
    scale: float,
    ids: NDArray[np.int32],
    counts: NDArray[np.int32],
    out: NDArray[np.float64],
) -> None:
    """max(p - q, 0) in tickets over the full vocabulary, q zero outside ``ids`` (A19)."""
    for v in range(row.size):
        out[v] = row[v] * scale
    for i in range(ids.size):
        difference = out[ids[i]] - counts[i]
        out[ids[i]] = difference if difference > 0.0 else 0.0


@compiled
def find(
    values: NDArray[np.float64], sums: NDArray[np.float64], total: float, first: int, slack: float
) -> int:
    """The id whose interval of the cumulative ``values`` surely holds U * their sum, or UNDECIDED.

    first: the first 48 bits of U, so U lies in [first, first + 1) / 2^48; slack: how far any
    computed prefix, and ``total``, may be from the true one.
    """
    low = first * _SCALE * (total - slack)
    high = (first + 1) * _SCALE * (total + slack)
    middle = first * _SCALE * total
    before = 0.0
    block = 0
    while block < sums.size and before + sums[block] <= middle:
        before += sums[block]
        block += 1
    for v in range(block * BLOCK, min((block + 1) * BLOCK, values.size)):
        after = before + values[v]
        if after > middle:
            return v if before + slack <= low and high <= after - slack else UNDECIDED
        before = after
    return UNDECIDED
