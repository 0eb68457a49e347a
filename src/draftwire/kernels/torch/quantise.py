"""A1-A10 on tensors: logits to integer weights to counts, equal to the exact layer to the bit.

Each elementary operation of A4 is one torch operation, so that nothing can contract a multiply and
an add. Integers stay below 2^63 as in :mod:`draftwire.kernels.cpu.quantise_loops`.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from draftwire.errors import RefusalCode
from draftwire.exact import quantise as exact
from draftwire.kernels.protocol import QRows
from draftwire.kernels.torch.select import chosen, compact, threshold_of
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TOTAL, WEIGHT_BITS, Layout

TOTAL_BITS: Final = 24
_BIAS: Final = 1023
_KEY_BITS: Final = 33  # of order_keys
_WEIGHT_WIDTH: Final = WEIGHT_BITS + 1
_REMAINDER_WIDTH: Final = 62  # a remainder is below W <= 2^62


def exp64(d: Tensor) -> Tensor:
    """A4 for each element of a binary64 tensor, -700 <= d <= 0; ``d`` is used up."""
    k = torch.mul(d, exact.LOG2E).add_(0.5).floor_()
    r = d.sub_(k * exact.LN2_HI).sub_(k * exact.LN2_LO)
    s = torch.mul(r, exact.COEFFICIENTS[11]).add_(exact.COEFFICIENTS[10])
    for coefficient in exact.COEFFICIENTS[9::-1]:
        s.mul_(r).add_(coefficient)
    # 2^k put together from its exponent: a library's power need not be exact.
    power = k.to(torch.int64).add_(_BIAS).bitwise_left_shift_(52).view(torch.float64)
    return s.mul_(power)


def row_status(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Largest logit of each row as binary64, 0 where the row is refused; the status (A1)."""
    largest = logits.amax(-1).to(torch.float64)  # NaN if any is
    status = torch.zeros_like(largest, dtype=torch.int32)
    status = status.masked_fill(largest == -torch.inf, int(RefusalCode.ZERO_MASS))
    status = status.masked_fill(~(largest < torch.inf), int(RefusalCode.NON_FINITE))
    return largest.masked_fill(status != 0, 0.0), status


def integer_weights(logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Weights int64 (N, V), all 0 in a refused row, and the status (A1-A4)."""
    largest, status = row_status(logits)
    scaled = (logits.to(torch.float64) - largest[:, None]).mul_(1.0 / temperature)
    inside = (scaled >= exact.CUTOFF) & (status == 0)[:, None]
    grown = exp64(scaled.masked_fill_(~inside, 0.0)).mul_(2.0**WEIGHT_BITS)
    return grown.to(torch.int64).mul_(inside), status


def order_keys(logits: Tensor, kept: Tensor) -> Tensor:
    """Keys in the order of the logits, -0.0 equal to +0.0, in 1..2^32; 0 for ids not ``kept``."""
    bits = logits.to(torch.float32).contiguous().view(torch.int32)
    keys = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(torch.int64)
    keys = keys.masked_fill_(keys == -1, 0).add_((1 << 31) + 1)
    return keys.mul_(kept)


def _largest(logits: Tensor, weights: Tensor, count: int) -> Tensor:
    """Zero the weights of all but the ``count`` largest logits that have one (A5, A8)."""
    kept = weights > 0
    keys = order_keys(logits, kept)
    wanted = kept.sum(1).clamp_(max=count)
    return weights * chosen(keys, *threshold_of(keys, wanted, _KEY_BITS))


def _nucleus(weights: Tensor, top_p: int) -> Tensor:
    """Zero the weights behind the shortest prefix that has the mass (A6)."""
    mass = weights.sum(1)
    # ceil(P * W / 2^24) with W split in 24 bits below and 38 above, so that no product overflows.
    upper, lower = mass >> TOTAL_BITS, mass & (TOTAL - 1)
    needed = upper * top_p + ((lower * top_p + TOTAL - 1) >> TOTAL_BITS)
    return weights * chosen(weights, *threshold_of(weights, needed, _WEIGHT_WIDTH, by_mass=True))


def allocate(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Counts int32 (N, n) of weights int64 (N, n), and where the allocation is inconsistent (A9).

    A row without weight gets no counts.
    """
    mass = weights.sum(1, keepdim=True)
    some = (mass > 0).to(torch.int64)
    mass = mass.clamp(min=1)
    # The estimate is wrong by one at most (floor_counts of the CPU); the remainder tells which way.
    ratio = torch.reciprocal(mass.to(torch.float64)).mul_(float(TOTAL))
    counts = weights.to(torch.float64).mul_(ratio).floor_().to(torch.int64)
    remainders = (weights << TOTAL_BITS).sub_(counts * mass)
    low, high = remainders < 0, remainders >= mass
    remainders.add_(low * mass).sub_(high * mass)
    counts.add_(high.to(torch.int64)).sub_(low.to(torch.int64))
    left = (TOTAL - counts.sum(1, keepdim=True)) * some
    positive = (weights > 0).sum(1, keepdim=True)
    wrong = (left < 0) | (left >= positive.clamp(min=1))
    left = left.masked_fill(wrong, 0)[:, 0]
    one = chosen(remainders, *threshold_of(remainders, left, _REMAINDER_WIDTH))
    counts.add_(one & (left > 0)[:, None])
    wrong = wrong | (counts.sum(1, keepdim=True) != TOTAL * some)
    return counts.to(torch.int32), wrong[:, 0]


def _greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The whole count on the lowest id with the largest logit: counts int64 (N, V), status (A2)."""
    _, status = row_status(logits)
    best = logits.to(torch.float32) == logits.amax(-1, keepdim=True).to(torch.float32)
    first = best & (best.cumsum(1, dtype=torch.int32) == 1)
    return (first & (status == 0)[:, None]).to(torch.int32).mul_(TOTAL), status


def quantise(logits: Tensor, policy: ProposalPolicy) -> tuple[QRows[Tensor], Tensor]:
    """q of (N, V) logits, and the status; see ``Kernels.quantise``."""
    if policy.temperature == 0:
        counts, status = _greedy(logits)
    else:
        weights, status = integer_weights(logits, policy.temperature)
        if policy.top_k:
            weights = _largest(logits, weights, policy.top_k)
        if policy.top_p < TOTAL:
            weights = _nucleus(weights, policy.top_p)
        if policy.min_p:
            weights = weights * (weights >= policy.min_p << (WEIGHT_BITS - 24))
        if policy.support and policy.support < logits.shape[1]:
            weights = _largest(logits, weights, policy.support)
        counts, wrong = allocate(weights)
        inconsistent = int(RefusalCode.INCONSISTENT_ALLOCATION)
        status = status.masked_fill(wrong & (status == 0), inconsistent)
    size = logits.shape[1]
    if policy.layout is Layout.DENSE:
        return QRows(size, None, counts), status
    ids, kept = compact(counts > 0, counts, max(1, policy.support))
    return QRows(size, ids, kept), status
