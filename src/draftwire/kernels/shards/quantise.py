"""q over vocabulary shards: one global support, one count vector, one draw (A25-A28).

Each rank calls with its own columns; the counts are those of :mod:`draftwire.kernels.cpu` on the
whole row, bit for bit, for every split. No row of logits, weights or counts leaves its rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.kernels.cpu.quantise_loops import KEY_MINUS_INFINITY, KEY_OFFSET
from draftwire.kernels.refusals import check_policy
from draftwire.kernels.shards import loops
from draftwire.kernels.shards.shard import (
    OK,
    Integers,
    Shard,
    ShardRows,
    Steps,
    before,
    broadcast,
    gather,
    maximum,
    total,
)
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TOTAL, WEIGHT_BITS

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_CANDIDATES: Final = 4096  # up to this k, each shard's top k is gathered; above, a histogram is
_KEY_BITS: Final = 32
_ABOVE_ALL: Final = np.int64((1 << 63) - 1)


def quantise(shard: Shard, logits: NDArray[np.float32], policy: ProposalPolicy) -> Steps[ShardRows]:
    """This shard's columns of the q of N rows of logits, under one policy (A25-A27).

    logits: binary32, contiguous (N, width), the rank's own columns. A row that the arithmetic
    refuses says so in its status, the same on all ranks, and touches no other.
    Errors: ArithmeticRefusalError OUT_OF_RANGE (array, policy), before anything is exchanged.
    """
    _check(shard, logits, policy)
    rows = len(logits)
    keys = np.empty(logits.shape, np.int64)
    loops.order_keys(logits.view(np.int32), keys)
    facts = np.empty((rows, 2), np.int64)
    loops.survey_logits(keys, facts)
    largest, refused = (yield from maximum(facts)).T
    status = _status(largest, refused)
    if policy.temperature == 0:
        counts = yield from _greedy(shard, keys, largest, status)
    else:
        weights = np.empty(logits.shape, np.int64)
        tops = loops.logits_of(np.where(status == OK, largest, KEY_OFFSET))
        loops.weigh_rows(logits, tops, status, 1.0 / policy.temperature, weights)
        yield from _restrict(shard, keys, weights, policy)
        counts = yield from _allocate(shard, weights, status)
    masses = (yield from gather(counts.sum(axis=1, dtype=np.int64))).T
    wrong = (status == OK) & (masses.sum(axis=1) != TOTAL)
    status[wrong] = RefusalCode.INCONSISTENT_ALLOCATION
    return ShardRows(shard, counts, np.ascontiguousarray(masses), status)


def draw(rows: ShardRows, words: Integers | None) -> Steps[Integers]:
    """The token of each row, int64 (N,), known to every rank; -1 for a refused row (A28).

    words: the leader's, int64 (N,) of 24 bits; no other rank has or needs any. Law, for uniform
    words: token v with probability counts[v] / 2^24 exactly; a shard without counts never.
    """
    count = len(rows.status)
    plan = np.full((count, 2), -1, np.int64)
    if rows.shard.leads:
        plan = _offsets(rows, words)
    plan = yield from broadcast(plan)
    found = np.empty(count, np.int64)
    loops.find_offsets(rows.counts, np.where(plan[:, 0] == rows.shard.rank, plan[:, 1], -1), found)
    found = np.where(found < 0, -1, found + rows.shard.begin)
    found = yield from maximum(found)
    return (yield from broadcast(found))


def largest_kept(
    shard: Shard, values: Integers, count: int, width: int
) -> Steps[tuple[Integers, Integers]]:
    """Where the ``count`` largest values over all shards end: (thresholds, own ties), each (N,).

    values: (N, n) in [0, 2^width), below zero = takes no part. All above the threshold are among
    them, and so are the first ``own ties`` of this shard that are it: ties go to the lowest id.
    """
    if count > MOST_CANDIDATES or width > _KEY_BITS:
        usable = yield from total(np.count_nonzero(values >= 0, axis=1).astype(np.int64))
        wanted = np.where(usable <= count, 0, count)
        thresholds, ties = yield from descend(values, wanted, width)
        thresholds[usable <= count] = -1
        return thresholds, (yield from share_ties(shard, values, thresholds, ties))
    own = np.empty((len(values), count), np.int64)
    loops.candidates(values, count, own)
    merged = yield from gather(own)
    thresholds = np.empty(len(values), np.int64)
    ties = np.empty(len(values), np.int64)
    in_order = np.ascontiguousarray(merged.transpose(1, 0, 2))
    loops.cut_of(in_order.reshape(len(values), -1), count, thresholds, ties)
    equal = (merged == thresholds[None, :, None]).sum(axis=2)
    earlier = before(equal.T)[:, shard.rank]
    return thresholds, np.clip(ties - earlier, 0, equal[shard.rank])


def descend(
    values: Integers, wanted: Integers, width: int, *, by_mass: bool = False
) -> Steps[tuple[Integers, Integers]]:
    """The wanted-th largest value of each row over all shards, in ceil(width / 6) sums (A26).

    wanted: (N,), 0 = nothing: then the threshold is above everything. by_mass: the value at which
    the sum of the largest ones reaches ``wanted``. Returns the thresholds and how much of what is
    wanted is left for those that are it.
    """
    left = wanted.copy()
    prefixes = np.zeros(len(values), np.int64)
    equal = np.zeros(len(values), np.int64)
    sums = np.empty((len(values), loops.BUCKETS), np.int64)
    for shift in range((-(-width // loops.DIGIT) - 1) * loops.DIGIT, -1, -loops.DIGIT):
        loops.histogram(values, prefixes, shift, by_mass, sums)
        loops.descend((yield from total(sums)), prefixes, left, equal)
    return np.where(wanted > 0, prefixes, _ABOVE_ALL), left


def share_ties(
    shard: Shard, values: Integers, thresholds: Integers, ties: Integers
) -> Steps[Integers]:
    """How many of each row's ``ties`` fall to this shard, the lowest ids first."""
    own = np.empty(len(values), np.int64)
    loops.count_equal(values, thresholds, own)
    earlier = before((yield from gather(own)).T)[:, shard.rank]
    return np.clip(ties - earlier, 0, own)


def _check(shard: Shard, logits: NDArray[np.float32], policy: ProposalPolicy) -> None:
    check_policy(policy)
    fits = logits.ndim == 2 and logits.shape[1] == shard.width and logits.flags.c_contiguous
    if not fits or logits.dtype != np.float32 or shard.vocab_size < 1:
        raise ArithmeticRefusalError(
            RefusalCode.OUT_OF_RANGE,
            f"a shard of {shard.width} ids has rows of float32, not {logits.dtype} {logits.shape}",
        )


def _status(largest: Integers, refused: Integers) -> Integers:
    """A1 of each row: NON_FINITE before ZERO_MASS."""
    lowest = KEY_MINUS_INFINITY + KEY_OFFSET
    status = np.where(largest <= lowest, RefusalCode.ZERO_MASS, OK)
    return np.where(refused > 0, RefusalCode.NON_FINITE, status)


def _greedy(
    shard: Shard, keys: Integers, largest: Integers, status: Integers
) -> Steps[NDArray[np.int32]]:
    """A2 at temperature 0: the whole count on the lowest id with the largest logit."""
    at = np.empty(len(keys), np.int64)
    loops.first_equal(keys, largest, at)
    first = -(yield from maximum(np.where(at < 0, -shard.vocab_size, -(at + shard.begin))))
    counts = np.zeros(keys.shape, np.int32)
    own = np.flatnonzero((status == OK) & (first >= shard.begin) & (first < shard.end))
    counts[own, first[own] - shard.begin] = TOTAL
    return counts


def _restrict(
    shard: Shard, keys: Integers, weights: Integers, policy: ProposalPolicy
) -> Steps[None]:
    """A5-A8 over the whole vocabulary; ids outside the support lose their weight."""
    if 0 < policy.top_k < shard.vocab_size:
        cut = yield from largest_kept(shard, keys, policy.top_k, _KEY_BITS)
        loops.keep_rows(weights, keys, *cut)
    if policy.top_p < TOTAL:
        needed = nucleus_mass((yield from total(weights.sum(axis=1))), policy.top_p)
        cut_off = yield from descend(weights, needed, WEIGHT_BITS + 1, by_mass=True)
        thresholds, left = cut_off
        ties = yield from share_ties(shard, weights, thresholds, -(-left // thresholds))
        loops.keep_rows(weights, weights, thresholds, ties)
    if policy.min_p:
        weights[weights < policy.min_p << WEIGHT_BITS - 24] = 0  # w * 2^24 >= P * 2^38
    if 0 < policy.support < shard.vocab_size:
        kept = np.where(weights > 0, keys, -1)
        cut = yield from largest_kept(shard, kept, policy.support, _KEY_BITS)
        loops.keep_rows(weights, kept, *cut)


def nucleus_mass(masses: Integers, top_p: int) -> Integers:
    """ceil(top_p * W / 2^24); W is at most 2^62, so the product is taken in two halves."""
    upper, lower = masses >> 24, masses & (TOTAL - 1)
    needed: Integers = upper * top_p + -(-(lower * top_p) >> 24)
    return needed


def _allocate(shard: Shard, weights: Integers, status: Integers) -> Steps[NDArray[np.int32]]:
    """A26: floors here, and the counts that are left to the largest remainders of all shards."""
    masses = yield from total(weights.sum(axis=1))
    counts = np.empty(weights.shape, np.int32)
    remainders = np.empty(weights.shape, np.int64)
    facts = np.empty((len(weights), 2), np.int64)
    loops.floor_rows(weights, masses, counts, remainders, facts)
    given, positive = (yield from total(facts)).T
    left = np.where(status == OK, TOTAL - given, 0)
    bad = (left < 0) | (left >= np.maximum(positive, 1))
    status[bad & (status == OK)] = RefusalCode.INCONSISTENT_ALLOCATION
    width = WEIGHT_BITS + shard.vocab_size.bit_length()  # a remainder is below W, fixed by V
    thresholds, ties = yield from descend(remainders, np.where(bad, 0, left), width)
    own = yield from share_ties(shard, remainders, thresholds, ties)
    loops.assign_rows(counts, remainders, thresholds, own)
    counts[status != OK] = 0
    return counts


def _offsets(rows: ShardRows, words: Integers | None) -> Integers:
    """The leader's plan: (shard, offset inside it) of each row, -1 where the row is refused."""
    if words is None or words.shape != rows.status.shape:
        raise ArithmeticRefusalError(RefusalCode.OUT_OF_RANGE, "the leader draws one word a row")
    if ((words < 0) | (words >= TOTAL)).any():
        raise ArithmeticRefusalError(RefusalCode.OUT_OF_RANGE, "a word has 24 bits")
    starts = before(rows.masses)
    # Equal edges pass over a shard without counts.
    shard = (starts + rows.masses <= words[:, None]).sum(axis=1)
    sound = (rows.status == OK) & (shard < rows.masses.shape[1])
    shard = np.where(sound, shard, -1)
    offset = words - np.take_along_axis(starts, np.maximum(shard, 0)[:, None], 1)[:, 0]
    return np.stack([shard, np.where(sound, offset, -1)], axis=1)
