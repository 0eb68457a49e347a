"""The runner counts, finds what hangs and what grows, and says how to run a case again."""

from __future__ import annotations

import time
from random import Random

import pytest

from testing.fuzz import run


def test_a_short_run_reports_counts_and_rate(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--frames", "40", "--transcripts", "4", "--seed", "3", "--processes", "1"]
    assert run.main(asked) == 0
    out = capsys.readouterr().out
    assert "frames: 40 cases, seed 3" in out
    assert "transcripts: 4 cases, seed 3" in out
    assert out.endswith("no findings\n")
    assert run.main(["--case", "frames:3:7"]) == 0


def test_what_hangs_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(random: Random) -> str:
        end = time.monotonic() + 10
        while time.monotonic() < end:
            pass
        return "read"

    monkeypatch.setattr(run, "runner", lambda kind: slow)
    monkeypatch.setattr(run, "CASE_SECONDS", 0.05)
    block = run.run_block(("frames", 1, 0, 1))
    assert "Hung" in block.findings[0]
    assert "frames:1:0" in block.findings[0]


def test_what_grows_is_a_finding() -> None:
    campaign = run.Campaign("frames", 1, 10)
    campaign.memory = {7: [1 << 20, (1 << 20) + run.GROWTH_BYTES]}
    assert campaign.good
    campaign.memory[7].append((1 << 20) + run.GROWTH_BYTES + 1)
    assert not campaign.good


def test_what_keeps_an_object_of_every_case_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before a page is seen of it: a million cases would leave 60 MB or less."""
    kept: list[object] = []

    def leaking(random: Random) -> str:
        kept.append([random.random()])
        return "read"

    monkeypatch.setattr(run, "runner", lambda kind: leaking)
    for keeps in (True, False):
        campaign = run.Campaign("frames", 1, 40_000)
        campaign.run(1, lambda line: None)
        assert campaign.good is not keeps
        assert campaign.growth <= run.GROWTH_BYTES
        monkeypatch.setattr(run, "runner", lambda kind: lambda random: "read")
