"""A1-A12 against definitions written out again in fractions."""

import math
import random
import struct
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import product

import pytest

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.exact.counts import TOTAL, Counts
from draftwire.exact.quantise import (
    COEFFICIENTS,
    LN2_HI,
    LN2_LO,
    LOG2E,
    allocate,
    exp64,
    fp32_weights,
    integers,
    quantise,
    support,
    weights,
)

INF = math.inf
NAN = math.nan


def refused(code, call, *args, **kwargs):
    with pytest.raises(ArithmeticRefusalError) as refusal:
        call(*args, **kwargs)
    assert refusal.value.code is code


# --- A4


def test_exp64_is_within_two_to_the_minus_45_of_exp():
    rng = random.Random(20)
    points = [-27 * n / 4096 for n in range(4097)]
    points += [-rng.random() * 27 for _ in range(4000)]
    halves = [-(n + 0.5) * math.log(2) for n in range(38)]  # where k changes, r is largest
    points += [math.nextafter(half, side) for half in halves for side in (-INF, 0, half)]
    points += [0.0, -0.0, -5e-324, -1e-300]
    with localcontext() as context:
        context.prec = 40
        for d in points:
            truth = Decimal(d).exp()
            assert abs(Decimal(exp64(d)) - truth) < truth * Decimal(2) ** -45, d


def test_exp64_is_the_sequence_of_operations_of_the_rule():
    for d in (-26.9, -13.37, -1.0, -0.34657359027997264, -1e-9, 0.0):
        k = math.floor(d * float.fromhex("0x1.71547652b82fep+0") + 0.5)
        r = d - k * float.fromhex("0x1.62e42fee00000p-1")
        r = r - k * float.fromhex("0x1.a39ef35793c76p-33")
        s = 1 / math.factorial(11)
        for n in range(10, -1, -1):
            product_ = s * r
            s = product_ + 1 / math.factorial(n)
        assert exp64(d) == s * 2.0**k
    assert exp64(0.0) == 1.0


def test_the_constants_of_exp64_are_the_nearest_numbers():
    for n, coefficient in enumerate(COEFFICIENTS):
        assert coefficient == float(Fraction(1, math.factorial(n)))
    with localcontext() as context:
        context.prec = 60
        ln2 = Decimal(2).ln()
        assert float(1 / ln2) == LOG2E
        assert abs(Decimal(LN2_HI) + Decimal(LN2_LO) - ln2) < Decimal(2) ** -86
    assert Fraction(LN2_HI).denominator <= 2**33  # so that k * LN2_HI is exact


# --- A1-A3


def test_the_largest_logit_has_the_full_weight_and_far_ones_none():
    row = weights([5.0, 5.0 - 26.0, 5.0 - 27.5, -INF, 5.0], 1.0)
    assert row[0] == row[4] == 1 << 38
    assert row[1] == math.floor(Fraction(exp64(-26.0)) * 2**38) > 0
    assert row[2] == row[3] == 0


@pytest.mark.parametrize("temperature", [2.0**-14, 0.1, 0.7, 1.0, 2.0**14])
def test_a_weight_is_the_truncated_exponential(temperature):
    logits = [-3.25, 0.5, 1.75, 1.75, -INF]
    inverse = 1 / temperature
    for bits in (4, 38):
        expected = []
        for logit in logits:
            d = (logit - 1.75) * inverse
            expected.append(math.floor(Fraction(exp64(d)) * 2**bits) if d >= -27 else 0)
        assert weights(logits, temperature, bits) == expected


def test_greedy_puts_all_weight_on_the_lowest_id_of_the_largest_logit():
    assert weights([1.0, 2.0, 2.0, -INF], 0.0, 5) == [0, 32, 0, 0]
    assert quantise([-0.0, 0.0], 0.0) == Counts(2, TOTAL, (0,), (TOTAL,))


@pytest.mark.parametrize("logits", [[0.0, NAN], [NAN, -INF], [INF, 0.0], [INF]])
def test_e49_a_row_with_nan_or_plus_infinity_is_refused(logits):
    for temperature in (0.0, 1.0):
        refused(RefusalCode.NON_FINITE, quantise, logits, temperature)


def test_e48_a_row_of_minus_infinity_alone_is_refused():
    for temperature in (0.0, 1.0):
        refused(RefusalCode.ZERO_MASS, quantise, [-INF, -INF], temperature)


@pytest.mark.parametrize("temperature", [-1.0, NAN, INF, 2.0**-15, 2.0**15])
def test_a_temperature_out_of_range_is_refused(temperature):
    refused(RefusalCode.OUT_OF_RANGE, quantise, [0.0], temperature)


def test_an_empty_row_is_refused():
    refused(RefusalCode.OUT_OF_RANGE, quantise, [], 1.0)


# --- A5-A8


def from_definition(logits, row, *, top_k, top_p, min_p, limit, bits):
    """A5 to A8 word for word, over sets."""
    kept = {v for v in range(len(row)) if row[v] > 0}

    def largest(ids, count):
        return {v for v in ids if sum((logits[o], -o) > (logits[v], -v) for o in ids) < count}

    if top_k:
        kept = largest(kept, top_k)
    if top_p < TOTAL:
        mass = sum(row[v] for v in kept)
        ahead = {v: sum(row[o] for o in kept if (row[o], -o) > (row[v], -v)) for v in kept}
        # v belongs to the shortest prefix iff what stands before it does not reach the bound yet
        kept = {v for v in kept if ahead[v] < math.ceil(Fraction(top_p * mass, TOTAL))}
    kept = {v for v in kept if Fraction(row[v], 2**bits) >= Fraction(min_p, TOTAL)}
    if limit:
        kept = largest(kept, limit)
    return sorted(kept)


def test_support_is_the_definition_for_every_combination_of_restrictions():
    rng = random.Random(5)
    tickets = [1, TOTAL // 3, TOTAL // 2, TOTAL - 1, TOTAL]
    for _ in range(60):
        size = rng.randint(1, 7)
        logits = [rng.choice([0.0, -0.0, 0.5, 1.0, -2.0, -40.0, -INF]) for _ in range(size)]
        if max(logits) == -INF:
            logits[0] = 1.0
        bits = rng.choice([3, 38])
        row = weights(logits, 1.0, bits)
        for top_k, top_p, min_p, limit in product(
            (0, 1, 2, 9), tickets, (0, 1, TOTAL // 4, TOTAL), (0, 1, 3)
        ):
            policy = {"top_k": top_k, "top_p": top_p, "min_p": min_p, "limit": limit}
            assert support(logits, row, **policy, bits=bits) == from_definition(
                logits, row, **policy, bits=bits
            )


def test_d1_counts_outside_the_top_three_are_zero_and_the_rest_sum_to_all_tickets():
    logits = [0.1, 2.0, 1.0, 2.0, -1.0, 1.0, 0.0, -3.0]
    counts = quantise(logits, 1.0, top_k=3)
    assert counts.ids == (1, 2, 3)  # of the two with logit 1.0 the lower id
    assert sum(counts.counts) == TOTAL
    assert quantise(logits, 1.0, limit=3) == counts


def test_the_support_is_chosen_first_and_normalised_within():
    logits = [3.0, 1.0, 2.0, 0.0]
    inside = weights(logits, 1.0)
    assert quantise(logits, 1.0, limit=2).dense() == [
        *allocate([inside[0], 0, inside[2], 0])[:3],
        0,
    ]


@pytest.mark.parametrize(
    "policy",
    [{"top_k": -1}, {"limit": -1}, {"top_p": 0}, {"top_p": TOTAL + 1}, {"min_p": -1},
     {"min_p": TOTAL + 1}],
)  # fmt: skip
def test_restrictions_out_of_range_are_refused(policy):
    refused(RefusalCode.OUT_OF_RANGE, quantise, [0.0, 1.0], 1.0, **policy)
    refused(RefusalCode.OUT_OF_RANGE, quantise, [0.0, 1.0], 0.0, **policy)


# --- A9-A11


def tickets_from_definition(row, total):
    mass = sum(row)
    quotas = [Fraction(weight * total, mass) for weight in row]
    counts = [math.floor(quota) for quota in quotas]
    for _ in range(total - sum(counts)):
        best = max(range(len(row)), key=lambda v: (quotas[v] - counts[v], -v))
        # A ticket makes the remainder negative, so no id gets two.
        counts[best] += 1
    return counts


def test_allocate_is_largest_remainder_for_all_small_weights():
    for size, largest in ((1, 5), (2, 9), (3, 6), (4, 3)):
        for row in product(range(largest + 1), repeat=size):
            if not any(row):
                continue
            for total in (1, 2, 3, 4, 7, 8, 16):
                counts = allocate(row, total)
                assert counts == tickets_from_definition(row, total)
                assert sum(counts) == total
                assert all(count == 0 for count, w in zip(counts, row, strict=True) if w == 0)


def test_ties_of_remainders_go_to_the_lowest_id():
    assert allocate([1, 1, 1], 4) == [2, 1, 1]
    assert allocate([1, 1, 1], 5) == [2, 2, 1]


def test_a_count_is_within_one_ticket_of_its_quota():
    rng = random.Random(9)
    row = [rng.randrange(1 << 38) for _ in range(300)]
    for count, weight in zip(allocate(row), row, strict=True):
        assert abs(count - Fraction(weight * TOTAL, sum(row))) < 1


def test_weights_that_are_none_are_refused():
    refused(RefusalCode.NEGATIVE_WEIGHT, allocate, [1, -1])
    refused(RefusalCode.ZERO_MASS, allocate, [0, 0])
    refused(RefusalCode.ZERO_MASS, allocate, [])
    for call in (integers, fp32_weights):
        refused(RefusalCode.NON_FINITE, call, [-1.0, NAN])
        refused(RefusalCode.NON_FINITE, call, [1.0, INF])
        refused(RefusalCode.NEGATIVE_WEIGHT, call, [1.0, -1e-300])
        refused(RefusalCode.ZERO_MASS, call, [0.0, -0.0])


def test_d2_near_tied_bfloat16_logits_are_rounded_once():
    logits = [1.0, 1.0078125, 1.0, 0.9921875]  # neighbours in bfloat16
    counts = quantise(logits, 0.7)
    row = weights(logits, 0.7)
    assert counts.dense() == allocate(row)
    assert sum(counts.counts) == TOTAL
    assert counts.of(1) > counts.of(0) >= counts.of(2) > counts.of(3)
    assert counts.of(0) - counts.of(2) <= 1


# --- A12, A17


def test_integers_are_the_exact_value_of_the_numbers():
    row = [0.1, 5e-324, 1.0, 0.0, 1e300, 3.0]
    exact = integers(row)
    for value, number in zip(exact, row, strict=True):
        assert Fraction(value, exact[2]) == Fraction(number)


def test_fp32_weights_rounds_first_and_normalises_exactly_afterwards():
    row, mass = fp32_weights([0.1, 0.2, 0.7])
    rounded = [Fraction(struct.unpack("<f", struct.pack("<f", w))[0]) for w in (0.1, 0.2, 0.7)]
    assert mass == sum(row)
    assert [Fraction(w, mass) for w in row] == [w / sum(rounded) for w in rounded]
    assert Fraction(row[0], mass) != Fraction(1, 10)


def test_a_weight_that_is_infinite_in_binary32_is_refused():
    refused(RefusalCode.NON_FINITE, fp32_weights, [1.0, 1e39])
    refused(RefusalCode.ZERO_MASS, fp32_weights, [1e-60])
