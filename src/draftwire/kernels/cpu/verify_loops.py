"""The loops of A17-A21 in binary64, each with a bound within which it decides and outside not.

Error analysis. u = 2^-53 is the rounding unit; every number here is non-negative but the
differences p - q. The weights are A24's or the caller's own, and exact by definition. With A the
true sum of a row of weights and A' the computed one:

- Summation. The sum of a block of 512 is made of 8 lanes of up to 71 terms and 3 additions to join
  them; blocks are added one after another; a prefix that ends inside a block adds up to 512 more
  terms. No term passes through more than ``h = ceil(V / 512) + 600`` additions, so every computed
  sum or prefix of non-negative terms is within ``g = 1.01 h u`` of the true one, relatively
  (Higham, "Accuracy and Stability of Numerical Algorithms", 4.2; h u < 0.01 for all V up to 2^24).
  Additions have no underflow error.
- Acceptance. The threshold ``t = a_x M 2^48 / (c_x A)`` is computed with one product and one
  quotient beside A': ``|t' - t| <= (g + 2.1 u) t``.
- Residual. In counts, ``r_v = max(a_v s - c_v, 0)`` with s = M / A. s' carries g and one rounding,
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

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from draftwire.errors import RefusalCode
from draftwire.kernels.cpu.exp64 import exp64 as _exp64
from draftwire.kernels.jit import compiled
from draftwire.kernels.protocol import OK, P_CUTOFF
from draftwire.kernels.protocol import UNDECIDED as UNDECIDED

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK: Final = 512  # terms a block of a sum
SMALLEST: Final = 2.0**-900
LARGEST: Final = 2.0**900
UNREAD: Final = -1  # in place of 48 bits that are not known yet
WORD_WANTED: Final = -2  # status of a round that goes on when the 48 bits at ``accepted`` are given
_ADDITIONS: Final = 600  # in and around a block; see above
_UNIT: Final = 2.0**-53
_SCALE: Final = 2.0**-48  # two words of 24 bits
_SPAN: Final = 2.0**48
_TOTAL: Final = 2.0**24
_INFINITY: Final = 0x7FF << 52  # the pattern of binary64

_NON_FINITE: Final = int(RefusalCode.NON_FINITE)
_ZERO_MASS: Final = int(RefusalCode.ZERO_MASS)
_NEGATIVE: Final = int(RefusalCode.NEGATIVE_WEIGHT)


def bound_of(size: int) -> float:
    """The bound, relative to the whole mass, that covers every sum over ``size`` weights."""
    return 4.0 * (-(-size // BLOCK) + _ADDITIONS + 4) * _UNIT


# one row of p


@compiled
def survey_scores(row: NDArray[np.float32]) -> tuple[float, bool]:
    """Largest score of a row, -infinity if there is no other, and whether one is NaN."""
    least, largest = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
    bits = row.view(np.int32)
    for v in range(bits.size):  # in integers, which become vector instructions
        key = bits[v] ^ ((bits[v] >> 31) & np.int32(0x7FFFFFFF))
        least = min(least, key)
        largest = max(largest, key)
    nan = largest > 0x7F800000 or least < -0x7F800001
    pattern = largest if largest >= 0 else largest ^ np.int32(0x7FFFFFFF)
    return float(np.int32(pattern).view(np.float32)), bool(nan)


@compiled
def score_weights(row: NDArray[np.float32], largest: float, out: NDArray[np.float64]) -> None:
    """p of a row, not normalised: exp64(score - largest) (A24), into ``out`` (V,)."""
    for v in range(row.size):
        difference = np.float64(row[v]) - largest
        inside = difference >= P_CUTOFF
        d = difference if inside else 0.0
        out[v] = _exp64(d, 0) if inside else 0.0


def target_weights(logits: NDArray[np.float32], out: NDArray[np.float64]) -> None:
    """p of a row, not normalised: exp64(logit - largest) (A24).

    logits: binary32 (V,); out: binary64 (V,). A row with NaN or +inf becomes NaN and a row of -inf
    alone becomes 0, so that its use refuses it by A11.
    """
    largest, nan = survey_scores(np.ascontiguousarray(logits))
    if nan or not -np.inf < largest < np.inf:
        out[:] = 0.0 if largest == -np.inf else np.nan
    else:
        score_weights(logits, largest, out)


@compiled
def weights_status(row: NDArray[np.float64]) -> int:
    """OK, or why a row of weights is refused (A11)."""
    least, largest = np.int64(_INFINITY), np.int64(0)
    bits = row.view(np.int64)
    for v in range(bits.size):  # without a sign the patterns are in the order of the numbers
        least = min(least, bits[v])
        largest = max(largest, bits[v])
    if largest >= _INFINITY:
        return _NON_FINITE
    if least < 0:  # a negative number, a NaN, or the harmless -0.0
        negative = False
        for v in range(row.size):
            if not np.isfinite(row[v]):
                return _NON_FINITE
            negative |= row[v] < 0.0
        if negative:
            return _NEGATIVE
    return OK if largest > 0 else _ZERO_MASS


@compiled
def _weigh(
    row: NDArray[Any],
    logits: bool,
    weights: NDArray[np.float64],
) -> int:
    """The weights of a row of scores into ``weights`` (V,), and OK or why there are none."""
    if logits:
        largest, nan = survey_scores(row)
        if nan or largest == np.inf:
            return _NON_FINITE
        if largest == -np.inf:
            return _ZERO_MASS
        score_weights(row, largest, weights)
        return OK
    status = weights_status(row)
    if status == OK:
        weights[:] = row
    return status


@compiled
def _largest_of(row: NDArray[Any], logits: bool) -> tuple[int, int]:
    """The lowest id with the largest score (A21), and OK or why there is none."""
    if logits:
        largest, nan = survey_scores(row)
        if nan:
            return 0, _NON_FINITE
        if largest == -np.inf:
            return 0, _ZERO_MASS
    else:
        status = weights_status(row)
        if status != OK:
            return 0, status
        largest = np.float64(row.max())
    for v in range(row.size):
        if row[v] == largest:
            return v, OK
    return 0, _NON_FINITE


# sums and draws


@compiled
def _block_sum(row: NDArray[np.float64], start: int, end: int) -> float:
    """The sum of one block, in 8 lanes."""
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
    return ((a0 + a4) + (a2 + a6)) + ((a1 + a5) + (a3 + a7))


@compiled
def block_sums(row: NDArray[np.float64], sums: NDArray[np.float64]) -> float:
    """Sums of blocks of 512 weights into ``sums`` (ceil(V / 512),); returns their sum."""
    total = 0.0
    for block in range(sums.size):
        start = block * BLOCK
        sums[block] = _block_sum(row, start, min(start + BLOCK, row.size))
        total += sums[block]
    return total


@compiled
def residual_dense(
    row: NDArray[np.float64], scale: float, counts: NDArray[np.int32], out: NDArray[np.float64]
) -> None:
    """max(p - q, 0) in counts over the full vocabulary (A19); scale = M / A.

    counts: of the first ids, dense; an id behind them has q = 0. ``out`` may be ``row``.
    """
    for v in range(counts.size):
        difference = row[v] * scale - counts[v]
        out[v] = difference if difference > 0.0 else 0.0
    for v in range(counts.size, row.size):
        out[v] = row[v] * scale


@compiled
def residual_sparse(
    row: NDArray[np.float64],
    scale: float,
    ids: NDArray[np.int32],
    counts: NDArray[np.int32],
    out: NDArray[np.float64],
) -> None:
    """max(p - q, 0) in counts over the full vocabulary, q zero outside ``ids`` (A19)."""
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
            # U is not below 0 and not 1: the first id needs no lower edge, the last no upper one.
            lower = v == 0 or before + slack <= low
            upper = v == values.size - 1 or high <= after - slack
            return v if lower and upper else UNDECIDED
        before = after
    return UNDECIDED


# one round


@compiled
def _stands(weight: float, count: int, total: float, first: int, bound: float) -> int:
    """1 where a draft is surely accepted, 0 where it surely falls, else UNDECIDED (A18).

    first: the first 48 bits of U; UNREAD where they are not known, then WORD_WANTED may be said.
    """
    if weight == 0.0:
        return 0
    if not SMALLEST <= total <= LARGEST:
        return UNDECIDED
    threshold = weight * (_TOTAL * _SPAN) / (count * total)
    margin = threshold * bound
    if threshold - margin >= _SPAN:
        return 1
    if first == UNREAD:
        return WORD_WANTED
    if first + 1 <= threshold - margin:
        return 1
    # first = 0 never surely rejects: the threshold is above zero, even where it underflows.
    return 0 if first > 0 and first >= threshold + margin else UNDECIDED


@compiled
def accept_drafts(
    scores: NDArray[Any],
    logits: bool,
    at: int,
    tokens: NDArray[np.int64],
    counts: NDArray[np.int64],
    begin: int,
    firsts: NDArray[np.int64],
    bound: float,
    weights: NDArray[np.float64],
    sums: NDArray[np.float64],
) -> tuple[int, int, float]:
    """How many drafts stand from ``begin`` on, a status, and the sum of the last row looked at.

    at: the row of the scores that the first draft is judged against. counts: of each token under
    its q, 1 or more. firsts: 48 bits of U for each draft, or UNREAD. ``weights`` and ``sums`` hold
    the row of the draft that falls. status: OK, a refusal, UNDECIDED or WORD_WANTED at that draft.
    """
    total = 0.0
    for index in range(begin, tokens.size):
        status = _weigh(scores[at + index], logits, weights)
        if status != OK:
            return index, status, total
        total = block_sums(weights, sums)
        found = _stands(weights[tokens[index]], counts[index], total, firsts[index], bound)
        if found < 0:
            return index, found, total
        if found == 0:
            return index, OK, total
    return tokens.size, OK, total


@compiled
def draw_target(
    row: NDArray[Any],
    logits: bool,
    first: int,
    bound: float,
    weights: NDArray[np.float64],
    sums: NDArray[np.float64],
) -> tuple[int, int]:
    """A token from p alone (A20), and OK, a refusal, or UNDECIDED."""
    status = _weigh(row, logits, weights)
    if status != OK:
        return 0, status
    total = block_sums(weights, sums)
    if not SMALLEST <= total <= LARGEST:
        return 0, UNDECIDED
    token = find(weights, sums, total, first, total * bound)
    return token, OK if token >= 0 else UNDECIDED


@compiled
def draw_residual(
    weights: NDArray[np.float64],
    total: float,
    sparse: bool,
    ids: NDArray[np.int32],
    counts: NDArray[np.int32],
    first: int,
    bound: float,
    sums: NDArray[np.float64],
) -> tuple[int, int]:
    """A token from max(p - q, 0) (A19), and OK or UNDECIDED; the weights are used up."""
    if not SMALLEST <= total <= LARGEST:
        return 0, UNDECIDED
    if sparse:
        residual_sparse(weights, _TOTAL / total, ids, counts, weights)
    else:
        residual_dense(weights, _TOTAL / total, counts, weights)
    left = block_sums(weights, sums)
    token = find(weights, sums, left, first, _TOTAL * bound)
    return token, OK if token >= 0 else UNDECIDED


@compiled
def accept_greedy(
    scores: NDArray[Any],
    logits: bool,
    at: int,
    tokens: NDArray[np.int64],
    row_count: int,
) -> tuple[int, int, int]:
    """How many drafts a greedy target takes, the token after them, and a status (A21).

    No word decides anything: p of a draft is 0 or 1, and a residual has one id.
    """
    for index in range(row_count):
        largest, status = _largest_of(scores[at + index], logits)
        if status != OK:
            return index, UNDECIDED, status
        if index == tokens.size or tokens[index] != largest:
            return index, largest, OK
    return tokens.size, UNDECIDED, OK
