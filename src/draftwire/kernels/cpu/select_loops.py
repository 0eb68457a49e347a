"""Selection without sorting: the k largest of n integers, in O(n), ties left to the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from draftwire.kernels.jit import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DIGIT = 11  # bits a round: 2048 buckets of 8 bytes stay in the first-level cache
_BUCKETS = 1 << _DIGIT


@compiled
def kth_largest(
    keys: NDArray[np.int64], wanted: int, width: int, left: NDArray[np.int64]
) -> tuple[int, int, int]:
    """The ``wanted``-th largest key, by histograms of 11 bits a round from the top.

    keys: int64 (n,), each in [0, 2^width), width <= 63; wanted in 1..n; left: int64 (n,), scratch.
    Returns (threshold, ties, equal): every key above the threshold is wanted, and ``ties`` of the
    ``equal`` keys that are it.
    """
    shift = max(width - _DIGIT, 0)
    histogram = np.zeros(_BUCKETS, np.int64)
    for i in range(keys.size):
        histogram[keys[i] >> shift] += 1
    prefix, ties, equal = _bucket(histogram, wanted)
    if shift == 0:
        return prefix, ties, equal
    fill = 0
    for i in range(keys.size):
        if keys[i] >> shift == prefix:
            left[fill] = keys[i]
            fill += 1
    while shift > 0:
        lower = max(shift - _DIGIT, 0)
        mask = (1 << (shift - lower)) - 1
        histogram[:] = 0
        for i in range(fill):
            histogram[(left[i] >> lower) & mask] += 1
        digit, ties, equal = _bucket(histogram, ties)
        prefix = prefix << (shift - lower) | digit
        kept = 0
        for i in range(fill):
            key = left[i]
            left[kept] = key
            kept += key >> lower == prefix
        fill = kept
        shift = lower
    return prefix, ties, equal


@compiled
def _bucket(histogram: NDArray[np.int64], wanted: int) -> tuple[int, int, int]:
    """The bucket, from the top, that holds the ``wanted``-th; how many of it; how many it has."""
    at = histogram.size - 1
    while histogram[at] < wanted:
        wanted -= histogram[at]
        at -= 1
    return at, wanted, histogram[at]


@compiled
def heaviest_until(
    weights: NDArray[np.int64], needed: int, width: int, left: NDArray[np.int64]
) -> tuple[int, int]:
    """Where the shortest heaviest prefix with a mass of at least ``needed`` ends (A6).

    weights: int64 (n,), each in [0, 2^width); needed in 1..sum(weights) < 2^63; left: int64 (n,),
    scratch. Returns (threshold, ties): every weight above the threshold is in the prefix, and so
    are the first ``ties`` that equal it.
    """
    shift = max(width - _DIGIT, 0)
    mass = np.zeros(_BUCKETS, np.int64)
    for i in range(weights.size):
        mass[weights[i] >> shift] += weights[i]
    prefix, needed = _mass_bucket(mass, needed)
    fill = 0
    for i in range(weights.size):
        if weights[i] >> shift == prefix:
            left[fill] = weights[i]
            fill += 1
    while shift > 0:
        lower = max(shift - _DIGIT, 0)
        mask = (1 << (shift - lower)) - 1
        mass[:] = 0
        for i in range(fill):
            if left[i] >> shift == prefix:
                mass[(left[i] >> lower) & mask] += left[i]
        digit, needed = _mass_bucket(mass, needed)
        prefix = prefix << (shift - lower) | digit
        shift = lower
    return prefix, (needed + prefix - 1) // prefix


@compiled
def _mass_bucket(mass: NDArray[np.int64], needed: int) -> tuple[int, int]:
    """The bucket, from the top, in which the mass reaches ``needed``; how much of it is needed."""
    at = mass.size - 1
    while mass[at] < needed:
        needed -= mass[at]
        at -= 1
    return at, needed


@compiled
def first_of_threshold(
    keys: NDArray[np.int64], threshold: int, ties: int, wanted: int
) -> NDArray[np.int64]:
    """The ``wanted`` ascending indices of keys above ``threshold`` and the first ``ties`` at it."""
    chosen = np.empty(wanted, np.int64)
    fill = 0
    for i in range(keys.size):
        if keys[i] < threshold:
            continue
        if keys[i] == threshold:
            if ties == 0:
                continue
            ties -= 1
        chosen[fill] = i
        fill += 1
    return chosen
