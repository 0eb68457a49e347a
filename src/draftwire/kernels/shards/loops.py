"""The loops of the sharded arithmetic: one shard's columns of many rows at a time.

Every loop takes rows of any width, none included. Values below zero take no part in a selection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from draftwire.kernels.cpu.quantise_loops import (
    KEY_INFINITY,
    KEY_MINUS_INFINITY,
    KEY_OFFSET,
    floor_counts,
    integer_weights,
    sample_inverse_cdf,
)
from draftwire.kernels.cpu.select_loops import first_of_threshold, kth_largest
from draftwire.kernels.cpu.verify_loops import BLOCK, UNDECIDED, block_sums
from draftwire.kernels.jit import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

NON_FINITE: Final = 1  # flags of :func:`survey_weights`
NEGATIVE: Final = 2
DIGIT: Final = 6  # bits a round of a global selection: 64 sums a row cross between the ranks
BUCKETS: Final = 1 << DIGIT
_SIGNLESS: Final = 0x7FFFFFFF
_TOTAL: Final = 1 << 24


@compiled
def order_keys(bits: NDArray[np.int32], keys: NDArray[np.int64]) -> None:
    """Keys >= 0 in the order of binary32 logits, -0.0 equal to +0.0; (N, n) both."""
    for row in range(bits.shape[0]):
        for i in range(bits.shape[1]):
            pattern = bits[row, i]
            key = np.int64(pattern ^ ((pattern >> 31) & np.int32(_SIGNLESS)))
            keys[row, i] = (0 if key == -1 else key) + KEY_OFFSET


def logits_of(keys: NDArray[np.int64]) -> NDArray[np.float32]:
    """The binary32 numbers of order keys, (N,)."""
    signed = (keys - KEY_OFFSET).astype(np.int32)
    patterns = np.where(signed >= 0, signed, signed ^ np.int32(_SIGNLESS))
    return patterns.astype(np.int32).view(np.float32)


@compiled
def survey_logits(keys: NDArray[np.int64], facts: NDArray[np.int64]) -> None:
    """(largest key or -1, 1 if a logit is NaN or +inf) of each row, into facts (N, 2)."""
    for row in range(keys.shape[0]):
        largest, refused = np.int64(-1), np.int64(0)
        for i in range(keys.shape[1]):
            key = keys[row, i]
            largest = max(largest, key)
            if key >= KEY_INFINITY + KEY_OFFSET or key < KEY_MINUS_INFINITY + KEY_OFFSET:
                refused = np.int64(1)
        facts[row, 0] = largest
        facts[row, 1] = refused


@compiled
def first_equal(keys: NDArray[np.int64], wanted: NDArray[np.int64], at: NDArray[np.int64]) -> None:
    """The first place of each row whose key is the wanted one, into at (N,); -1 for none."""
    for row in range(keys.shape[0]):
        at[row] = -1
        for i in range(keys.shape[1]):
            if keys[row, i] == wanted[row]:
                at[row] = i
                break


@compiled
def weigh_rows(
    logits: NDArray[np.float32],
    largest: NDArray[np.float32],
    status: NDArray[np.int64],
    inverse: float,
    weights: NDArray[np.int64],
) -> None:
    """A2-A4 with the largest logits of the whole rows; a refused row weighs nothing."""
    for row in range(logits.shape[0]):
        if status[row] != 0:
            weights[row, :] = 0
        else:
            integer_weights(logits[row], np.float64(largest[row]), inverse, weights[row])


@compiled
def floor_rows(
    weights: NDArray[np.int64],
    masses: NDArray[np.int64],
    counts: NDArray[np.int32],
    remainders: NDArray[np.int64],
    facts: NDArray[np.int64],
) -> None:
    """Whole counts of each weight (A9); (counts given, weights above zero) into facts (N, 2)."""
    for row in range(weights.shape[0]):
        facts[row, :] = 0
        if masses[row] == 0:
            counts[row, :] = 0
            remainders[row, :] = -1
            continue
        left, positive = floor_counts(weights[row], masses[row], counts[row], remainders[row])
        facts[row, 0] = _TOTAL - left
        facts[row, 1] = positive


@compiled
def histogram(
    values: NDArray[np.int64],
    prefixes: NDArray[np.int64],
    shift: int,
    by_mass: bool,
    out: NDArray[np.int64],
) -> None:
    """Number, or sum, of the values under each next digit, of those that begin with the prefix."""
    out[:, :] = 0
    for row in range(values.shape[0]):
        prefix = prefixes[row]
        for i in range(values.shape[1]):
            value = values[row, i]
            if value >= 0 and value >> (shift + DIGIT) == prefix:
                out[row, (value >> shift) & (BUCKETS - 1)] += value if by_mass else 1


@compiled
def descend(
    sums: NDArray[np.int64],
    prefixes: NDArray[np.int64],
    wanted: NDArray[np.int64],
    equal: NDArray[np.int64],
) -> None:
    """From the top, the bucket that the wanted one lies in; rows that want nothing are let be."""
    for row in range(sums.shape[0]):
        if wanted[row] <= 0:
            continue
        bucket = BUCKETS - 1
        while bucket > 0 and sums[row, bucket] < wanted[row]:
            wanted[row] -= sums[row, bucket]
            bucket -= 1
        prefixes[row] = prefixes[row] << DIGIT | bucket
        equal[row] = sums[row, bucket]


@compiled
def count_equal(
    values: NDArray[np.int64], thresholds: NDArray[np.int64], out: NDArray[np.int64]
) -> None:
    """How many values of each row are its threshold, into out (N,)."""
    for row in range(values.shape[0]):
        number = np.int64(0)
        for i in range(values.shape[1]):
            number += values[row, i] == thresholds[row]
        out[row] = number


@compiled
def assign_rows(
    counts: NDArray[np.int32],
    remainders: NDArray[np.int64],
    thresholds: NDArray[np.int64],
    ties: NDArray[np.int64],
) -> None:
    """One more for what is above the threshold, and for the first ``ties`` at it (A26)."""
    for row in range(counts.shape[0]):
        left = ties[row]
        for i in range(counts.shape[1]):
            if remainders[row, i] > thresholds[row]:
                counts[row, i] += np.int32(1)
            elif left > 0 and remainders[row, i] == thresholds[row]:
                counts[row, i] += np.int32(1)
                left -= 1


@compiled
def keep_rows(
    weights: NDArray[np.int64],
    values: NDArray[np.int64],
    thresholds: NDArray[np.int64],
    ties: NDArray[np.int64],
) -> None:
    """Zero the weights whose value is under the threshold, or at it beyond the first ``ties``."""
    for row in range(weights.shape[0]):
        left = ties[row]
        for i in range(weights.shape[1]):
            value = values[row, i]
            if value == thresholds[row] and left > 0:
                left -= 1
            elif value <= thresholds[row]:
                weights[row, i] = 0


@compiled
def candidates(values: NDArray[np.int64], count: int, out: NDArray[np.int64]) -> None:
    """The ``count`` largest values of each row, ascending by place; -1 where there are fewer.

    out: (N, count). Of equal values those at the lowest places are taken.
    """
    out[:, :] = -1
    for row in range(values.shape[0]):
        own = values[row]
        if own.size <= count:
            out[row, : own.size] = own
            continue
        usable = np.where(own < 0, 0, own + 1)
        threshold, ties, _ = kth_largest(usable, count, 33, np.empty(own.size, np.int64))
        chosen = first_of_threshold(usable, threshold, ties, count)
        for i in range(count):
            out[row, i] = own[chosen[i]]


@compiled
def cut_of(
    merged: NDArray[np.int64],
    count: int,
    thresholds: NDArray[np.int64],
    ties: NDArray[np.int64],
) -> None:
    """The count-th largest value of each row of merged candidates, and how many of it are wanted.

    Rows with fewer than ``count`` candidates keep all, for no shard left any out: threshold -1.
    """
    for row in range(merged.shape[0]):
        number = 0
        for i in range(merged.shape[1]):
            number += merged[row, i] >= 0
        if number < count:
            thresholds[row] = -1
            ties[row] = 0
            continue
        usable = np.where(merged[row] < 0, 0, merged[row] + 1)
        threshold, wanted, _ = kth_largest(usable, count, 33, np.empty(usable.size, np.int64))
        thresholds[row] = threshold - 1
        ties[row] = wanted


@compiled
def find_offsets(
    counts: NDArray[np.int32], offsets: NDArray[np.int64], out: NDArray[np.int64]
) -> None:
    """The place that holds each row's draw (A16), into out (N,); -1 where the offset is < 0."""
    for row in range(counts.shape[0]):
        at = sample_inverse_cdf(
            counts[row], max(offsets[row], 0)
        )  # on every rank, the owner or not (law 4)
        out[row] = -1 if offsets[row] < 0 else at


@compiled
def survey_weights(
    rows: NDArray[np.float64], flags: NDArray[np.int64], totals: NDArray[np.float64]
) -> None:
    """What A11 asks of each row of binary64 weights, and its computed sum; (R, n), (R,), (R,)."""
    sums = np.empty(-(-rows.shape[1] // BLOCK))
    for row in range(rows.shape[0]):
        flag = 0
        for i in range(rows.shape[1]):
            weight = rows[row, i]
            if not -np.inf < weight < np.inf:
                flag |= NON_FINITE
            elif weight < 0:
                flag |= NEGATIVE
        flags[row] = flag
        totals[row] = block_sums(rows[row], sums)


@compiled
def residual(
    row: NDArray[np.float64], scale: float, counts: NDArray[np.int32], out: NDArray[np.float64]
) -> None:
    """max(p - q, 0) in counts for every id owned, in the support or not (A19)."""
    for v in range(row.size):
        difference = row[v] * scale - counts[v]
        out[v] = difference if difference > 0.0 else 0.0


@compiled
def find_within(
    values: NDArray[np.float64],
    base: float,
    low: float,
    middle: float,
    high: float,
    slack: float,
) -> int:
    """The place whose interval of the cumulative values surely holds U's, or UNDECIDED.

    base: the sum on the shards before; U times the whole mass lies surely in low..high, around
    middle; slack: how far a computed prefix may be from the true one.
    """
    sums = np.empty(-(-values.size // BLOCK))
    block_sums(values, sums)
    reached = base
    block = 0
    while block < sums.size and reached + sums[block] <= middle:
        reached += sums[block]
        block += 1
    for v in range(block * BLOCK, min((block + 1) * BLOCK, values.size)):
        after = reached + values[v]
        if after > middle:
            return v if reached + slack <= low and high <= after - slack else UNDECIDED
        reached = after
    return UNDECIDED
