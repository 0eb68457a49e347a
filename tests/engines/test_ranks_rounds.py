"""One decision a round over links: what ranks report is all that it follows from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import pytest

from draftwire.engines.parallel import rounds
from draftwire.engines.parallel.rounds import Asked, DistantProposal
from draftwire.kernels.shards.emulator import emulate
from draftwire.session.proposal import Dropped, Proposal
from draftwire.session.reasons import DropReason
from draftwire.verifier.counters import Traffic
from draftwire.verifier.miss import Miss, MissReason
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout

POLICY = ProposalPolicy(Layout.DENSE, 2, 1.0)
TOKENS = (5, 7)
NEVER, NOW, LATER, LOST, LOST_LATER = "never", "now", "later", "lost", "lost later"
WAYS = (NEVER, NOW, LATER, LOST, LOST_LATER)
WAIT = 0.12  # two whole reports and a shorter one


@dataclass
class Time:
    """Passes for all ranks at once, as long as one of them waits."""

    now: float = 0.0


@dataclass
class Asking:
    """The session of a request as far as a round uses it."""

    generation: int = 3
    round: int = 8
    opens: bool = False
    audit_seconds: float = 0.25
    given_up: list[DropReason] = field(default_factory=list)

    def __len__(self) -> int:
        return 11

    def skip(self) -> None:
        self.round += 1

    def give_up(self, reason: DropReason) -> None:
        self.given_up.append(reason)


@dataclass
class Request:
    asking: Asking = field(default_factory=Asking)
    traffic: Traffic = field(default_factory=lambda: Traffic(100, 200))
    generation: int = 3
    missing: MissReason | None = None
    context_version: int = 0

    def use_context(self, version: int) -> None:
        self.context_version = version

    @property
    def round(self) -> int:
        return self.asking.round

    def pauses(self) -> Miss | None:
        return None if self.missing is None else Miss(self.missing)

    def allowed(self, policy: ProposalPolicy, agreed: object) -> tuple[None, ProposalPolicy]:
        return None, policy


@dataclass
class Client:
    """A link on which an answer comes at once, with the second report, or never."""

    way: str
    time: Time
    leads: bool
    waits: list[float] = field(default_factory=list)
    gave_up: bool = False
    may_connect: bool = False
    shard: None = None

    def clock(self) -> float:
        return self.time.now if self.leads else math.nan  # a follower must not decide by it

    def agreement(self, until: float) -> object:
        return None

    def ask(self, request: Any, policy: ProposalPolicy, seconds: float) -> None:
        assert seconds == WAIT
        request.asking.round += 1

    def wait(self, request: Any, seconds: float) -> Proposal | Dropped | None:
        self.waits.append(seconds)
        self.time.now = max(self.time.now, sum(self.waits))
        if self.way in (LOST, LOST_LATER) and (self.way == LOST or len(self.waits) > 1):
            return Dropped(DropReason.DISCONNECTED, 3, 9, 2, "gone")
        if self.way in (NOW, LATER) and (self.way == NOW or len(self.waits) > 1):
            return Proposal(TOKENS, ("q",) * 2, 3, 9, 11)  # type: ignore[arg-type]
        return None

    def give_up(self, request: Any) -> Dropped:
        self.gave_up = True
        return Dropped(DropReason.MISSED_DEADLINE, 3, 9, 2)


@dataclass(frozen=True)
class Group:
    rank: int


def answered(
    ways: Sequence[str], wait: float = WAIT
) -> tuple[list[Any], list[Client], list[Request]]:
    time = Time()
    clients = [Client(way, time, rank == 0) for rank, way in enumerate(ways)]
    requests = [Request() for _ in ways]
    found = emulate(
        [
            rounds.collect_answer(Group(rank), client, request, POLICY, wait)  # type: ignore[arg-type]
            for rank, (client, request) in enumerate(zip(clients, requests, strict=True))
        ]
    )
    return found, clients, requests


@pytest.mark.parametrize("ways", list(product(WAYS, repeat=3)))
def test_all_ranks_use_a_proposal_or_none_does(ways: tuple[str, ...]) -> None:
    """All 125 combinations of three links: one decision, and nothing of a proposal is left."""
    found, clients, requests = answered(ways)
    used = all(way in (NOW, LATER) for way in ways)
    assert all(isinstance(each, Proposal) is used for each in found)
    first = next((way for way in ways if way == LOST), None)
    lost = first or next((way for way in ways if way == LOST_LATER), None)
    for way, each, client, request in zip(ways, found, clients, requests, strict=True):
        if used:
            assert not request.asking.given_up and not client.gave_up
            continue
        reason = DropReason.DISCONNECTED if lost else DropReason.MISSED_DEADLINE
        assert isinstance(each, Miss) and each.reason is reason and each.drafted == POLICY.depth
        whole = way == NOW or (way == LATER and first is None)
        assert request.asking.given_up == ([reason] if whole else [])
        missing = way == NEVER or (first and way in (LATER, LOST_LATER))
        assert client.gave_up is bool(missing)


def test_the_leader_says_how_long_the_others_wait_and_when_it_is_over() -> None:
    """A follower has no clock to end a round by: reports of the length that it was told."""
    found, clients, _ = answered((NEVER, NEVER))
    assert all(isinstance(each, Miss) for each in found)
    assert clients[1].waits == pytest.approx([0.05, 0.05, 0.02])
    assert sum(clients[0].waits) == pytest.approx(WAIT)


def test_a_follower_that_comes_late_is_waited_for_by_the_leaders_deadline_alone() -> None:
    for way, used in ((LATER, True), (NEVER, False)):
        found, clients, _ = answered((NOW, way))
        assert [isinstance(each, Proposal) for each in found] == [used] * 2
        assert len(clients[0].waits) == 1  # its own is there
    found, _, _ = answered((LATER, NOW))  # and a follower may be early
    assert all(isinstance(each, Proposal) for each in found)


def test_a_follower_with_its_own_deadline_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the enumeration above: ranks that decide for themselves part."""

    def alone(reports: Any, left: float) -> tuple[int, int]:
        mine = reports[0] == rounds.RankReport.WHOLE
        return (rounds.RankDecision.USE if mine else rounds.RankDecision.LOST, 0)

    monkeypatch.setattr(rounds, "decide", alone)
    with pytest.raises(AssertionError):
        test_all_ranks_use_a_proposal_or_none_does((NOW, LOST, NOW))


@pytest.mark.parametrize("owner", [0, 1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_a_request_that_one_rank_owns_is_decided_for_all(owner: int, way: str) -> None:
    """Its tokens go to all ranks, its q's to none; only the owner's link is waited for."""
    time = Time()
    clients = [Client(way, time, rank == 0) for rank in range(3)]
    request = Request()
    asked = Asked(POLICY, WAIT, 0.0)
    found = emulate(
        [
            rounds.owned_round(
                Group(rank),  # type: ignore[arg-type]
                client,  # type: ignore[arg-type]
                request if rank == owner else None,  # type: ignore[arg-type]
                owner,
                asked,
            )
            for rank, client in enumerate(clients)
        ]
    )
    stands = {stand for _, stand in found}
    assert stands == {rounds.Standing(11, 3, 9, 100, 200, 0.25)}
    for rank, (drafted, _) in enumerate(found):
        if way not in (NOW, LATER):
            lost = DropReason.MISSED_DEADLINE if way == NEVER else DropReason.DISCONNECTED
            assert isinstance(drafted, Miss) and drafted.reason is lost
            continue
        assert isinstance(drafted, Proposal) and drafted.tokens == TOKENS
        assert isinstance(drafted, DistantProposal) is (rank != owner)
        assert (drafted.rows == ()) is (rank != owner)
        assert (drafted.generation, drafted.round, drafted.first_position) == (3, 9, 11)


def test_an_owner_that_may_not_ask_skips_the_round_on_all_ranks() -> None:
    request = Request(missing=MissReason.UNSHARED_TOKEN)
    time = Time()
    clients = [Client(NEVER, time, True), Client(NEVER, time, False)]
    found = emulate(
        [
            rounds.owned_round(
                Group(rank),  # type: ignore[arg-type]
                clients[rank],  # type: ignore[arg-type]
                request if rank == 1 else None,  # type: ignore[arg-type]
                1,
                Asked(POLICY, WAIT, 0.0),
            )
            for rank in range(2)
        ]
    )
    for drafted, stands in found:
        assert isinstance(drafted, Miss) and drafted.reason is MissReason.UNSHARED_TOKEN
        assert (stands.generation, stands.round) == (3, 9)
    assert not clients[0].waits and not clients[1].waits


def test_reports_and_decisions_hold_every_reason() -> None:
    for reason in DropReason:
        report = rounds.report_of(Request(), Dropped(reason, 1, 1, 1))  # type: ignore[arg-type]
        decision, _ = rounds.decide(np.array([rounds.RankReport.WHOLE, report]), 1.0)
        assert rounds.DROP_REASONS[decision - rounds.RankDecision.LOST] is reason
