"""The oracle's arithmetic: rounding against hardware, rules by hand, counts against ``exact``."""

from __future__ import annotations

import math
import struct
from fractions import Fraction as F

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire.errors import ArithmeticRefusalError
from draftwire.exact import quantise as exact
from spec.oracle import arithmetic as oracle

FINITE64 = st.floats(allow_nan=False, allow_infinity=False)
FINITE32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.fractions(), st.integers(-1070, 1000))
def test_binary64_rounds_as_the_hardware_does(x: F, exponent: int) -> None:
    scaled = x * F(2) ** exponent
    try:
        expected = float(scaled)
    except OverflowError:
        return
    assert oracle.binary64(scaled) == F(expected)


@given(FINITE64)
def test_binary32_rounds_as_the_hardware_does(x: float) -> None:
    try:
        expected = struct.unpack("<f", struct.pack("<f", x))[0]
    except OverflowError:
        with pytest.raises(oracle.Refused):
            oracle.binary32(F(x))
        return
    assert oracle.binary32(F(x)) == F(expected)


def test_rounding_ties_to_even() -> None:
    assert oracle.nearest(F(5), 2, -10) == 4
    assert oracle.nearest(F(7), 2, -10) == 8
    assert oracle.nearest(F(-5), 2, -10) == -4
    assert oracle.nearest(F(1, 1 << 11), 2, -10) == 0
    assert oracle.nearest(F(3, 1 << 11), 2, -10) == F(1, 1 << 9)


@settings(max_examples=300)
@given(st.floats(-27, 0))
def test_exp64_is_exacts_and_close_to_the_exponential(d: float) -> None:
    result = oracle.exp64(F(d))
    assert float(result) == exact.exp64(d)
    assert abs(float(result) / math.exp(d) - 1) < 2.0**-45


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.one_of(FINITE32, st.floats(-8, 8, width=32), st.just(-math.inf)), max_size=12),
    st.sampled_from([0.0, 2.0**-14, 0.5, 0.7, 1.0, 3.0, 2.0**14]),
    st.integers(0, 13),
    st.sampled_from([1, 1000, 1 << 22, (1 << 24) - 1, 1 << 24]),
    st.sampled_from([0, 1, 1 << 16, 1 << 24]),
    st.integers(0, 13),
    st.sampled_from([1, 7, 64, 1 << 24]),
)
def test_counts_and_refusals_are_exacts(
    logits: list[float],
    temperature: float,
    top_k: int,
    top_p: int,
    min_p: int,
    limit: int,
    total: int,
) -> None:
    if not logits:
        return
    policy = {"top_k": top_k, "top_p": top_p, "min_p": min_p, "limit": limit, "total": total}
    try:
        found = oracle.quantise(logits, F(temperature), **policy)
    except oracle.Refused as refusal:
        with pytest.raises(ArithmeticRefusalError) as caught:
            exact.quantise(logits, temperature, **policy)
        assert caught.value.code.name == refusal.code
        return
    assert exact.quantise(logits, temperature, **policy).dense() == found
    assert sum(found) == total


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=20), st.integers(1, 1 << 25))
def test_allocation_is_within_one_ticket_of_the_share(row: list[int], total: int) -> None:
    if not any(row):
        return
    counts = oracle.allocate(row, total)
    assert sum(counts) == total
    for weight, count in zip(row, counts, strict=True):
        assert abs(count - F(weight * total, sum(row))) < 1
    assert counts == exact.allocate(row, total)


def test_ties_go_to_the_lowest_id() -> None:
    assert oracle.allocate([1, 1, 1], 4) == [2, 1, 1]
    assert oracle.allocate([1, 1, 1], 5) == [2, 2, 1]
    assert oracle.quantise([1.0, 1.0, 1.0, 1.0], F(1), limit=2, total=8) == [4, 4, 0, 0]


def test_support_is_chosen_over_everything_and_normalised_within() -> None:
    logits = [math.log(weight) for weight in (1.0, 4.0, 2.0, 1.0)]
    assert oracle.quantise(logits, F(1), limit=2, total=6) == [0, 4, 2, 0]
    assert oracle.quantise(logits, F(1), top_k=3, total=7) == [1, 4, 2, 0]
    assert oracle.quantise(logits, F(1), top_p=1 << 23, total=7) == [0, 7, 0, 0]
    assert oracle.quantise(logits, F(1), top_p=(1 << 23) + 1, total=6) == [0, 4, 2, 0]
    assert oracle.quantise(logits, F(1), min_p=1 << 23, total=6) in ([0, 4, 2, 0], [0, 6, 0, 0])


@pytest.mark.parametrize(
    ("logits", "temperature", "code"),
    [
        ([math.nan, 0.0], 1.0, "NON_FINITE"),
        ([math.inf, 0.0], 1.0, "NON_FINITE"),
        ([-math.inf, -math.inf], 1.0, "ZERO_MASS"),
        ([-math.inf], 0.0, "ZERO_MASS"),
        ([0.0], 2.0**15, "OUT_OF_RANGE"),
    ],
)
def test_refusals(logits: list[float], temperature: float, code: str) -> None:
    with pytest.raises(oracle.Refused) as caught:
        oracle.quantise(logits, F(temperature))
    assert caught.value.code == code


def test_fp32_weights_are_rounded_first() -> None:
    integers, total = oracle.fp32_weights([0.1, 0.6, 0.3])
    assert [F(n, total) for n in integers] != [F(1, 10), F(6, 10), F(3, 10)]
    tenth, sixth, third = (F(struct.unpack("<f", struct.pack("<f", x))[0]) for x in (0.1, 0.6, 0.3))
    mass = tenth + sixth + third
    assert [F(n, total) for n in integers] == [tenth / mass, sixth / mass, third / mass]
    assert exact.fp32_weights([0.1, 0.6, 0.3]) == (integers, total)
