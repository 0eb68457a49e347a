"""Selection on the device without sorting: histograms of digits from the top (A5, A6, A8, A9).

A pass is one kernel: each of its programs first reads where the pass before ended from that pass's
histogram, so nothing waits for the host, and the number of passes depends on the width alone.
Keys are int64 (N, V), 0 for what cannot be chosen; a choice never ends on 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from draftwire.kernels.triton.tiles import Cut, earlier_of, launch, spread_of, tile


@triton.jit
def _descend(histogram, prefix, needed, row, N, ROWS: tl.constexpr, BITS: tl.constexpr):
    """One digit more: the bucket in which the sum from the top reaches ``needed``."""
    bucket = tl.arange(0, 1 << BITS)
    at = row[:, None] * (1 << BITS) + bucket[None, :]
    sums = tl.load(histogram + at, mask=(row < N)[:, None], other=0)
    above = tl.sum(sums, axis=1)[:, None] - tl.cumsum(sums, axis=1)
    digit = tl.sum((above >= needed[:, None]).to(tl.int64), axis=1)
    digit = tl.minimum(digit, (1 << BITS) - 1)
    higher = tl.sum(tl.where(bucket[None, :] == digit[:, None], above, 0), axis=1)
    return (prefix << BITS) | digit, needed - higher


@triton.jit(do_not_specialize=["shift", "index"])
def _pass_kernel(
    keys,
    histograms,
    prefixes,
    needs,
    shift,
    index,
    N,
    V,
    FIRST: tl.constexpr,
    BY_MASS: tl.constexpr,
    BITS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Histogram of digit ``index`` of the keys that share the digits chosen so far."""
    row, col, mask = tile(N, V, ROWS, BLOCK)
    if FIRST:
        prefix = tl.zeros([ROWS], tl.int64)
        needed = tl.load(needs + row, mask=row < N, other=0)
    else:
        before = (index - 1).to(tl.int64) * N
        prefix = tl.load(prefixes + before + row, mask=row < N, other=0)
        needed = tl.load(needs + before + row, mask=row < N, other=0)
        own = histograms + before * (1 << BITS)
        prefix, needed = _descend(own, prefix, needed, row, N, ROWS, BITS)
    here = index.to(tl.int64) * N
    if tl.program_id(1) == 0:
        tl.store(prefixes + here + row, prefix, mask=row < N)
        tl.store(needs + here + row, needed, mask=row < N)
    key = tl.load(keys + row[:, None] * V + col[None, :], mask=mask, other=0)
    upper = key >> shift
    inside = mask & (key > 0) & ((upper >> BITS) == prefix[:, None])
    place = (here + row)[:, None] * (1 << BITS) + (upper & ((1 << BITS) - 1))
    if BY_MASS:
        tl.atomic_add(histograms + place, key, mask=inside)
    else:
        tl.atomic_add(histograms + place, tl.full([ROWS, BLOCK], 1, tl.int64), mask=inside)


@triton.jit(do_not_specialize=["last"])
def _ties_kernel(
    keys,
    histograms,
    prefixes,
    needs,
    tie_counts,
    thresholds,
    ties,
    last,
    N,
    V,
    NB,
    BY_MASS: tl.constexpr,
    BITS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The last digit; how many keys of each block equal the threshold."""
    row, col, mask = tile(N, V, ROWS, BLOCK)
    before = last.to(tl.int64) * N
    prefix = tl.load(prefixes + before + row, mask=row < N, other=0)
    needed = tl.load(needs + before + row, mask=row < N, other=0)
    own = histograms + before * (1 << BITS)
    threshold, needed = _descend(own, prefix, needed, row, N, ROWS, BITS)
    if BY_MASS:
        least = tl.maximum(threshold, 1)
        needed = (needed + least - 1) // least
    if tl.program_id(1) == 0:
        tl.store(thresholds + row, threshold, mask=row < N)
        tl.store(ties + row, needed, mask=row < N)
    key = tl.load(keys + row[:, None] * V + col[None, :], mask=mask, other=0)
    equal = mask & (key == threshold[:, None])
    count = tl.sum(equal.to(tl.int32), axis=1)
    tl.store(tie_counts + row * NB + tl.program_id(1), count, mask=row < N)


@triton.jit
def chosen(
    key, mask, row, thresholds, ties, tie_counts, N, NB, ROWS: tl.constexpr, NBP: tl.constexpr
):
    """Which keys of this tile are chosen: above the threshold, or among its first ties."""
    threshold = tl.load(thresholds + row, mask=row < N, other=0)[:, None]
    wanted = tl.load(ties + row, mask=row < N, other=0)[:, None]
    counts = spread_of(tie_counts, row, N, NB, ROWS, NBP, 0)
    equal = mask & (key == threshold)
    order = earlier_of(counts, NBP)[:, None] + tl.cumsum(equal.to(tl.int32), axis=1)
    return mask & ((key > threshold) | (equal & (order <= wanted)))


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a choice ended: threshold and ties int64 (N,), ties of each block int32 (N, blocks)."""

    thresholds: torch.Tensor
    ties: torch.Tensor
    tie_counts: torch.Tensor


def choose(
    keys: torch.Tensor, needed: torch.Tensor, width: int, cut: Cut, *, by_mass: bool = False
) -> Choice:
    """Where the largest keys of each row reach ``needed`` keys, or ``needed`` mass.

    keys: each in [0, 2^width); needed: int64 (N,), in 0..keys above zero, or 1..their sum.
    """
    passes = -(-width // cut.digit)
    shape = (passes, cut.count)
    prefixes = torch.empty(shape, dtype=torch.int64, device=keys.device)
    needs = torch.empty_like(prefixes)
    needs[0].copy_(needed)
    histograms = torch.zeros((*shape, 1 << cut.digit), dtype=torch.int64, device=keys.device)
    for index in range(passes):
        launch(
            _pass_kernel,
            cut.by_block,
            keys,
            histograms,
            prefixes,
            needs,
            (passes - 1 - index) * cut.digit,
            index,
            cut.count,
            cut.width,
            FIRST=index == 0,
            BY_MASS=by_mass,
            BITS=cut.digit,
            ROWS=cut.rows,
            BLOCK=cut.block,
        )
    made = Choice(
        torch.empty_like(needed),
        torch.empty_like(needed),
        cut.partial(keys, torch.int32),
    )
    launch(
        _ties_kernel,
        cut.by_block,
        keys,
        histograms,
        prefixes,
        needs,
        made.tie_counts,
        made.thresholds,
        made.ties,
        passes - 1,
        cut.count,
        cut.width,
        cut.blocks,
        BY_MASS=by_mass,
        BITS=cut.digit,
        ROWS=cut.rows,
        BLOCK=cut.block,
    )
    return made
