"""The loops of A1-A9 over arrays, equal to :mod:`draftwire.exact.quantise` bit for bit.

Integers stay below 2^63: a weight is at most 2^38 and V at most 2^24, so a sum of weights W is at
most 2^62; ``weight * 2^24`` is at most 2^62; and the remainder of A9, before its correction by one
W, lies in [-W, 2W).

The loops are written so that they become vector instructions: integers below 2^52 are moved to and
from binary64 through the mantissa of ``2^52 + n`` (exact both ways), and choices are selections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from draftwire.exact import quantise as exact
from draftwire.kernels.cpu.exp64 import exp64 as _exp64
from draftwire.kernels.jit import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CUTOFF = exact.CUTOFF
_WEIGHT_BITS = exact.WEIGHT_BITS
_TOTAL_BITS = 24
_TOTAL = 1 << _TOTAL_BITS

_TWO52: Final = 2.0**52
_TWO52_BITS: Final = 0x433 << 52  # the binary64 pattern of 2^52
_MANTISSA: Final = (1 << 52) - 1

BLOCK: Final = 128  # entries a block, of :func:`block_maxima` and of :func:`sample_inverse_cdf`
KEY_OFFSET: Final = 1 << 31  # makes a key non-negative
_SIGNLESS: Final = 0x7FFFFFFF
KEY_INFINITY: Final = 0x7F800000  # the key of +infinity; a NaN with a clear sign lies above it
KEY_MINUS_INFINITY: Final = -0x7F800001  # the key of -infinity; a NaN with its sign set lies below


@compiled
def block_maxima(bits: NDArray[np.int32], maxima: NDArray[np.int32]) -> tuple[int, int]:
    """Largest key of each block of 128 logits, into ``maxima``; returns the row's (least, largest).

    bits: the binary32 patterns, int32 (V,); maxima: int32 (ceil(V / 128),). The key of a pattern is
    an integer in the order of the numbers; that of -0.0 is -1 and of +0.0 is 0.
    """
    least, largest = np.int32(_SIGNLESS), np.int32(-_SIGNLESS - 1)
    for block in range(maxima.size):
        top = np.int32(-_SIGNLESS - 1)
        for i in range(block * BLOCK, min((block + 1) * BLOCK, bits.size)):
            key = bits[i] ^ ((bits[i] >> 31) & np.int32(_SIGNLESS))
            top = max(top, key)
            least = min(least, key)
        maxima[block] = top
        largest = max(largest, top)
    return int(least), int(largest)


@compiled
def integer_weights(
    logits: NDArray[np.float32], largest: float, inverse: float, weights: NDArray[np.int64]
) -> int:
    """Integer weights of ``logits`` into ``weights`` (A2-A4); returns their sum.

    logits: binary32 (n,), without NaN or +inf; largest: that of the whole row; inverse: 1 / T.
    """
    total = np.int64(0)
    for i in range(logits.size):
        scaled = (np.float64(logits[i]) - largest) * inverse
        inside = scaled >= _CUTOFF
        d = scaled if inside else 0.0
        grown = _exp64(d, _WEIGHT_BITS)
        whole = np.float64(np.floor(grown) + _TWO52).view(np.int64) & _MANTISSA
        weight = whole if inside else np.int64(0)
        weights[i] = weight
        total += weight
    return int(total)


@compiled
def floor_counts(
    weights: NDArray[np.int64],
    total: int,
    counts: NDArray[np.int32],
    remainders: NDArray[np.int64],
) -> tuple[int, int]:
    """Whole counts of each weight into ``counts``, and what is left over (A9).

    Returns (counts left, number of weights above zero). The quotient is estimated in binary64:
    the ratio M / W carries two roundings and the product one, so an estimate of at most 2^24 is
    wrong by less than 2^24 * 4 * 2^-53 < 1, its floor by one at most, and the remainder, exact in
    integers, tells which way.
    """
    ratio = float(_TOTAL) / float(total)
    given = np.int64(0)
    positive = 0
    for i in range(weights.size):
        weight = weights[i]
        estimate = (np.int64(weight | _TWO52_BITS).view(np.float64) - _TWO52) * ratio
        count = np.float64(np.floor(estimate) + _TWO52).view(np.int64) & _MANTISSA
        remainder = (weight << _TOTAL_BITS) - count * total
        low = remainder < 0
        high = remainder >= total
        remainder += (total if low else 0) - (total if high else 0)
        count += (1 if high else 0) - (1 if low else 0)
        remainders[i] = remainder
        counts[i] = count
        given += count
        positive += 1 if weight > 0 else 0
    return _TOTAL - int(given), positive


@compiled
def assign_remainders(
    counts: NDArray[np.int32], remainders: NDArray[np.int64], threshold: int, ties: int, equal: int
) -> int:
    """One more for every remainder above ``threshold`` and the first ``ties`` at it (A9).

    Returns how many were assigned.
    """
    # Mostly all that are equal get one, and then nothing depends on the order.
    least = threshold if ties == equal else threshold + 1
    given = 0
    for i in range(counts.size):
        one = 1 if remainders[i] >= least else 0
        counts[i] += np.int32(one)
        given += one
    left = 0 if ties == equal else ties
    for i in range(counts.size):
        if left == 0:
            break
        if remainders[i] == threshold:
            counts[i] += np.int32(1)
            given += 1
            left -= 1
    return given


@compiled
def candidates(
    bits: NDArray[np.int32], maxima: NDArray[np.int32], floor: int, ids: NDArray[np.int64]
) -> int:
    """Ids, ascending, of logits whose key is at least ``floor``, into ``ids`` (V,); how many.

    Blocks whose maximum is lower are passed over.
    """
    fill = 0
    for block in range(maxima.size):
        if maxima[block] < floor:
            continue
        for i in range(block * BLOCK, min((block + 1) * BLOCK, bits.size)):
            key = bits[i] ^ ((bits[i] >> 31) & np.int32(_SIGNLESS))
            ids[fill] = i
            fill += key >= floor
    return fill


@compiled
def positive(weights: NDArray[np.int64], ids: NDArray[np.int64]) -> int:
    """Indices, ascending, of the weights above zero, into ``ids`` (n,); how many."""
    fill = 0
    for i in range(weights.size):
        ids[fill] = i
        fill += weights[i] > 0
    return fill


@compiled
def order_keys(bits: NDArray[np.int32], ids: NDArray[np.int64], keys: NDArray[np.int64]) -> None:
    """Keys of the logits at ``ids``, in 0..2^32-1, ordered as the numbers, -0.0 equal to +0.0."""
    for i in range(ids.size):
        pattern = bits[ids[i]]
        key = np.int64(pattern ^ ((pattern >> 31) & np.int32(_SIGNLESS)))
        keys[i] = (0 if key == -1 else key) + KEY_OFFSET


@compiled
def cut(weights: NDArray[np.int64], threshold: int, ties: int) -> int:
    """Zero the weights under ``threshold``, and those at it but the first ``ties``; mass left."""
    total = np.int64(0)
    for i in range(weights.size):
        weight = weights[i]
        if weight == threshold:
            kept = ties > 0
            ties -= 1
        else:
            kept = weight > threshold
        weights[i] = weight if kept else np.int64(0)
        total += weights[i]
    return int(total)


@compiled
def sample_inverse_cdf(counts: NDArray[np.int32], word: int) -> int:
    """The first index whose cumulative count is above ``word``; -1 where there is none (A16).

    Both loops have bounds that the row's width alone decides: how long a draw takes says nothing
    of what is drawn, so that no deadline chooses between tokens (law 4).
    """
    size = counts.size
    cumulative, chosen, before = 0, -1, 0
    for start in range(0, size, BLOCK):
        mass = 0
        for i in range(start, min(start + BLOCK, size)):
            mass += counts[i]
        first = chosen < 0 and cumulative + mass > word
        chosen = start if first else chosen
        before = cumulative if first else before
        cumulative += mass
    begin = max(chosen, 0)
    below = 0
    for i in range(begin, begin + BLOCK):
        before += counts[min(i, size - 1)] if i < size else 0
        below += before <= word
    return chosen + below if chosen >= 0 else -1
