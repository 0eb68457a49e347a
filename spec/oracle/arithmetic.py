"""From logits to counts, rules A1 to A12 of spec/arithmetic.md, one function a rule.

Numbers are fractions throughout. Where the rule says "binary64", the exact result is rounded by
:func:`nearest` after every single operation, as IEEE 754 does; no hardware float takes part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

TOTAL = 1 << 24
WEIGHT_BITS = 38


class Refused(Exception):
    """The rules refuse this input; ``code`` is the name SPEC gives the reason."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


# Binary floating point ---------------------------------------------------------------------------


def nearest(x: Fraction, digits: int, lowest: int) -> Fraction:
    """The number with ``digits`` significant bits nearest to x, ties to even.

    ``lowest`` is the exponent of the smallest subnormal. Overflow is not represented: the caller
    knows the range. (``round`` of a fraction rounds ties to even.)
    """
    exponent = abs(x.numerator).bit_length() - x.denominator.bit_length()
    if abs(x.numerator) << max(-exponent, 0) < x.denominator << max(exponent, 0):
        exponent -= 1  # now 2^exponent <= |x| < 2^(exponent + 1), for x other than 0
    unit = max(exponent - digits + 1, lowest)
    if unit >= 0:
        return Fraction(round(x / (1 << unit)) << unit)
    return Fraction(round(x * (1 << -unit)), 1 << -unit)


def binary64(x: Fraction) -> Fraction:
    """X rounded to binary64."""
    return nearest(x, 53, -1074)


def binary32(x: Fraction) -> Fraction:
    """X rounded to binary32; a magnitude that rounds past the largest finite number is refused."""
    rounded = nearest(x, 24, -149)
    if abs(rounded) >= Fraction(2) ** 128:
        raise Refused("NON_FINITE")
    return rounded


# Weights (A1 to A4) ------------------------------------------------------------------------------

LOG2E = Fraction(float.fromhex("0x1.71547652b82fep+0"))
LN2_HI = Fraction(float.fromhex("0x1.62e42fee00000p-1"))
LN2_LO = Fraction(float.fromhex("0x1.a39ef35793c76p-33"))
C = tuple(binary64(Fraction(1, math.factorial(n))) for n in range(12))


def exp64(d: Fraction) -> Fraction:
    """A4: the exponential as a fixed sequence of binary64 operations, for -27 <= d <= 0."""
    k = math.floor(binary64(binary64(d * LOG2E) + Fraction(1, 2)))
    high = binary64(d - binary64(k * LN2_HI))
    r = binary64(high - binary64(k * LN2_LO))
    s = C[11]
    for n in range(10, -1, -1):
        s = binary64(binary64(s * r) + C[n])
    return s * Fraction(2) ** k


def check_logits(logits: Sequence[float]) -> None:
    """A1: NaN and +inf are refused, and so is a row of -inf alone."""
    if any(math.isnan(z) or z == math.inf for z in logits):
        raise Refused("NON_FINITE")
    if all(z == -math.inf for z in logits):
        raise Refused("ZERO_MASS")


def weights(logits: Sequence[float], temperature: Fraction, bits: int = WEIGHT_BITS) -> list[int]:
    """A1 to A3: the integer weight of every id, for a temperature above zero."""
    check_logits(logits)
    if not Fraction(1, 1 << 14) <= temperature <= 1 << 14:
        raise Refused("OUT_OF_RANGE")
    largest = Fraction(max(logits))
    t = binary64(1 / temperature)
    result = []
    for z in logits:
        if z == -math.inf:
            result.append(0)
            continue
        d = binary64(binary64(Fraction(z) - largest) * t)
        result.append(0 if d < -27 else math.floor(exp64(d) * 2**bits))
    return result


# Support (A5 to A8) ------------------------------------------------------------------------------


def support(
    logits: Sequence[float],
    w: Sequence[int],
    *,
    top_k: int = 0,
    top_p: int = TOTAL,
    min_p: int = 0,
    limit: int = 0,
    bits: int = WEIGHT_BITS,
) -> list[int]:
    """A5 to A8, in that order, each applied to the ids left by the one before; ids ascending.

    top_p and min_p are whole tickets of 2^24; ``limit`` is the K of the sparse layout, 0 = dense.
    """
    left = [v for v in range(len(w)) if w[v] > 0]
    if top_k:
        left = sorted(left, key=lambda v: (-logits[v], v))[:top_k]
    if top_p != TOTAL:
        needed = math.ceil(Fraction(top_p * sum(w[v] for v in left), TOTAL))
        prefix: list[int] = []
        for v in sorted(left, key=lambda v: (-w[v], v)):
            if sum(w[u] for u in prefix) >= needed:
                break
            prefix.append(v)
        left = prefix
    if min_p:
        left = [v for v in left if Fraction(w[v], 2**bits) >= Fraction(min_p, TOTAL)]
    if limit:
        left = sorted(left, key=lambda v: (-logits[v], v))[:limit]
    return sorted(left)


# Counts (A9 to A12) ------------------------------------------------------------------------------


def allocate(w: Sequence[int], total: int = TOTAL) -> list[int]:
    """A9: ``total`` tickets by largest remainder, ties to the lowest id."""
    if any(x < 0 for x in w):
        raise Refused("NEGATIVE_WEIGHT")
    mass = sum(w)
    if mass == 0:
        raise Refused("ZERO_MASS")
    quotas = [Fraction(x * total, mass) for x in w]
    counts = [math.floor(quota) for quota in quotas]
    left = total - sum(counts)
    if not 0 <= left < sum(x > 0 for x in w):
        raise Refused("INCONSISTENT_ALLOCATION")
    by_remainder = sorted(range(len(w)), key=lambda v: (counts[v] - quotas[v], v))
    for v in by_remainder[:left]:
        counts[v] += 1
    return counts


def quantise(
    logits: Sequence[float],
    temperature: Fraction,
    *,
    top_k: int = 0,
    top_p: int = TOTAL,
    min_p: int = 0,
    limit: int = 0,
    total: int = TOTAL,
    bits: int = WEIGHT_BITS,
) -> list[int]:
    """A1 to A10: the count of every id; ids outside the support have none."""
    if temperature == 0:
        check_logits(logits)
        winner = logits.index(max(logits))
        return [total if v == winner else 0 for v in range(len(logits))]
    w = weights(logits, temperature, bits)
    chosen = set(support(logits, w, top_k=top_k, top_p=top_p, min_p=min_p, limit=limit, bits=bits))
    return allocate([w[v] if v in chosen else 0 for v in range(len(w))], total)


def fp32_weights(given: Sequence[float]) -> tuple[list[int], int]:
    """A12: weights rounded to binary32 first, then integers over their common denominator.

    Returns those integers and their sum: q(v) is exactly integer / sum, at both ends.
    """
    if any(not math.isfinite(x) for x in given):
        raise Refused("NON_FINITE")
    if any(x < 0 for x in given):
        raise Refused("NEGATIVE_WEIGHT")
    rounded = [binary32(Fraction(x)) for x in given]
    if not any(rounded):
        raise Refused("ZERO_MASS")
    scale = math.lcm(*(x.denominator for x in rounded))
    integers = [int(x * scale) for x in rounded]
    return integers, sum(integers)
