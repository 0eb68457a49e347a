"""Sessions in which nothing is asked any more end, though their verifier lives (P32)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from draftwire.drafter.limits import PeerLimits
from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.errors import ProtocolErrorCode
from draftwire.session.proposal import Proposal
from draftwire.session.reasons import DropReason
from draftwire.session.session_table import SessionTable
from draftwire.verifier.client import ClientRequest, DraftClient
from draftwire.verifier.hello import verifier_hello
from draftwire.verifier.miss import Miss
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout, Outcome, Status
from testing.harness.clock import Clock
from testing.harness.joined import SPARSE, Joined, agreement, error_of, unpacked
from testing.harness.memory import MemoryPair
from testing.harness.paths import MemoryChannel
from testing.toys.models import ToyDrafter, ToyTarget, mixed

V = 11
POLICY = ProposalPolicy(Layout.SPARSE, 4, 1.0, support=5)
LEASE, YIELD = 100.0, 10.0


class Bench:
    """A drafter with a clock of its own, and one verifier whose requests may be forgotten."""

    def __init__(self, clock: Clock, most: int) -> None:
        self.clock = clock
        self.engine = ToyDrafter(mixed(V, 1), V)
        limits = PeerLimits(lease_seconds=LEASE, yield_seconds=YIELD)
        config = DrafterConfig(max_sessions=most, max_slots=most, peer=limits)
        self.program = DrafterProgram(self.engine, config, clock=clock)
        pair = MemoryPair()
        self.client = DraftClient(
            lambda until: MemoryChannel(self.program, pair, clock),  # type: ignore[arg-type]
            verifier_hello(ToyTarget(mixed(V, 1), V), max_sessions=most),
            deadline=20.0,
            connect_timeout=1.0,
            clock=clock,
        )

    def round(self, request: ClientRequest) -> Proposal | Miss:
        """Ask once, and commit another token than the first draft."""
        found = request.propose(POLICY)
        if isinstance(found, Proposal):
            request.commit(Outcome.CORRECTION, 0, [(found.tokens[0] + 1) % V])
        else:
            request.commit(Outcome.TARGET_ONLY, 0, [0])
        return found

    def forget(self, request: ClientRequest) -> None:
        """The request is lost inside the verifier: it is not closed, and its slot is free there."""
        del self.client._requests[request.asking.session]

    def lapsed(self) -> dict[str, int]:
        return {why.value: n for why, n in self.program.counters.ended_sessions.items()}


@contextmanager
def bench(most: int = 3) -> Iterator[Bench]:
    made = Bench(Clock(), most)
    with made.client:
        yield made


def test_a_verifier_that_leaks_sessions_holds_no_more_contexts_than_agreed() -> None:
    """A hundred requests are forgotten; each new one takes the place of the oldest."""
    with bench(3) as at:
        for number in range(100):
            at.clock.now += YIELD
            request = at.client.open((1, 2, number % V), number)
            assert isinstance(at.round(request), Proposal)
            at.forget(request)
            assert at.program.open_sessions == len(at.engine.contexts) == min(number + 1, 3)
        assert at.lapsed() == {"expired": 0, "evicted": 97}


def test_a_session_in_use_makes_way_for_nobody() -> None:
    with bench(2) as at:
        used, forgotten = (at.client.open((1, number), number) for number in (1, 2))
        for request in (used, forgotten):
            assert isinstance(at.round(request), Proposal)
        at.forget(forgotten)
        at.clock.now += YIELD
        assert isinstance(at.round(used), Proposal)
        assert isinstance(at.round(at.client.open((1, 3), 3)), Proposal)
        generation = used.generation
        assert isinstance(at.round(used), Proposal)
        assert used.generation == generation
        assert at.lapsed() == {"expired": 0, "evicted": 1}


def test_before_its_time_nothing_makes_way() -> None:
    with bench(1) as at:
        first = at.client.open((1,), 1)
        assert isinstance(at.round(first), Proposal)
        at.forget(first)
        at.clock.now += YIELD * 0.9
        second = at.client.open((1, 3), 3)
        refused = at.round(second)
        assert isinstance(refused, Miss) and refused.reason is DropReason.REFUSED
        at.clock.now += YIELD * 0.1
        while not isinstance(at.round(second), Proposal):
            pass
        assert at.lapsed() == {"expired": 0, "evicted": 1}


def test_the_lease_of_a_session_is_not_renewed_by_ping() -> None:
    """And one that goes on after all loses one round, and then has the same prefix again."""
    with bench(3) as at:
        request, other = at.client.open((1,), 1), at.client.open((2,), 2)
        assert isinstance(at.round(request), Proposal)
        for _ in range(int(LEASE / 5) + 1):
            at.clock.now += 5.0
            at.client.ping()
            assert isinstance(at.round(other), Proposal)
        assert at.program.open_sessions == len(at.engine.contexts) == 1
        assert at.lapsed() == {"expired": 1, "evicted": 0}
        lost = at.round(request)
        assert isinstance(lost, Miss) and lost.reason is DropReason.LOST_STATE
        found = at.round(request)
        assert isinstance(found, Proposal) and request.generation == 2
        assert at.program.open_sessions == 2


def test_many_that_lapsed_do_not_end_their_verifiers_connection() -> None:
    """Each costs one refusal, which is the drafter's doing; more of them count as ever (P24)."""
    number = PeerLimits().refusals_at_once + 20
    with bench(number) as at:
        requests = [at.client.open((1, each % V), each) for each in range(number)]

        def ask() -> set[object]:
            results = at.client.propose_all([(request, POLICY) for request in requests])
            for request, found in zip(requests, results, strict=True):
                if isinstance(found, Proposal):
                    request.commit(Outcome.CORRECTION, 0, [(found.tokens[0] + 1) % V])
                else:
                    request.commit(Outcome.TARGET_ONLY, 0, [0])
            return {each.reason if isinstance(each, Miss) else Proposal for each in results}

        assert ask() == {Proposal}
        for _ in range(int(LEASE / 5) + 1):
            at.clock.now += 5.0
            at.client.ping()
            at.program.draft()
        assert at.lapsed() == {"expired": number, "evicted": 0}
        assert ask() == {DropReason.LOST_STATE}
        assert ask() == {Proposal}
        assert at.client.counters.connections == 1 and not at.client.counters.lost


def test_a_proposal_that_is_owed_keeps_its_session() -> None:
    joined = Joined()
    table = SessionTable(agreement(max_sessions=1), yield_seconds=YIELD)
    task = table.receive(joined.asking.ask(SPARSE, 0.0, 1.0), 0.0).task
    assert task is not None
    assert table.silent(10 * LEASE, LEASE) == []
    table.decline(task, Status.NO_SLOT)
    assert table.silent(LEASE * 0.9, LEASE) == []
    assert table.silent(10 * LEASE, LEASE) == [(0.0, joined.asking.session)]
    table.lapse(joined.asking.session)
    assert not len(table)


def test_nothing_of_a_lapsed_generation_is_drawn_again() -> None:
    """Its opening STEP once more would be answered by a second q under one key (law 2)."""
    joined = Joined()
    table = SessionTable(agreement(), yield_seconds=YIELD)
    step = joined.asking.ask(SPARSE, 0.0, 1.0)
    task = table.receive(step, 0.0).task
    assert task is not None
    table.decline(task, Status.NO_SLOT)
    table.lapse(step.session)
    actions = table.receive(step, LEASE)
    assert actions.task is None and actions.refused is ProtocolErrorCode.UNKNOWN_PREFIX
    assert error_of(list(unpacked(actions.parts, agreement()))) is ProtocolErrorCode.UNKNOWN_PREFIX


def test_a_step_that_is_refused_displaces_nobody() -> None:
    first, second = Joined(), Joined()
    table = SessionTable(agreement(max_sessions=1), yield_seconds=YIELD)
    task = table.receive(first.asking.ask(SPARSE, 0.0, 1.0), 0.0).task
    assert task is not None
    table.decline(task, Status.NO_SLOT)
    step = second.asking.ask(SPARSE, 0.0, 1.0)
    wrong = replace(step, session=step.session + 1, prefix_digest=bytes(16))
    actions = table.receive(wrong, 10 * YIELD)
    assert actions.refused is ProtocolErrorCode.WRONG_DIGEST and not actions.ended
    assert len(table) == 1
    actions = table.receive(replace(step, session=step.session + 1), 10 * YIELD)
    assert actions.silent and actions.ended == (step.session,) and actions.task is not None
