"""The arithmetic over a vocabulary in shards, in plain integers (A25-A29).

A row is a sequence of shards, each the consecutive ids that one rank owns; shards may be empty.
What passes between shards is what may pass between ranks: a largest logit, sums, a few candidates,
numbers of ties, masses. Every function equals its namesake over the whole row, whatever the split.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias, TypeVar

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.exact import quantise as whole
from draftwire.exact.counts import TOTAL
from draftwire.exact.decide import below, locate
from draftwire.exact.quantise import CUTOFF, POLICY_TICKETS, WEIGHT_BITS, exp64
from draftwire.exact.words import WORD_BITS, Address, WordSource

Number = TypeVar("Number", int, float)
Shards: TypeAlias = Sequence[Sequence[Number]]


def quantise(
    logits: Shards[float],
    temperature: float,
    *,
    top_k: int = 0,
    top_p: int = POLICY_TICKETS,
    min_p: int = 0,
    limit: int = 0,
    total: int = TOTAL,
    bits: int = WEIGHT_BITS,
) -> list[list[int]]:
    """Counts of every id, shard by shard; they sum to ``total`` over all shards (A25-A27).

    Errors: those of ``exact.quantise.quantise``.
    """
    whole.check_restrictions(top_k, top_p, min_p, limit)
    whole.check_temperature(temperature)
    largest = _largest_logit(logits)
    if temperature == 0:
        return _greedy(logits, largest, total)
    weights = [_weights(shard, largest, temperature, bits) for shard in logits]
    if top_k:
        weights = _restrict(weights, largest_ids(_keyed(logits, weights), top_k))
    if top_p < POLICY_TICKETS:
        weights = _nucleus(weights, top_p)
    if min_p:
        weights = [[w if w * POLICY_TICKETS >= min_p << bits else 0 for w in s] for s in weights]
    if limit:
        weights = _restrict(weights, largest_ids(_keyed(logits, weights), limit))
    return allocate(weights, total)


def allocate(weights: Shards[int], total: int = TOTAL) -> list[list[int]]:
    """``total`` tickets by largest remainder over all shards, ties to the lowest id (A26).

    The remaining tickets go to every remainder above one global threshold, and to as many at it, in
    the order of ids, as are left: a shard needs only how many ties the shards before it have.
    Errors: ArithmeticRefusalError ZERO_MASS, INCONSISTENT_ALLOCATION.
    """
    mass = sum(map(sum, weights))
    if mass == 0:
        raise ArithmeticRefusalError(RefusalCode.ZERO_MASS, "no weight is above zero")
    counts = [[weight * total // mass for weight in shard] for shard in weights]
    remainders = [[weight * total % mass for weight in shard] for shard in weights]
    left = total - sum(map(sum, counts))
    if not 0 <= left < max(1, sum(weight > 0 for shard in weights for weight in shard)):
        raise ArithmeticRefusalError(
            RefusalCode.INCONSISTENT_ALLOCATION, f"{left} tickets left over"
        )
    threshold = _threshold(remainders, left, mass)
    ties = left - _number(remainders, threshold + 1)
    for own, shard in zip(counts, remainders, strict=True):
        for at, remainder in enumerate(shard):
            if remainder > threshold or (remainder == threshold and ties > 0):
                own[at] += 1
                ties -= remainder == threshold
    if sum(map(sum, counts)) != total:
        raise ArithmeticRefusalError(RefusalCode.INCONSISTENT_ALLOCATION, "the counts do not sum")
    return counts


def largest_ids(keys: Sequence[Sequence[float | None]], count: int) -> list[list[int]]:
    """Of each shard the places of the ``count`` largest keys over all, ties to the lowest id (A27).

    keys: None takes no part. Each shard offers at most ``count`` candidates; only they are merged.
    """
    candidates: list[tuple[float, int, int]] = []
    for index, shard in enumerate(keys):
        own = [(-key, index, at) for at, key in enumerate(shard) if key is not None]
        candidates += sorted(own)[:count]
    chosen = sorted(candidates)[:count]
    return [sorted(at for _, index, at in chosen if index == own) for own in range(len(keys))]


def draw(
    counts: Shards[int],
    source: WordSource,
    address: Address,
    *,
    total: int = TOTAL,
    bits: int = WORD_BITS,
) -> int:
    """The proposed token: one ticket picks the shard and, less what lies before it, the id (A28).

    Law: token v with probability ``counts[v] / total`` exactly; a shard without tickets never.
    """
    ticket = below(total, source.words(address), bits)
    edges = list(accumulate(map(sum, counts)))
    shard = bisect_right(edges, ticket)
    offset = ticket - (edges[shard - 1] if shard else 0)
    return _begin(counts, shard) + bisect_right(list(accumulate(counts[shard])), offset)


def accept(
    p: Shards[int],
    counts: Shards[int],
    token: int,
    source: WordSource,
    address: Address,
    *,
    total: int = TOTAL,
    bits: int = WORD_BITS,
) -> bool:
    """Whether the draft stands, from its owner's two numbers and the masses of p (A29, A18)."""
    ours = sum(_owned(p, token)) * total
    theirs = sum(_owned(counts, token)) * sum(map(sum, p))
    if theirs == 0:
        raise ArithmeticRefusalError(RefusalCode.ZERO_Q, "a draft has q = 0")
    if ours == 0 or ours >= theirs:
        return ours > 0
    return locate([ours], theirs, source.words(address), bits) == 0


def correction(
    p: Shards[int],
    counts: Shards[int],
    source: WordSource,
    address: Address,
    *,
    total: int = TOTAL,
    bits: int = WORD_BITS,
) -> int:
    """The token after a rejection: shard by residual mass, then the id inside it (A29, A19).

    Errors: ArithmeticRefusalError ZERO_RESIDUAL where p = q.
    """
    mass = sum(map(sum, p))
    residual = [
        residuals(weights, own, mass, total) for weights, own in zip(p, counts, strict=True)
    ]
    if not any(map(any, residual)):
        raise ArithmeticRefusalError(
            RefusalCode.ZERO_RESIDUAL, "a draft was rejected although p equals q"
        )
    return target(residual, source, address, bits=bits)


def residuals(
    weights: Sequence[int], counts: Sequence[int], mass: int, total: int = TOTAL
) -> list[int]:
    """``max(p - q, 0)`` of every id of one shard, over the denominator ``mass * total`` (A19)."""
    pairs = zip(weights, counts, strict=True)
    return [max(weight * total - count * mass, 0) for weight, count in pairs]


def target(p: Shards[int], source: WordSource, address: Address, *, bits: int = WORD_BITS) -> int:
    """A token from weights: shard by its mass, then the id inside it, by one real number (A29).

    Law: token v with probability ``p[v] / sum(p)`` exactly; a shard without mass never.
    """
    masses = [sum(shard) for shard in p]
    shard = pick(masses, source, address, bits)
    edges = edges_within(p[shard], sum(masses[:shard]))
    return _begin(p, shard) + locate(edges, sum(masses), source.words(address), bits)


def pick(masses: Sequence[int], source: WordSource, address: Address, bits: int = WORD_BITS) -> int:
    """The shard whose interval of the cumulative masses holds U; never one without mass."""
    edges = list(accumulate(masses))
    return locate(edges, edges[-1], source.words(address), bits)


def edges_within(weights: Sequence[int], before: int) -> list[int]:
    """The edges of one shard's ids, ``before`` the mass of the shards below it.

    Held against the same U that picked the shard, they give the id: U lies inside the shard.
    """
    return list(accumulate(weights, initial=before))[1:]


def _largest_logit(logits: Shards[float]) -> float:
    if not any(map(len, logits)):
        raise ArithmeticRefusalError(RefusalCode.OUT_OF_RANGE, "a row needs at least one logit")
    if any(math.isnan(logit) or logit == math.inf for shard in logits for logit in shard):
        raise ArithmeticRefusalError(RefusalCode.NON_FINITE, "a logit is NaN or +infinity")
    largest = max(max(shard) for shard in logits if len(shard))
    if largest == -math.inf:
        raise ArithmeticRefusalError(RefusalCode.ZERO_MASS, "every logit is -infinity")
    return largest


def _greedy(logits: Shards[float], largest: float, total: int) -> list[list[int]]:
    chosen = largest_ids([list(shard) for shard in logits], 1)
    assert sum(map(len, chosen)) == 1 and largest > -math.inf
    return [
        [total if at in own else 0 for at in range(len(shard))]
        for shard, own in zip(logits, chosen, strict=True)
    ]


def _weights(shard: Sequence[float], largest: float, temperature: float, bits: int) -> list[int]:
    inverse = 1.0 / temperature
    scaled = [(logit - largest) * inverse for logit in shard]
    return [int(math.ldexp(exp64(d), bits)) if d >= CUTOFF else 0 for d in scaled]


def _keyed(logits: Shards[float], weights: Shards[int]) -> list[list[float | None]]:
    """The logits of the ids that still have weight."""
    return [
        [logit if weight else None for logit, weight in zip(*pair, strict=True)]
        for pair in zip(logits, weights, strict=True)
    ]


def _restrict(weights: Shards[int], kept: Sequence[Sequence[int]]) -> list[list[int]]:
    return [
        [weight if at in own else 0 for at, weight in enumerate(shard)]
        for shard, own in zip(weights, map(set, kept), strict=True)
    ]


def _nucleus(weights: Shards[int], top_p: int) -> list[list[int]]:
    """A6: the weight that the prefix ends at is found by bisection over sums of shards."""
    needed = -(-top_p * sum(map(sum, weights)) // POLICY_TICKETS)
    low, high = 1, max(map(max, filter(len, weights)))
    while low < high:  # the largest threshold whose ids, it included, reach the mass
        middle = (low + high + 1) // 2
        reached = sum(weight for shard in weights for weight in shard if weight >= middle)
        low, high = (middle, high) if reached >= needed else (low, middle - 1)
    above = sum(weight for shard in weights for weight in shard if weight > low)
    ties = -(-(needed - above) // low)
    kept = []
    for shard in weights:
        own = []
        for weight in shard:
            own.append(weight if weight > low or (weight == low and ties > 0) else 0)
            ties -= weight == low
        kept.append(own)
    return kept


def _threshold(remainders: Shards[int], wanted: int, mass: int) -> int:
    """The largest t with at least ``wanted`` remainders of t or more; ``mass`` where none are."""
    low, high = 0, mass
    if wanted == 0:
        return mass
    while low < high:
        middle = (low + high + 1) // 2
        reached = _number(remainders, middle) >= wanted
        low, high = (middle, high) if reached else (low, middle - 1)
    return low


def _number(remainders: Shards[int], least: int) -> int:
    return sum(remainder >= least for shard in remainders for remainder in shard)


def _begin(shards: Shards[int], index: int) -> int:
    return sum(map(len, shards[:index]))


def _owned(shards: Shards[int], token: int) -> list[int]:
    """The number of one id, from its owner; nothing from every other shard."""
    found = []
    begin = 0
    for shard in shards:
        found += [shard[token - begin]] if begin <= token < begin + len(shard) else []
        begin += len(shard)
    if not found:
        raise ArithmeticRefusalError(RefusalCode.OUT_OF_RANGE, "there is no such id")
    return found
