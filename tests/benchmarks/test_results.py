"""The arithmetic of the tables: spreads, costs, bytes on a link, the long run, what is too slow."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from benchmarks.twohosts.longrun import LongRun, least_cost, long_run
from benchmarks.twohosts.results import (
    DENSE,
    LIMIT,
    SPARSE,
    BreakerFound,
    LinkFound,
    PairFound,
    WayFound,
    WideTimes,
    document,
    missed,
    verdict,
)
from benchmarks.twohosts.table import link_table, summary
from benchmarks.twohosts.ways import TARGET_ONLY, Spread, costs, values_beyond
from draftwire.verifier.report import Report


def way(name: str, rate: float, cost: float, breaker: BreakerFound | None = None) -> WayFound:
    report = Report(tokens=30, rounds=10, drafted_rounds=8, verified=40, accepted=20)
    bounds = (cost - 0.02, cost + 0.02) if breaker else (-math.inf, math.inf)
    around = Spread(cost - 0.1, cost, cost + 0.1, *bounds)
    return WayFound(name, Spread(rate, rate, rate), around, report, breaker)


def link(cost: float = 1.0, hour: float = 1.0) -> LinkFound:
    found = BreakerFound("paused", 2, LongRun(hour, 0.01, 3600.0, hour - 0.02))
    ways = [way(TARGET_ONLY, 40.0, 1.0), way(f"{DENSE}, breaker", 40.0 / cost, cost, found)]
    pair = PairFound("a pair", 5, ways)
    return LinkFound(100, 0.002, 0.0021, WideTimes(0.003, 0.213), [pair])


def test_a_spread_is_the_median_between_the_quartiles() -> None:
    assert Spread.of([4.0]) == Spread(4.0, 4.0, 4.0)
    assert Spread.of([5, 1, 3, 2, 4]) == Spread(1.5, 3, 4.5, 1, 5)
    assert Spread.of([4, 1, 3, 2]) == Spread(1.5, 2.5, 3.5)


def test_bounds_of_a_median_hold_at_their_level() -> None:
    """Counted over all 2^n sides of the median that n values may fall on, none of them equal."""
    assert [values_beyond(n) for n in (0, 1, 4, 5, 7, 8, 11)] == [None, None, None, 0, 0, 1, 2]
    for n in range(5, 12):
        beyond = values_beyond(n)
        assert beyond is not None
        wrong = sum(bin(sides).count("1") <= beyond for sides in range(2**n))  # 1: below it
        closer = sum(bin(sides).count("1") <= beyond + 1 for sides in range(2**n))
        assert wrong <= 0.05 * 2**n < closer
    assert Spread.of([float(n) for n in range(11)]).least == 2
    assert Spread.of([float(n) for n in range(11)]).most == 8


def test_costs_compare_within_a_turn_and_only_turns_that_were_run() -> None:
    alone = {0: 10.0, 1: 100.0, 2: 10.0, 3: 50.0}
    assert costs(alone, {0: 20.0, 3: 25.0}) == Spread(0.5, 1.25, 2.0)
    assert costs(alone, alone) == Spread(1.0, 1.0, 1.0)


def test_bytes_and_milliseconds_of_the_large_vocabulary() -> None:
    """By hand: 5 positions of 129,280 x 4 or 32 x 8 bytes and 16 of head; 64 and 52 bytes of
    REPLY and COMPLETE around them, and twice 20 of frame; at 100 Mb/s and at 1 Gb/s."""
    framing = 64 + 52 + 2 * 20
    dense, sparse = 5 * (129_280 * 4 + 16) + framing, 5 * (32 * 8 + 16) + framing
    slow, fast = link(), replace(link(), megabits=1000)
    assert slow.serialisation(DENSE) == (dense, pytest.approx(dense * 8 / 100e6 * 1e3))
    assert fast.serialisation(DENSE) == (dense, pytest.approx(dense * 8 / 1e9 * 1e3))
    assert slow.serialisation(SPARSE)[0] == sparse
    assert slow.wide.megabits == pytest.approx((dense - sparse) * 8 / 0.210 / 1e6)


@pytest.mark.parametrize(
    ("cost", "hour", "lines"),
    [(1.0, 1.0, 0), (1.04, 1.04, 0), (1.06, 1.0, 1), (1.1, 1.1, 2)],
)
def test_more_than_three_percent_is_missed(cost: float, hour: float, lines: int) -> None:
    assert LIMIT == 1.03
    said = missed([link(cost, hour)])
    assert len(said) == lines
    assert all("100 Mb/s, 2 ms" in line and "dense, breaker" in line for line in said)


def test_what_decides_nothing_is_counted_and_named() -> None:
    assert "2 comparisons" in verdict([link()]) and "2 at most 3%" in verdict([link()])
    said = verdict([link(1.04, 1.04)])
    assert "0 slower than that, 2 too scattered to say (of these 2 with" in said
    assert said.count("not beyond doubt") == 2 and "(1.020 to 1.060)" in said
    assert "1 too scattered to say (of these 0 with" in verdict([link(1.02)])


def test_one_stall_among_few_rounds_decides_no_hour() -> None:
    alone, drafted = [1.0] * 20, [(2.9, 3)] * 19 + [(600.0, 3)]
    assert least_cost(alone, drafted, 2000.0) < long_run(alone, drafted, 2000.0).cost
    assert least_cost(alone, drafted, 2000.0) == least_cost(alone, drafted, 2000.0)


def test_tables_and_json_hold_what_was_measured() -> None:
    text = link_table(link(1.04, 1.01))
    assert "round trip 2.10 ms" in text and "2,585,836 bytes" in text
    assert "0.96 (0.88..1.06)" in text  # of target-only's tokens/s, between the quartiles
    assert "paused; 1.010x, 1% drafted" in text
    assert "38.5 (0.96x)" in summary([link(1.04)])
    whole = replace(link(1.04), pairs=[PairFound("a pair", 1, [way("alone", 1.0, 1.0)])])
    json.dumps(document("a command", [whole, link(1.0)], 9.0), allow_nan=False)
    written = json.loads(json.dumps(document("a command", [link(1.04)], 9.0)))
    assert written["links"][0]["pairs"][0]["ways"][1]["breaker"]["long_run"]["cost"] == 1.0
    assert written["missed"] == [] and "2 comparisons" in written["verdict"][-1]


def test_the_long_run_of_drafting_that_pays_is_drafting() -> None:
    found = long_run([0.01], [(0.02, 3), (0.02, 1), (0.02, 5)], 600.0)
    assert found.drafted > 0.97
    assert found.cost == pytest.approx(0.02 / 3 / 0.01, rel=0.02)


@pytest.mark.parametrize("dear", [0.05, 0.25])
def test_the_long_run_of_drafting_that_does_not_pay_is_the_target_alone(dear: float) -> None:
    found = long_run([0.01, 0.011, 0.009], [(dear, 3), (dear * 1.2, 2), (dear, 4)], 3600.0)
    assert found.drafted < 0.02
    assert 1.0 < found.cost <= LIMIT


def test_nothing_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="measured"):
        long_run([], [(1.0, 1)], 1.0)
