"""The Triton kernels of A1-A10: logits to integer weights to counts, and the draw of A16.

Integers as in :mod:`draftwire.kernels.cpu.quantise_loops`, all int64 and below 2^63. Between
two kernels there is one number a block of a row, added up again where the sum is needed.
"""

from __future__ import annotations

import triton
import triton.language as tl

from draftwire.exact import quantise as exact
from draftwire.kernels.triton.select import chosen
from draftwire.kernels.triton.tiles import (
    earlier_of,
    exp64,
    key_of,
    row_state,
    spread_of,
    tile,
    widened,
)

_CUTOFF = tl.constexpr(exact.CUTOFF)
_TOTAL_BITS = tl.constexpr(24)
_TOTAL = tl.constexpr(1 << 24)
_TOTAL_F = tl.constexpr(2.0**24)
_WEIGHT_SCALE = tl.constexpr(2.0**38)
_INCONSISTENT = tl.constexpr(5)
_NO_TOKEN = tl.constexpr(-1)


@triton.jit
def weigh_kernel(
    logits,
    tops,
    lows,
    inverse_bits,
    weights,
    sums,
    positives,
    statuses,
    N,
    V,
    NB,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    NBP: tl.constexpr,
):
    """Integer weights, their sum and number above zero in each block; the status (A1-A4)."""
    row, col, mask = tile(N, V, ROWS, BLOCK)
    largest, status = row_state(tops, lows, row, N, NB, ROWS, NBP)
    at = row[:, None] * V + col[None, :]
    z = widened(tl.load(logits + at, mask=mask, other=0.0)).to(tl.float64)
    # 1 / T comes as the pattern of a binary64 number: a float argument would be binary32.
    inverse = inverse_bits.to(tl.int64).to(tl.float64, bitcast=True)
    scaled = (z - largest[:, None]) * inverse
    inside = mask & (status == 0)[:, None] & (scaled >= _CUTOFF)
    grown = exp64(tl.where(inside, scaled, 0.0)) * _WEIGHT_SCALE
    weight = tl.where(inside, grown.to(tl.int64), 0)
    tl.store(weights + at, weight, mask=mask)
    block = row * NB + tl.program_id(1)
    tl.store(sums + block, tl.sum(weight, axis=1), mask=row < N)
    tl.store(positives + block, tl.sum((weight > 0).to(tl.int32), axis=1), mask=row < N)
    if tl.program_id(1) == 0:
        tl.store(statuses + row, status, mask=row < N)


@triton.jit
def order_kernel(logits, weights, keys, N, V, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Keys in the order of the logits, -0.0 equal to +0.0, in 1..2^32; 0 where the weight is."""
    row, col, mask = tile(N, V, ROWS, BLOCK)
    at = row[:, None] * V + col[None, :]
    key = key_of(widened(tl.load(logits + at, mask=mask, other=0.0))).to(tl.int64)
    key = tl.where(key == -1, 0, key) + 0x80000001
    weight = tl.load(weights + at, mask=mask, other=0)
    tl.store(keys + at, tl.where(weight > 0, key, 0), mask=mask)


@triton.jit
def count_needed_kernel(positives, needed, limit, N, NB, ROWS: tl.constexpr, NBP: tl.constexpr):
    """min(limit, ids with a weight): how many A5 or A8 leaves."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    total = tl.sum(spread_of(positives, row, N, NB, ROWS, NBP, 0), axis=1)
    tl.store(needed + row, tl.minimum(total, limit).to(tl.int64), mask=row < N)


@triton.jit
def mass_needed_kernel(sums, needed, top_p, N, NB, ROWS: tl.constexpr, NBP: tl.constexpr):
    """ceil(top_p * W / 2^24): the mass that A6 keeps."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    mass = tl.sum(spread_of(sums, row, N, NB, ROWS, NBP, 0), axis=1)
    upper = mass >> _TOTAL_BITS
    lower = mass & (_TOTAL - 1)
    most = upper * top_p + ((lower * top_p + _TOTAL - 1) >> _TOTAL_BITS)
    tl.store(needed + row, most, mask=row < N)


@triton.jit
def cut_kernel(
    keys,
    weights,
    thresholds,
    ties,
    tie_counts,
    kept,
    sums,
    positives,
    least,
    N,
    V,
    NB,
    BY_VALUE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    NBP: tl.constexpr,
):
    """The weights that a choice keeps, or (BY_VALUE) those of at least ``least``; the rest are 0.

    ``kept`` is another buffer than ``weights``, which may be the keys.
    """
    row, col, mask = tile(N, V, ROWS, BLOCK)
    at = row[:, None] * V + col[None, :]
    weight = tl.load(weights + at, mask=mask, other=0)
    if BY_VALUE:
        stays = weight >= least
    else:
        key = tl.load(keys + at, mask=mask, other=0)
        stays = chosen(key, mask, row, thresholds, ties, tie_counts, N, NB, ROWS, NBP)
    weight = tl.where(stays, weight, 0)
    tl.store(kept + at, weight, mask=mask)
    block = row * NB + tl.program_id(1)
    tl.store(sums + block, tl.sum(weight, axis=1), mask=row < N)
    tl.store(positives + block, tl.sum((weight > 0).to(tl.int32), axis=1), mask=row < N)


@triton.jit
def floor_counts_kernel(
    weights,
    sums,
    counts,
    remainders,
    floors,
    N,
    V,
    NB,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    NBP: tl.constexpr,
):
    """The whole counts of each weight, and the remainders (A9).

    The binary64 estimate is wrong by one at most; the remainder tells which way.
    """
    row, col, mask = tile(N, V, ROWS, BLOCK)
    at = row[:, None] * V + col[None, :]
    weight = tl.load(weights + at, mask=mask, other=0)
    mass = tl.sum(spread_of(sums, row, N, NB, ROWS, NBP, 0), axis=1)
    mass = tl.maximum(mass, 1)[:, None]
    ratio = 1.0 / mass.to(tl.float64) * _TOTAL_F
    count = tl.floor(weight.to(tl.float64) * ratio).to(tl.int64)
    remainder = (weight << _TOTAL_BITS) - count * mass
    low = remainder < 0
    high = remainder >= mass
    remainder += tl.where(low, mass, 0) - tl.where(high, mass, 0)
    count += high.to(tl.int64) - low.to(tl.int64)
    tl.store(counts + at, count.to(tl.int32), mask=mask)
    tl.store(remainders + at, remainder, mask=mask)
    tl.store(floors + row * NB + tl.program_id(1), tl.sum(count, axis=1), mask=row < N)


@triton.jit
def left_kernel(
    floors,
    positives,
    needed,
    statuses,
    N,
    NB,
    ROWS: tl.constexpr,
    NBP: tl.constexpr,
):
    """Counts left over, 0 <= left < n, or the allocation is inconsistent (A9)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    number = tl.sum(spread_of(positives, row, N, NB, ROWS, NBP, 0), axis=1)
    left = -tl.sum(spread_of(floors, row, N, NB, ROWS, NBP, 0), axis=1) + _TOTAL
    left = tl.where(number > 0, left, 0)
    wrong = (left < 0) | (left >= tl.maximum(number, 1))
    status = tl.load(statuses + row, mask=row < N, other=0)
    status = tl.where(wrong & (status == 0), _INCONSISTENT, status)
    tl.store(statuses + row, status, mask=row < N)
    tl.store(needed + row, tl.where(wrong, 0, left).to(tl.int64), mask=row < N)


@triton.jit
def assign_remainders_kernel(
    counts,
    remainders,
    thresholds,
    ties,
    tie_counts,
    needed,
    sums,
    used,
    N,
    V,
    NB,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    NBP: tl.constexpr,
):
    """One more for the count of each chosen remainder; the sum and the ids in use of each block."""
    row, col, mask = tile(N, V, ROWS, BLOCK)
    at = row[:, None] * V + col[None, :]
    remainder = tl.load(remainders + at, mask=mask, other=0)
    one = chosen(remainder, mask, row, thresholds, ties, tie_counts, N, NB, ROWS, NBP)
    some = tl.load(needed + row, mask=row < N, other=0) > 0
    count = tl.load(counts + at, mask=mask, other=0) + (one & some[:, None]).to(tl.int32)
    tl.store(counts + at, count, mask=mask)
    block = row * NB + tl.program_id(1)
    tl.store(sums + block, tl.sum(count, axis=1), mask=row < N)
    tl.store(used + block, tl.sum((count > 0).to(tl.int32), axis=1), mask=row < N)


@triton.jit
def settle_kernel(sums, statuses, N, NB, ROWS: tl.constexpr, NBP: tl.constexpr):
    """The sum is 2^24 exactly, or the allocation is inconsistent (A9)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    total = tl.sum(spread_of(sums, row, N, NB, ROWS, NBP, 0), axis=1)
    status = tl.load(statuses + row, mask=row < N, other=0)
    status = tl.where((status == 0) & (total != _TOTAL), _INCONSISTENT, status)
    tl.store(statuses + row, status, mask=row < N)


@triton.jit
def first_largest_kernel(
    logits,
    tops,
    lows,
    firsts,
    statuses,
    N,
    V,
    NB,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    NBP: tl.constexpr,
):
    """The lowest id with the row's largest logit in each block, V where there is none (A2)."""
    row, col, mask = tile(N, V, ROWS, BLOCK)
    largest, status = row_state(tops, lows, row, N, NB, ROWS, NBP)
    z = widened(tl.load(logits + row[:, None] * V + col[None, :], mask=mask, other=0.0))
    z = z.to(tl.float64)
    best = mask & (z == largest[:, None]) & (status == 0)[:, None]
    first = tl.min(tl.where(best, col[None, :], V), axis=1)
    tl.store(firsts + row * NB + tl.program_id(1), first, mask=row < N)
    if tl.program_id(1) == 0:
        tl.store(statuses + row, status, mask=row < N)


@triton.jit
def point_kernel(
    firsts,
    counts,
    used,
    N,
    V,
    NB,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    NBP: tl.constexpr,
):
    """The whole count on the lowest of the firsts (A2)."""
    row, col, mask = tile(N, V, ROWS, BLOCK)
    best = tl.min(spread_of(firsts, row, N, NB, ROWS, NBP, 0x7FFFFFFF), axis=1)
    here = mask & (col[None, :] == best[:, None])
    count = tl.where(here, _TOTAL, 0)
    tl.store(counts + row[:, None] * V + col[None, :], count, mask=mask)
    tl.store(used + row * NB + tl.program_id(1), tl.sum(here.to(tl.int32), axis=1), mask=row < N)


@triton.jit
def compact_kernel(
    counts,
    used,
    ids,
    kept,
    S,
    N,
    V,
    NB,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    NBP: tl.constexpr,
):
    """Ids in use, ascending, and their counts into S columns (A10)."""
    row, col, mask = tile(N, V, ROWS, BLOCK)
    count = tl.load(counts + row[:, None] * V + col[None, :], mask=mask, other=0)
    before = earlier_of(spread_of(used, row, N, NB, ROWS, NBP, 0), NBP)
    positive = count > 0
    place = before[:, None] + tl.cumsum(positive.to(tl.int32), axis=1) - 1
    inside = positive & (place < S)
    out = row[:, None] * S + place
    tl.store(ids + out, col[None, :] + tl.zeros([ROWS, BLOCK], tl.int32), mask=inside)
    tl.store(kept + out, count, mask=inside)


@triton.jit
def block_counts_kernel(counts, sums, N, V, NB, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The count of each block."""
    row, col, mask = tile(N, V, ROWS, BLOCK)
    count = tl.load(counts + row[:, None] * V + col[None, :], mask=mask, other=0)
    tl.store(sums + row * NB + tl.program_id(1), tl.sum(count, axis=1), mask=row < N)


@triton.jit
def draw_kernel(
    counts,
    ids,
    sums,
    words,
    tokens,
    N,
    V,
    NB,
    SPARSE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    NBP: tl.constexpr,
):
    """The first id whose cumulative count is above the word: its block first, then in it (A16)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    word = tl.load(words + row, mask=row < N, other=0).to(tl.int32)[:, None]
    spread = spread_of(sums, row, N, NB, ROWS, NBP, 0)
    before = tl.cumsum(spread, axis=1) <= word
    block = tl.sum(before.to(tl.int32), axis=1)
    start = tl.sum(tl.where(before, spread, 0), axis=1)
    col = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = (row < N)[:, None] & (col < V)
    count = tl.load(counts + row[:, None] * V + col, mask=mask, other=0)
    passed = start[:, None] + tl.cumsum(count, axis=1) <= word
    at = block * BLOCK + tl.sum(passed.to(tl.int32), axis=1)
    found = (row < N) & (at < V)
    token = at.to(tl.int64)
    if SPARSE:
        token = tl.load(ids + row * V + at, mask=found, other=0).to(tl.int64)
    tl.store(tokens + row, tl.where(found, token, _NO_TOKEN), mask=row < N)
