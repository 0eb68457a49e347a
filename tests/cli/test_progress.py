"""Something to see when it takes long, nothing when it does not, and never on standard output."""

from __future__ import annotations

import time

import pytest

from draftwire.cli import progress
from draftwire.cli.progress import Counting, working


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0.05)


def test_quick_work_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with working("a moment"), Counting("steps", 3) as counting:
        counting.advance()
    assert capsys.readouterr() == ("", "")


def test_long_work_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    with working("loading"):
        time.sleep(0.3)
    assert capsys.readouterr() == ("", "loading ...\n")


def test_a_long_count_is_said_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with Counting("steps", 4) as counting:
        for _ in range(4):
            time.sleep(0.06)
            counting.advance()
    out, err = capsys.readouterr()
    assert out == "" and "steps: 4 of 4" in err and err.count("\n") <= 4


def test_an_error_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError), working("loading"):
        raise RuntimeError
    time.sleep(0.1)
    assert capsys.readouterr() == ("", "")
