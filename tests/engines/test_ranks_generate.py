"""Two drafter ranks and two target ranks in processes of their own write one text, come what may.

Which rounds fail depends on when a process dies, so a failing run's text need not be that of an
undisturbed one; but it is one text on all ranks, of the target's law.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.engines.rank_programs import Ranks, context, drafter_rank, ranks, verifier_rank

PROMPT = [5, 9, 200, 31, 77]
TOKENS = 16
CONTEXT = 1024


@dataclass
class Machines:
    """The target's ranks, a drafter's address, and how long the target's second rank dawdles."""

    target: Ranks
    address: str
    delay: Any

    def write(self, **wish: Any) -> tuple[tuple[int, ...], dict[str, Any]]:
        """One text, the same on both ranks; returns it and the leader's report."""
        self.begin(**wish)
        return self.end()

    def begin(self, **wish: Any) -> None:
        defaults = {"address": self.address, "prompt": PROMPT, "seed": 7, "tokens": TOKENS}
        self.target.tell(0, {**defaults, **wish})

    def end(self) -> tuple[tuple[int, ...], dict[str, Any]]:
        text, report = self.target.hear(0)
        followed, rounds = self.target.hear(1)
        assert followed == text  # T34: no rank has another text, though only one holds the key
        assert len(rounds) == report["rounds"]
        assert sum(accepted for _, accepted in rounds) >= report["accepted"]
        assert sum(depth > 0 for depth, _ in rounds) == report["drafted_rounds"]
        return text, report


@pytest.fixture(scope="module")
def target() -> Iterator[tuple[Ranks, Any]]:
    delay = context().Value("d", 0.0)
    with ranks(verifier_rank, 2, delay) as group:
        assert group.hear(0, 200) == "ready"
        yield group, delay


@pytest.fixture(scope="module")
def machines(target: tuple[Ranks, Any]) -> Iterator[Machines]:
    with ranks(drafter_rank, 2) as drafter:
        yield Machines(target[0], drafter.hear(0, 200), target[1])


def test_two_and_two_ranks_write_one_text_from_a_seed(machines: Machines) -> None:
    text, report = machines.write()
    again, repeated = machines.write()
    assert text == again and len(text) == TOKENS
    assert report["accepted"] == repeated["accepted"] > 0
    assert report["misses"] == {}
    assert machines.write(seed=8)[0] != text


def test_greedy_ranks_write_what_the_target_alone_writes(machines: Machines) -> None:
    drafted, report = machines.write(temperature=0.0)
    alone, lost = machines.write(temperature=0.0, address="127.0.0.1:9")
    assert drafted == alone
    assert report["drafted_rounds"] > 0 and lost["drafted_rounds"] == 0


def test_t33_a_slow_rank_of_the_target_changes_nothing(machines: Machines) -> None:
    """It comes late to every round; the reply is there first, and is used."""
    text, _ = machines.write()
    machines.delay.value = 0.2
    began = time.monotonic()
    slow, report = machines.write(deadline=5.0)
    machines.delay.value = 0.0
    assert time.monotonic() - began > 0.2 * report["rounds"]
    assert slow == text and report["misses"] == {}


def test_t33_a_deadline_is_the_leaders_alone(machines: Machines) -> None:
    """Too short for any reply: every round falls back, on both ranks, and the text is whole."""
    text, report = machines.write(deadline=1e-4)
    assert len(text) == TOKENS
    assert report["drafted_rounds"] < report["rounds"] and report["misses"]


def test_t35_at_the_end_of_the_context_all_ranks_decide_alike(machines: Machines) -> None:
    """Lengths max-K .. max: the same decision to draft on both ranks, and no rank waits."""
    for room in range(1, 5):
        prompt = (PROMPT * CONTEXT)[: CONTEXT - room]
        text, _ = machines.write(prompt=prompt, tokens=9)
        assert 1 <= len(text) <= room


@pytest.mark.parametrize("rank", [1, 0])
def test_t34_a_drafter_rank_that_is_killed_costs_no_text(
    target: tuple[Ranks, Any], rank: int
) -> None:
    """Killed in the middle of a text: both ranks of the target fall back, together, and go on."""
    with ranks(drafter_rank, 2) as drafter:
        machines = Machines(target[0], drafter.hear(0, 200), target[1])
        machines.begin(pause_at=5)
        assert machines.target.hear(0) == "paused"
        drafter.kill(rank)
        if rank == 0:
            assert drafter.hear(1, 30) == "the leader is gone"
        machines.target.tell(0, "go on")
        text, report = machines.end()
        assert len(text) == TOKENS
        assert report["accepted"] > 0  # drafting went well until then
        assert report["misses"]
