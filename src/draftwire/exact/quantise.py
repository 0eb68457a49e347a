"""From logits to counts: integer weights, support, tickets (A1-A12)."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Final

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.exact.counts import TOTAL, Counts

WEIGHT_BITS: Final = 38  # B
POLICY_TICKETS: Final = 1 << 24  # top_p and min_p are tickets of 2^24 whatever M is (A6, A7)
MIN_TEMPERATURE: Final = 2.0**-14
MAX_TEMPERATURE: Final = 2.0**14
CUTOFF: Final = -27.0  # exp(-27) * 2^38 < 1: nothing below it could reach a weight of one (A3)

LOG2E: Final = float.fromhex("0x1.71547652b82fep+0")
LN2_HI: Final = float.fromhex("0x1.62e42fee00000p-1")
LN2_LO: Final = float.fromhex("0x1.a39ef35793c76p-33")
COEFFICIENTS: Final = tuple(1 / math.factorial(n) for n in range(12))


def exp64(d: float) -> float:
    """exp(d) for -27 <= d <= 0, by the fixed sequence of binary64 operations of A4.

    Relative error below 2^-45. Every operation is one IEEE rounding; none may be contracted.
    """
    k = math.floor(d * LOG2E + 0.5)
    r = (d - k * LN2_HI) - k * LN2_LO
    s = COEFFICIENTS[11]
    for n in range(10, -1, -1):
        s = s * r + COEFFICIENTS[n]
    return math.ldexp(s, k)


def check_temperature(temperature: float) -> None:
    """Refuse a draft temperature that is neither 0 nor in 2^-14..2^14 (A2, OUT_OF_RANGE)."""
    if temperature != 0 and not MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE:
        raise ArithmeticRefusalError(
            RefusalCode.OUT_OF_RANGE,
            f"a draft temperature is 0 or in 2^-14..2^14, not {temperature}",
        )


def weights(logits: Sequence[float], temperature: float, bits: int = WEIGHT_BITS) -> list[int]:
    """Integer weights of a row of logits (A1-A3); at temperature 0 all weight is on one id (A2).

    logits: V binary32 values; returns V integers in 0..2^bits.
    Errors: ArithmeticRefusalError NON_FINITE, ZERO_MASS, OUT_OF_RANGE (temperature, empty row).
    """
    check_temperature(temperature)
    largest = _check_logits(logits)
    row = [0] * len(logits)
    if temperature == 0:
        row[list(logits).index(largest)] = 1 << bits
        return row
    inverse = 1.0 / temperature
    for token, logit in enumerate(logits):
        d = (logit - largest) * inverse
        if d >= CUTOFF:
            row[token] = int(math.ldexp(exp64(d), bits))
    return row


def support(
    logits: Sequence[float],
    weights: Sequence[int],
    *,
    top_k: int = 0,
    top_p: int = POLICY_TICKETS,
    min_p: int = 0,
    limit: int = 0,
    bits: int = WEIGHT_BITS,
) -> list[int]:
    """The ids that keep their weight, ascending (A5-A8; ``limit`` is the K of A8, 0 = none).

    Errors: ArithmeticRefusalError OUT_OF_RANGE for a restriction outside its range.
    """
    check_restrictions(top_k, top_p, min_p, limit)
    kept = [token for token, weight in enumerate(weights) if weight > 0]
    if top_k:
        kept = _largest(logits, kept, top_k)
    if top_p < POLICY_TICKETS:
        kept = _nucleus(weights, kept, top_p)
    if min_p:
        kept = [token for token in kept if weights[token] * POLICY_TICKETS >= min_p << bits]
    if limit:
        kept = _largest(logits, kept, limit)
    return sorted(kept)


def check_restrictions(top_k: int, top_p: int, min_p: int, limit: int) -> None:
    """Refuse restrictions outside the ranges of A5-A8 (OUT_OF_RANGE)."""
    if top_k < 0 or limit < 0 or not 1 <= top_p <= POLICY_TICKETS:
        raise ArithmeticRefusalError(
            RefusalCode.OUT_OF_RANGE, f"no restriction: top_k {top_k}, top_p {top_p}, K {limit}"
        )
    if not 0 <= min_p <= POLICY_TICKETS:
        raise ArithmeticRefusalError(RefusalCode.OUT_OF_RANGE, f"no restriction: min_p {min_p}")


def allocate(weights: Sequence[int], total: int = TOTAL) -> list[int]:
    """``total`` tickets shared out by largest remainder, ties to the lowest id (A9).

    Errors: ArithmeticRefusalError NEGATIVE_WEIGHT, ZERO_MASS (A11), INCONSISTENT_ALLOCATION.
    """
    check_weights(weights)
    mass = sum(weights)
    shares = [divmod(weight * total, mass) for weight in weights]
    counts = [count for count, _ in shares]
    left = total - sum(counts)
    if not 0 <= left < max(1, sum(weight > 0 for weight in weights)):
        raise ArithmeticRefusalError(
            RefusalCode.INCONSISTENT_ALLOCATION, f"{left} tickets left over"
        )
    by_remainder = sorted(range(len(shares)), key=lambda token: (-shares[token][1], token))
    for token in by_remainder[:left]:
        counts[token] += 1
    if sum(counts) != total:
        raise ArithmeticRefusalError(
            RefusalCode.INCONSISTENT_ALLOCATION, f"counts sum to {sum(counts)}, not to {total}"
        )
    return counts


def quantise(
    logits: Sequence[float],
    temperature: float,
    *,
    top_k: int = 0,
    top_p: int = POLICY_TICKETS,
    min_p: int = 0,
    limit: int = 0,
    total: int = TOTAL,
    bits: int = WEIGHT_BITS,
) -> Counts:
    """The q of a row of logits as counts that sum to ``total`` exactly (A1-A10).

    Errors: those of :func:`weights`, :func:`support` and :func:`allocate`.
    """
    check_restrictions(top_k, top_p, min_p, limit)
    row = weights(logits, temperature, bits)
    # At temperature 0 one id has all the weight, and no restriction can take it away (A2).
    kept = support(logits, row, top_k=top_k, top_p=top_p, min_p=min_p, limit=limit, bits=bits)
    counts = allocate([row[token] for token in kept], total)
    used = [(token, count) for token, count in zip(kept, counts, strict=True) if count]
    ids, tickets = zip(*used, strict=True)
    return Counts(len(logits), total, ids, tickets)


def integers(weights: Sequence[float]) -> list[int]:
    """Binary64 weights as integers over their common power-of-two denominator: no rounding (A17).

    Errors: ArithmeticRefusalError NON_FINITE, NEGATIVE_WEIGHT, ZERO_MASS (A11).
    """
    check_weights(weights)
    ratios = [float(weight).as_integer_ratio() for weight in weights]
    denominator = max(ratio[1] for ratio in ratios)
    return [numerator * (denominator // own) for numerator, own in ratios]


def fp32_weights(weights: Sequence[float]) -> tuple[list[int], int]:
    """The *fp32-weights* q: weights rounded to binary32, as integers, and their sum (A12).

    q(v) is ``integers[v] / sum`` exactly, at both ends. Law of a draw: ``below(sum)`` against the
    cumulative integers. Errors: as in A11; a weight that rounds to infinity is NON_FINITE.
    """
    check_weights(weights)
    rounded = [_binary32(weight) for weight in weights]
    row = integers(rounded)
    return row, sum(row)


def check_weights(weights: Sequence[float]) -> None:
    """Refuse weights as A11 does: NON_FINITE, then NEGATIVE_WEIGHT, then ZERO_MASS."""
    if not all(-math.inf < weight < math.inf for weight in weights):  # false for NaN
        raise ArithmeticRefusalError(RefusalCode.NON_FINITE, "a weight is NaN or infinite")
    if any(weight < 0 for weight in weights):
        raise ArithmeticRefusalError(RefusalCode.NEGATIVE_WEIGHT, "a weight is negative")
    if not any(weights):
        raise ArithmeticRefusalError(RefusalCode.ZERO_MASS, "no weight is above zero")


def _check_logits(logits: Sequence[float]) -> float:
    """The largest logit of a row that A1 allows."""
    if len(logits) == 0:
        raise ArithmeticRefusalError(RefusalCode.OUT_OF_RANGE, "a row needs at least one logit")
    if any(math.isnan(logit) or logit == math.inf for logit in logits):
        raise ArithmeticRefusalError(RefusalCode.NON_FINITE, "a logit is NaN or +infinity")
    largest = max(logits)
    if largest == -math.inf:
        raise ArithmeticRefusalError(RefusalCode.ZERO_MASS, "every logit is -infinity")
    return largest


def _largest(logits: Sequence[float], kept: list[int], count: int) -> list[int]:
    return sorted(kept, key=lambda token: (-logits[token], token))[:count]


def _nucleus(weights: Sequence[int], kept: list[int], top_p: int) -> list[int]:
    needed = -(-top_p * sum(weights[token] for token in kept) // POLICY_TICKETS)
    prefix: list[int] = []
    mass = 0
    for token in sorted(kept, key=lambda token: (-weights[token], token)):
        if mass >= needed:
            break
        prefix.append(token)
        mass += weights[token]
    return prefix


def _binary32(weight: float) -> float:
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", weight))[0]
    except OverflowError:
        raise ArithmeticRefusalError(
            RefusalCode.NON_FINITE, f"{weight} is infinite in binary32"
        ) from None
    return rounded
