"""The Triton kernels of A17-A20: largest, score and mass of rows; the residual, and a draw from it.

p is ``a_v / A`` with a_v = exp64(z_v - max) of A4 (A24), here in every place; sums of any order lie
within :func:`draftwire.kernels.protocol.bound_of`. A draw inside its bound is left to the host.
"""

from __future__ import annotations

import triton
import triton.language as tl

from draftwire.kernels.protocol import P_CUTOFF
from draftwire.kernels.triton.tiles import exp64, spread_of, tile, widened

_P_CUTOFF = tl.constexpr(P_CUTOFF)
_TOTAL = tl.constexpr(2.0**24)
_STEP = tl.constexpr(2.0**-48)
_KEY_NAN = tl.constexpr(0x7FFFFFFF)
_KEY_MINUS_INFINITY = tl.constexpr(-0x7F800001)
_NO_TOKEN = tl.constexpr(-1)


@triton.jit
def weights_of(z, largest):
    """p, not normalised, of logits widened to binary64 (A24); 0 for NaN."""
    d = z - largest
    inside = d >= _P_CUTOFF
    return tl.where(inside, exp64(tl.where(inside, tl.minimum(d, 0.0), 0.0)), 0.0)


@triton.jit
def largest_of(tops, lows, row, N, NB, ROWS: tl.constexpr, NBP: tl.constexpr):
    """Largest score of each row, binary32: NaN where any score is."""
    top = tl.max(spread_of(tops, row, N, NB, ROWS, NBP, _KEY_MINUS_INFINITY), axis=1)
    low = tl.min(spread_of(lows, row, N, NB, ROWS, NBP, 0x7FFFFFFF), axis=1)
    # A NaN with its sign set is below -infinity in this order, and the others above infinity.
    key = tl.where(low < _KEY_MINUS_INFINITY, _KEY_NAN, top)
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def mass_kernel(
    scores,
    tops,
    lows,
    masses,
    N,
    V,
    NB,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    NBP: tl.constexpr,
):
    """Sum of the weights of each block."""
    row, col, mask = tile(N, V, ROWS, BLOCK)
    largest = largest_of(tops, lows, row, N, NB, ROWS, NBP).to(tl.float64)
    at = row[:, None] * V + col[None, :]
    z = widened(tl.load(scores + at, mask=mask, other=float("-inf"))).to(tl.float64)
    mass = tl.sum(weights_of(z, largest[:, None]), axis=1)
    tl.store(masses + row * NB + tl.program_id(1), mass, mask=row < N)


@triton.jit
def measure_kernel(
    scores,
    tokens,
    tops,
    lows,
    masses,
    out,
    N,
    V,
    NB,
    ROWS: tl.constexpr,
    NBP: tl.constexpr,
):
    """Largest score, score of one token and mass of each row, three numbers a row."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    live = row < N
    largest = largest_of(tops, lows, row, N, NB, ROWS, NBP)
    token = tl.load(tokens + row, mask=live, other=0)
    score = widened(tl.load(scores + row * V + token, mask=live, other=0.0))
    mass = tl.sum(spread_of(masses, row, N, NB, ROWS, NBP, 0.0), axis=1)
    tl.store(out + row * 3, largest.to(tl.float64), mask=live)
    tl.store(out + row * 3 + 1, score.to(tl.float64), mask=live)
    tl.store(out + row * 3 + 2, mass, mask=live)


@triton.jit
def residual_of(scores, q, row, largest, scale, col, mask, V, HAS_Q: tl.constexpr):
    """max(p - q, 0) in one tile, of a mass of 2^24 at most (A19); p where there is no q."""
    at = row[:, None] * V + col
    z = widened(tl.load(scores + at, mask=mask, other=float("-inf"))).to(tl.float64)
    values = weights_of(z, largest[:, None]) * scale[:, None]
    if HAS_Q:
        values = values - tl.load(q + at, mask=mask, other=0).to(tl.float64)
    return tl.where(mask, tl.maximum(values, 0.0), 0.0)


@triton.jit
def residual_kernel(
    scores,
    q,
    tops,
    lows,
    masses,
    sums,
    N,
    V,
    NB,
    HAS_Q: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    NBP: tl.constexpr,
):
    """Mass of max(p - q, 0) in each block."""
    row, col, mask = tile(N, V, ROWS, BLOCK)
    largest = largest_of(tops, lows, row, N, NB, ROWS, NBP).to(tl.float64)
    scale = 1.0 / tl.sum(spread_of(masses, row, N, NB, ROWS, NBP, 0.0), axis=1) * _TOTAL
    place = tl.zeros([ROWS, 1], tl.int32) + col[None, :]
    values = residual_of(scores, q, row, largest, scale, place, mask, V, HAS_Q)
    tl.store(sums + row * NB + tl.program_id(1), tl.sum(values, axis=1), mask=row < N)


@triton.jit
def find_kernel(
    scores,
    q,
    tops,
    lows,
    masses,
    sums,
    firsts,
    tokens,
    N,
    V,
    NB,
    bound: tl.constexpr,
    HAS_Q: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    NBP: tl.constexpr,
):
    """The id whose interval surely holds U, NO_TOKEN where none does (A15)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    live = row < N
    largest = largest_of(tops, lows, row, N, NB, ROWS, NBP).to(tl.float64)
    scale = 1.0 / tl.sum(spread_of(masses, row, N, NB, ROWS, NBP, 0.0), axis=1) * _TOTAL
    first = tl.load(firsts + row, mask=live, other=0)
    slack = _TOTAL * bound
    spread = spread_of(sums, row, N, NB, ROWS, NBP, 0.0)
    total = tl.sum(spread, axis=1)
    unit = first.to(tl.float64) * _STEP
    middle = (unit * total)[:, None]
    running = tl.cumsum(spread, axis=1)
    # Columns behind the last block hold the total; they are never the block.
    passed = (running <= middle) & (tl.arange(0, NBP) < NB - 1)[None, :]
    block = tl.sum(passed.to(tl.int32), axis=1)
    # Binary64 prefixes of a scan need not ascend: the start is summed from the blocks themselves.
    ahead = tl.arange(0, NBP)[None, :] < block[:, None]
    start = tl.sum(tl.where(ahead, spread, 0.0), axis=1)
    col = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = live[:, None] & (col < V)
    values = residual_of(scores, q, row, largest, scale, col, mask, V, HAS_Q)
    after = start[:, None] + tl.cumsum(values, axis=1)
    within = tl.sum(((after <= middle) & mask).to(tl.int32), axis=1)
    within = tl.minimum(within, tl.minimum(BLOCK, V - block * BLOCK) - 1)
    index = tl.arange(0, BLOCK)[None, :]
    end = tl.sum(tl.where(index == within[:, None], after, 0.0), axis=1)
    begin = tl.sum(tl.where(index == within[:, None] - 1, after, 0.0), axis=1)
    begin = tl.where(within == 0, start, begin)
    at = (block * BLOCK + within).to(tl.int64)
    # U is not below 0 and not 1: the first id needs no lower edge, and the last no upper one.
    lower = (begin + slack <= unit * (total - slack)) | (at == 0)
    upper = ((unit + _STEP) * (total + slack) <= end - slack) | (at == V - 1)
    sure = lower & upper & (total > 0.0)
    tl.store(tokens + row, tl.where(sure, at, _NO_TOKEN), mask=live)
