"""One minute of the soak, through the code of `make soak`: 65 s of waiting, about 25 s of CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from testing.faults.soak import Account, Outcome, Watched

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_minute_of_kills_loses_nothing_and_grows_nothing() -> None:
    command = [sys.executable, "-m", "testing.faults.soak", "--seconds", "60", "--every", "5"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "requests completed, 0 wrong" in run.stdout


def test_what_grows_or_is_lost_fails_the_soak() -> None:
    """The judge itself: three percent, one descriptor, one request, one text, a hang."""
    steady = Watched("a", 1, [100] * 9, [7] * 9)
    growing = Watched("b", 2, [100] * 6 + [103] * 3, [7] * 6 + [8] * 3)
    good = Account(64, 64, drafted_rounds=9, connections=64, longest=2.0)
    assert not list(Outcome(60, 3, 3, good, [steady], 1.0).faults())
    bad = Account(64, 63, wrong=1, drafted_rounds=9, connections=8, longest=11.0)
    found = list(Outcome(60, 3, 3, bad, [steady, growing], 1.0).faults())
    assert len(found) == 6
