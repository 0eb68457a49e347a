"""The Triton kernels of A17-A20: masses, the fused acceptance of K positions, residual and find.

p is ``a_v / A`` with a_v = exp64(z_v - max) of A4 (A24), here in every place; sums of any order lie
within :func:`draftwire.kernels.backend.bound_of`. A choice inside its bound is UNDECIDED.
"""

from __future__ import annotations

import triton
import triton.language as tl

from draftwire.kernels.backend import P_CUTOFF, UNDECIDED
from draftwire.kernels.triton.tiles import exp64, row_state, spread_of, tile, widened

_P_CUTOFF = tl.constexpr(P_CUTOFF)
_TICKETS = tl.constexpr(2.0**24)
_SPAN = tl.constexpr(2.0**48)
_STEP = tl.constexpr(2.0**-48)
_TICKETS_SPAN = tl.constexpr(2.0**72)
_ZERO_Q = tl.constexpr(3)
_ZERO_RESIDUAL = tl.constexpr(4)
_OUT_OF_RANGE = tl.constexpr(6)
_UNDECIDED = tl.constexpr(UNDECIDED)
_NO_TOKEN = tl.constexpr(-1)


@triton.jit
def weights_of(z, largest):
    """p, not normalised, of logits widened to binary64 (A24); 0 for NaN."""
    d = z - largest
    inside = d >= _P_CUTOFF
    return tl.where(inside, exp64(tl.where(inside, tl.minimum(d, 0.0), 0.0)), 0.0)


@triton.jit
def mass_kernel(
    logits,
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
    largest, _ = row_state(tops, lows, row, N, NB, ROWS, NBP)
    at = row[:, None] * V + col[None, :]
    z = widened(tl.load(logits + at, mask=mask, other=float("-inf"))).to(tl.float64)
    mass = tl.sum(weights_of(z, largest[:, None]), axis=1)
    tl.store(masses + row * NB + tl.program_id(1), mass, mask=row < N)


@triton.jit
def lookup(
    counts, ids, row, token, here, S, SPARSE: tl.constexpr, ROWS: tl.constexpr, SP: tl.constexpr
):
    """Counts at one id of each row, 0 where not ``here``; S columns a row."""
    if SPARSE:
        column = tl.arange(0, SP)
        mask = here[:, None] & (column < S)[None, :]
        at = row[:, None] * S + column[None, :]
        same = tl.load(ids + at, mask=mask, other=-1).to(tl.int64) == token[:, None]
        count = tl.load(counts + at, mask=mask & same, other=0)
        found = tl.sum(count, axis=1)
    else:
        found = tl.load(counts + row * S + token, mask=here, other=0)
    return found.to(tl.int64)


@triton.jit
def lookup_kernel(
    counts,
    ids,
    tokens,
    found,
    V,
    S,
    N,
    SPARSE: tl.constexpr,
    ROWS: tl.constexpr,
    SP: tl.constexpr,
):
    """Counts at one global id a row, 0 outside the support or the vocabulary."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    token = tl.load(tokens + row, mask=row < N, other=-1)
    here = (row < N) & (token >= 0) & (token < V)
    tl.store(found + row, lookup(counts, ids, row, token, here, S, SPARSE, ROWS, SP), mask=row < N)


@triton.jit
def plain_kernel(
    tops,
    lows,
    masses,
    rows,
    largests,
    scales,
    statuses,
    N,
    NB,
    ROWS: tl.constexpr,
    NBP: tl.constexpr,
):
    """What :func:`residual_kernel` needs of N rows that are each their own request."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    largest, status = row_state(tops, lows, row, N, NB, ROWS, NBP)
    mass = tl.sum(spread_of(masses, row, N, NB, ROWS, NBP, 0.0), axis=1)
    tl.store(rows + row, row, mask=row < N)
    tl.store(largests + row, largest, mask=row < N)
    tl.store(scales + row, 1.0 / mass * _TICKETS, mask=row < N)
    tl.store(statuses + row, status, mask=row < N)


@triton.jit
def judge_kernel(
    logits,
    tops,
    lows,
    masses,
    tokens,
    counts,
    ids,
    acceptance,
    correction,
    bonus,
    rows,
    keeps,
    firsts,
    largests,
    scales,
    statuses,
    faults,
    accepted,
    B,
    K,
    V,
    S,
    NB,
    AS,
    CS,
    BS,
    bound: tl.constexpr,
    SPARSE: tl.constexpr,
    ROWS: tl.constexpr,
    NBP: tl.constexpr,
    SP: tl.constexpr,
):
    """The fused acceptance over K positions, and which row is drawn from next (A18).

    AS, CS, BS: strides of a request in acceptance, correction and bonus.
    """
    request = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    live = request < B
    R = B * (K + 1)
    count = tl.zeros([ROWS], tl.int64)
    status = tl.zeros([ROWS], tl.int32)
    fault = tl.zeros([ROWS], tl.int32)
    alive = live
    for k in range(K):
        row = request * (K + 1) + k
        largest, own = row_state(tops, lows, row, R, NB, ROWS, NBP)
        mass = tl.sum(spread_of(masses, row, R, NB, ROWS, NBP, 0.0), axis=1)
        token = tl.load(tokens + request * K + k, mask=live, other=-1)
        here = live & (token >= 0) & (token < V)
        tickets = lookup(counts, ids, request * K + k, token, here, S, SPARSE, ROWS, SP)
        wrong = tl.where(here, tl.where(tickets == 0, _ZERO_Q, 0), _OUT_OF_RANGE)
        fault = tl.where((fault == 0) & live, wrong, fault)
        z = widened(tl.load(logits + row * V + token, mask=here, other=float("-inf")))
        z = z.to(tl.float64)
        weight = weights_of(z, largest)
        threshold = weight * _TICKETS_SPAN / (tl.maximum(tickets, 1).to(tl.float64) * mass)
        margin = threshold * bound
        first = tl.load(acceptance + request * AS + k, mask=live, other=0)
        u = first.to(tl.float64)
        yes = (threshold - margin >= _SPAN) | (u + 1.0 <= threshold - margin)
        no = (weight == 0.0) | ((first > 0) & (u >= threshold + margin))
        stands = alive & yes & (no == 0) & (own == 0)
        own = tl.where((own == 0) & (yes == 0) & (no == 0), _UNDECIDED, own)
        status = tl.where(alive & (stands == 0), own, status)
        count += stands.to(tl.int64)
        alive = stands
    row = request * (K + 1) + count
    row = tl.where(live, row, R)
    largest, own = row_state(tops, lows, row, R, NB, ROWS, NBP)
    mass = tl.sum(spread_of(masses, row, R, NB, ROWS, NBP, 0.0), axis=1)
    rejected = count < K
    at = tl.minimum(count, K - 1)
    second = tl.load(correction + request * CS + at, mask=live, other=0)
    last = tl.load(bonus + request * BS, mask=live, other=0)
    tl.store(rows + request, row, mask=live)
    tl.store(keeps + request, tl.where(rejected, request * K + at, -1), mask=live)
    tl.store(firsts + request, tl.where(rejected, second, last), mask=live)
    tl.store(largests + request, largest, mask=live)
    tl.store(scales + request, 1.0 / mass * _TICKETS, mask=live)
    tl.store(statuses + request, tl.where(status == 0, own, status), mask=live)
    tl.store(faults + request, fault, mask=live)
    tl.store(accepted + request, count, mask=live)


@triton.jit
def spread_q_kernel(counts, ids, keeps, dense, S, V, N, ROWS: tl.constexpr, SP: tl.constexpr):
    """The sparse row of q that each request is drawn against, into zeroed dense rows."""
    request = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    keep = tl.load(keeps + request, mask=request < N, other=-1)
    column = tl.arange(0, SP)
    mask = (keep >= 0)[:, None] & (column < S)[None, :]
    at = keep[:, None] * S + column[None, :]
    token = tl.load(ids + at, mask=mask, other=-1)
    mask = mask & (token >= 0) & (token < V)
    count = tl.load(counts + at, mask=mask, other=0)
    tl.store(dense + request[:, None] * V + token, count, mask=mask)


@triton.jit
def _residual(logits, counts, row, keep, largest, scale, col, mask, V):
    """max(p - q, 0) in tickets in one tile; q is zero where keep is negative (A19)."""
    z = widened(tl.load(logits + row[:, None] * V + col, mask=mask, other=float("-inf")))
    z = z.to(tl.float64)
    tickets = weights_of(z, largest[:, None]) * scale[:, None]
    own = mask & (keep >= 0)[:, None]
    count = tl.load(counts + keep[:, None] * V + col, mask=own, other=0)
    return tl.where(mask, tl.maximum(tickets - count.to(tl.float64), 0.0), 0.0)


@triton.jit
def residual_kernel(
    logits,
    counts,
    rows,
    keeps,
    largests,
    scales,
    sums,
    N,
    V,
    NB,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Residual mass of each block of the row that each request is drawn from."""
    request, col, mask = tile(N, V, ROWS, BLOCK)
    live = request < N
    row = tl.load(rows + request, mask=live, other=0)
    keep = tl.load(keeps + request, mask=live, other=-1)
    largest = tl.load(largests + request, mask=live, other=0.0)
    scale = tl.load(scales + request, mask=live, other=0.0)
    values = _residual(
        logits,
        counts,
        row,
        keep,
        largest,
        scale,
        tl.zeros([ROWS, 1], tl.int32) + col[None, :],
        mask,
        V,
    )
    tl.store(sums + request * NB + tl.program_id(1), tl.sum(values, axis=1), mask=live)


@triton.jit
def find_kernel(
    logits,
    counts,
    rows,
    keeps,
    largests,
    scales,
    sums,
    firsts,
    faults,
    statuses,
    accepted,
    tokens,
    N,
    V,
    NB,
    bound: tl.constexpr,
    CORRECTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    NBP: tl.constexpr,
):
    """The id whose interval surely holds U, or why there is none (A15); the whole status.

    CORRECTS: whether a row without mass is a rejected one, for requests with no ``keep`` too.
    """
    request = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    live = request < N
    row = tl.load(rows + request, mask=live, other=0)
    keep = tl.load(keeps + request, mask=live, other=-1)
    largest = tl.load(largests + request, mask=live, other=0.0)
    scale = tl.load(scales + request, mask=live, other=0.0)
    first = tl.load(firsts + request, mask=live, other=0)
    slack = _TICKETS * bound
    spread = spread_of(sums, request, N, NB, ROWS, NBP, 0.0)
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
    values = _residual(logits, counts, row, keep, largest, scale, col, mask, V)
    after = start[:, None] + tl.cumsum(values, axis=1)
    within = tl.sum(((after <= middle) & mask).to(tl.int32), axis=1)
    within = tl.minimum(within, tl.minimum(BLOCK, V - block * BLOCK) - 1)
    index = tl.arange(0, BLOCK)[None, :]
    end = tl.sum(tl.where(index == within[:, None], after, 0.0), axis=1)
    begin = tl.sum(tl.where(index == within[:, None] - 1, after, 0.0), axis=1)
    begin = tl.where(within == 0, start, begin)
    at = (block * BLOCK + within).to(tl.int64)
    lower = (begin + slack <= unit * (total - slack)) | (at == 0)
    upper = ((unit + _STEP) * (total + slack) <= end - slack) | (at == V - 1)
    status = tl.load(statuses + request, mask=live, other=0)
    empty = (total == 0.0) & ((keep >= 0) | CORRECTS)
    status = tl.where((status == 0) & empty, _ZERO_RESIDUAL, status)
    sure = lower & upper
    status = tl.where((status == 0) & (sure == 0), _UNDECIDED, status)
    fault = tl.load(faults + request, mask=live, other=0)
    status = tl.where(fault != 0, fault, status)
    tl.store(statuses + request, status, mask=live)
    tl.store(tokens + request, tl.where(status == 0, at, _NO_TOKEN), mask=live)
    stands = tl.load(accepted + request, mask=live, other=0)
    tl.store(accepted + request, tl.where(status == 0, stands, 0), mask=live)
