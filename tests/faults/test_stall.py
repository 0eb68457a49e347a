"""The verdict on stalls, from made-up numbers: a busy machine is no failure, a late round is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from draftwire.verifier.connection import Connection, ConnectionEvent
from testing.faults import stall
from testing.faults.stall import DEADLINE, TRIES, Round, Stalls, Trial

WANTED = 100
FAST, ON_TIME, LATE = 0.06, 1.004 * DEADLINE, 1.2 * DEADLINE


def trial(hit: float = ON_TIME, bare: float = ON_TIME, *, lost: bool = True) -> Trial:
    """A trial whose free round is as it should be."""
    return Trial(Round(FAST, False, ON_TIME), Round(hit, lost, bare))


def free_lost(seconds: float = ON_TIME, bare: float = ON_TIME) -> Trial:
    """A trial that ended with a round that nothing hit."""
    return Trial(Round(seconds, True, bare))


def stalls(*parts: tuple[int, Trial]) -> Stalls:
    """So many of each trial."""
    return Stalls("killed", WANTED, [each for count, each in parts for _ in range(count)])


def test_rounds_that_end_at_their_deadline_hold() -> None:
    assert stalls((WANTED, trial())).verdict == "held"


@pytest.mark.parametrize(
    "late",
    [
        trial(LATE),  # hit, and late with its witness in time
        free_lost(LATE),  # not hit, and late to its caller all the same
        trial(1.101 * DEADLINE),  # the bound itself is as it was
    ],
)
def test_a_late_round_whose_witness_was_in_time_fails(late: Trial) -> None:
    """One in a hundred is what the 99th percentile allows, and two are not."""
    assert stalls((WANTED - 1, trial()), (1, late), (1, trial())).verdict == "held"
    assert stalls((WANTED - 2, trial()), (2, late), (2, trial())).verdict == "FAIL"


def test_one_late_round_of_few_is_measured_until_a_percentile_can_be_told() -> None:
    few = Stalls("killed", 20, [trial()] * 19 + [trial(LATE)])
    assert not few.enough and few.verdict == "FAIL"
    more = Stalls("killed", 20, few.trials + [trial()] * 80)
    assert more.enough and more.verdict == "held"
    assert Stalls("killed", 20, [trial(LATE)] * 2).enough  # nothing can make that good
    assert Stalls("killed", 20, [trial()] * 20).enough


def test_late_rounds_fail_though_too_few_could_be_measured() -> None:
    """Spoiled measurements excuse nothing but themselves."""
    assert stalls((300, trial(LATE, LATE)), (5, trial(LATE))).verdict == "FAIL"


def test_a_busy_machine_is_measured_again_and_said() -> None:
    """Whether a round counts is the witness's word: a round in time beside a late one goes too."""
    found = stalls((WANTED, trial()), (30, trial(LATE, LATE)), (10, trial(ON_TIME, LATE)))
    assert found.verdict == "held" and found.hit == len(found.seconds) == WANTED
    assert found.spoiled == 40 and "40 measured again" in found.line()
    assert not stalls((WANTED - 1, trial()), (30, trial(LATE, LATE))).enough


def test_rounds_that_nothing_hit_and_that_were_late_are_measured_again_and_said() -> None:
    """The drafter had no turn in time: a round is lost, at its deadline, and no more."""
    found = stalls((WANTED, trial()), (7, free_lost()), (2, free_lost(LATE, LATE)))
    assert found.verdict == "held" and found.late == 7 and found.spoiled == 2
    assert "7 late that nothing hit" in found.line()


@pytest.mark.parametrize("spoiled", [trial(LATE, LATE), free_lost(LATE, LATE), free_lost()])
def test_what_could_not_be_measured_is_not_held(spoiled: Trial) -> None:
    found = stalls((WANTED // 2, trial()), (TRIES * WANTED - WANTED // 2, spoiled))
    assert found.enough and found.verdict == "NOT MEASURED" and not found.met


def test_nothing_measured_is_not_held() -> None:
    assert stalls().verdict == "NOT MEASURED"
    assert "NOT MEASURED" in stalls().line() and stalls().as_dict()["held"] is False


def test_a_drafter_that_is_slow_by_itself_shows_nothing() -> None:
    """A round that would have been late anyway says nothing of the blow, nor one that escaped."""
    slow = Trial(Round(0.6 * DEADLINE, False, ON_TIME), Round(ON_TIME, True, ON_TIME))
    escaped = trial(FAST, lost=False)
    assert stalls((WANTED, slow)).verdict == "NOT MEASURED"
    assert stalls((WANTED, trial()), (WANTED, escaped)).verdict == "NOT MEASURED"


def test_a_round_that_is_really_late_is_seen_by_the_real_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two rounds each: as they are, and with a client that goes on waiting a fifth longer."""
    assert stall.measure("stopped", 2).verdict in ("held", "NOT MEASURED")
    receive = Connection.receive

    def longer(self: Connection, deadline: float) -> Iterator[ConnectionEvent]:
        return receive(self, deadline + 0.2 * DEADLINE)

    monkeypatch.setattr(Connection, "receive", longer)
    assert stall.measure("stopped", 2).verdict in ("FAIL", "NOT MEASURED")
