"""The report in words: every number of it is in the lines, and rates are compared turn by turn."""

from __future__ import annotations

from draftwire.cli.summary import rates, report_lines
from draftwire.session.reasons import DropReason
from draftwire.verifier.drafter import MissReason
from draftwire.verifier.report import Report


def drafted_report() -> Report:
    report = Report(tokens=9, rounds=4)
    report.proposed(2)
    report.judged(2, accepted=2, kept=2)
    report.proposed(2)
    report.judged(2, accepted=0, kept=0)
    report.proposed(2)
    report.judged(2, accepted=2, kept=1)
    report.missed(DropReason.MISSED_DEADLINE, 2)
    report.traffic.sent, report.traffic.received = 800, 2400
    return report


def test_every_draft_is_in_exactly_one_count() -> None:
    text = "\n".join(report_lines(drafted_report()))
    assert "2.25  (9 in 4 passes)" in text
    assert "0.67  0.33" in text
    assert "300 from the drafter, 100 to it" in text
    assert "8 = 6 verified + 2 discarded" in text
    assert "3 accepted + 1 rejected + 1 behind a rejection + 1 behind the end" in text
    assert "missed_deadline 1" in text
    assert max(map(len, text.splitlines())) < 100


def test_a_run_without_drafts_says_nothing_of_drafts() -> None:
    lines = report_lines(Report(tokens=3, rounds=3))
    assert len(lines) == 1 and "1.00  (3 in 3 passes)" in lines[0]


def test_a_drafter_that_was_never_there_is_said_to_have_been_away() -> None:
    report = Report(tokens=9, rounds=9)
    report.missed(MissReason.BASELINE, 0)
    assert "away" not in report_lines(report)[-1]
    report.missed(MissReason.NO_CONNECTION, 0)
    assert "the drafter was away (sampled 1, no_connection 1)" in report_lines(report)[-1]
    report.proposed(2)
    assert "away" not in report_lines(report)[-1]


def test_rates_are_compared_within_a_turn() -> None:
    # The machine is three times slower in the last turn: the ratios do not see that.
    text = "\n".join(rates([20.0, 22.0, 7.0], [20.0, 22.0, 7.0], [10.0, 11.0, 3.5]))
    assert "20.0 remote" in text
    assert "20.0 colocated in one process, remote is 1.00x" in text
    assert "10.0 target-only, remote is 2.00x" in text
