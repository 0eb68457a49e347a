"""When a connection that nothing is heard on is given up: not for one loss, not for a slow peer."""

from __future__ import annotations

import pytest

from draftwire.verifier.reconnect import Silence


@pytest.mark.parametrize(("deadline", "patience"), [(0.1, 10.0), (1.0, 10.0), (5.0, 50.0)])
def test_three_questions_and_ten_seconds_and_ten_deadlines(
    deadline: float, patience: float
) -> None:
    silence = Silence()
    assert not silence.too_long(1e9, deadline)
    for asked in range(3):
        silence.asked(100.0 + asked)
        assert not silence.too_long(100.0 + patience - 0.001, deadline)
        assert silence.too_long(100.0 + patience, deadline) is (asked == 2)


def test_whatever_is_heard_begins_anew() -> None:
    silence = Silence()
    for moment in range(4):
        silence.asked(float(moment))
    silence.heard()
    assert not silence.too_long(1000.0, 1.0)
    for moment in (1000.0, 1001.0, 1002.0):
        silence.asked(moment)
    assert not silence.too_long(1009.0, 1.0)
    assert silence.too_long(1010.0, 1.0)


def test_a_machine_that_was_suspended_has_asked_once() -> None:
    silence = Silence()
    silence.asked(0.0)
    assert not silence.too_long(3600.0, 1.0)
