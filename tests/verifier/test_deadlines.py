"""Deadlines derived from earlier rounds: the timer, its bounds, and what it may not look at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import pytest

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.errors import ConfigurationError
from draftwire.session.proposal import Dropped, Proposal
from draftwire.session.reasons import DropReason
from draftwire.transport.channel import Channel, Part
from draftwire.verifier.client import DraftClient
from draftwire.verifier.deadlines import Deadline, DeadlineBounds
from draftwire.verifier.generate import generate
from draftwire.verifier.hello import verifier_hello
from draftwire.verifier.miss import Miss
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout, MessageType, Outcome
from testing.harness.clock import Clock
from testing.harness.memory import Faults, MemoryPair
from testing.harness.paths import MemoryChannel
from testing.toys.enumeration import WordTree, law_of
from testing.toys.models import ToyDrafter, ToyTarget, mixed
from tests.verifier.test_laws import Shared

V = 11
POLICY = ProposalPolicy(Layout.SPARSE, 4, 1.0, support=5)
WIDE = DeadlineBounds(first=1.0, least=1e-9, most=1e9)


def test_the_timer_is_that_of_rfc_6298() -> None:
    """Its own formulas, in fractions, over a sequence of round trips."""
    deadline = Deadline(None, WIDE)
    assert deadline.seconds(opens=False) == 1.0
    smoothed = deviation = Fraction(0)
    for index, trip in enumerate((Fraction(1, 8), Fraction(1, 4), Fraction(1, 16), Fraction(3))):
        if index:
            deviation = Fraction(3, 4) * deviation + Fraction(1, 4) * abs(smoothed - trip)
            smoothed = Fraction(7, 8) * smoothed + Fraction(1, 8) * trip
        else:
            smoothed, deviation = trip, trip / 2
        deadline.came(float(trip), opens=False)
        assert deadline.seconds(opens=False) == pytest.approx(float(smoothed + 4 * deviation))


def test_it_stays_in_its_bounds_and_doubles_with_every_miss() -> None:
    deadline = Deadline()
    for _ in range(100):
        deadline.came(1e-6, opens=False)
        deadline.came(1e-6, opens=True)
    assert deadline.seconds(opens=False) == 0.2
    assert deadline.seconds(opens=True) == 1.0  # a prompt may take longer than the rounds after it
    found = []
    for _ in range(8):
        deadline.missed(opens=False)
        found.append(deadline.seconds(opens=False))
    assert found == [0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]
    assert deadline.seconds(opens=True) == 10.0
    deadline.came(0.01, opens=False)
    assert deadline.seconds(opens=False) < 0.5  # one reply in time, and what was measured counts


def test_a_fixed_deadline_stays_and_only_times_count() -> None:
    fixed = Deadline(0.05)
    fixed.missed(opens=False)
    fixed.came(100.0, opens=True)
    assert fixed.seconds(opens=False) == fixed.seconds(opens=True) == 0.05
    derived = Deadline()
    proposal = Proposal((1,), (), 1, 1, 1)
    for reason in DropReason:
        derived.finished([Dropped(reason, 1, 1, 4)], [9.0], opens=False)
        assert derived.seconds(opens=False) == (
            2.0 if reason is DropReason.MISSED_DEADLINE else derived.seconds(opens=False)
        )
    assert derived.seconds(opens=False) == 2.0  # doubled once in all of them
    missed = Dropped(DropReason.MISSED_DEADLINE, 1, 1, 4)
    derived.finished([proposal, missed], [0.1, None], opens=False)
    assert derived.seconds(opens=False) == 4.0
    derived.finished([proposal, proposal], [0.1, 0.3], opens=False)
    assert derived.seconds(opens=False) == pytest.approx(0.9)  # the slowest of them


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_deadlines_and_bounds_are_finite_and_positive(value: float) -> None:
    with pytest.raises(ConfigurationError, match="deadline must be finite"):
        Deadline(value)
    for name in ("first", "least", "most"):
        with pytest.raises(ConfigurationError, match="bounds"):
            DeadlineBounds(**{name: value})


def client_of(pair: MemoryPair, clock: Clock, engine: ToyDrafter, target: ToyTarget) -> DraftClient:
    program = DrafterProgram(engine, DrafterConfig(), clock=clock)
    return DraftClient(
        lambda until: MemoryChannel(program, pair, clock),  # type: ignore[arg-type]
        verifier_hello(target),
        deadline=None,
        connect_timeout=10.0,
        clock=clock,
    )


def test_a_network_that_is_slower_for_good_is_learned() -> None:
    """2 ms a way, then 0.9 s: some rounds are lost, the wait doubles, and drafting goes on."""
    clock, pair = Clock(), MemoryPair(Faults(latency=0.002))
    target = ToyTarget(mixed(V, 1), V)
    with client_of(pair, clock, ToyDrafter(mixed(V, 1), V), target) as client:
        request = client.open((1,), 7)

        def round_of() -> bool:
            drafted = request.propose(POLICY)
            if isinstance(drafted, Miss):
                request.commit(Outcome.TARGET_ONLY, 0, [1])
                return False
            request.commit(Outcome.BONUS, 4, [*drafted.tokens, 1])
            return True

        assert all(round_of() for _ in range(20))
        assert client.deadline == 0.2
        for way in pair.ways:
            way.faults = Faults(latency=0.9)
        ended = [round_of() for _ in range(60)]
        assert not ended[0] and all(ended[-20:])
        assert 1.8 < client.deadline <= 10.0
        assert client.counters.drops[DropReason.MISSED_DEADLINE] <= 6
        request.close()


@pytest.mark.parametrize(("within", "waited"), [(0.3, 0.3), (5.0, 1.0)])
def test_the_callers_limit_and_the_rounds_deadline_both_hold(within: float, waited: float) -> None:
    """Nothing comes; 1 s is the derived deadline before anything is measured."""
    clock, pair = Clock(), MemoryPair()
    with client_of(pair, clock, ToyDrafter(mixed(V, 1), V), ToyTarget(mixed(V, 1), V)) as client:
        client.connect()
        request = client.open((1,), 7)
        for way in pair.ways:
            way.faults = Faults(latency=60.0)
        began = clock.now
        (drafted,) = client.propose_all([(request, POLICY)], began + within)
        assert isinstance(drafted, Miss) and drafted.reason is DropReason.MISSED_DEADLINE
        assert clock.now - began == pytest.approx(waited)


def test_rounds_within_a_callers_limit_are_learned_from_and_its_own_misses_are_not() -> None:
    clock, pair = Clock(), MemoryPair(Faults(latency=0.002))
    with client_of(pair, clock, ToyDrafter(mixed(V, 1), V), ToyTarget(mixed(V, 1), V)) as client:
        client.connect()
        request = client.open((1,), 7)
        for _ in range(15):
            (drafted,) = client.propose_all([(request, POLICY)], clock.now + 0.25)
            assert isinstance(drafted, Proposal)
            request.commit(Outcome.BONUS, POLICY.depth, [*drafted.tokens, 1])
        assert client.deadline == 0.2  # the least; it was 1 s before anything was measured
        for way in pair.ways:
            way.faults = Faults(latency=60.0)
        (drafted,) = client.propose_all([(request, POLICY)], clock.now + 0.1)
        assert isinstance(drafted, Miss)
        assert client.deadline == 0.2


class Late:
    """Answers come after 1.5 s where the committed prefix ends with 1, else after 1 ms."""

    def __init__(self, inner: Channel, clock: Clock) -> None:
        self.inner, self.clock = inner, clock
        self.wait = 0.0

    def send(self, parts: Sequence[Part], deadline: float) -> None:
        data = b"".join(bytes(part) for part in parts)
        if data[5] == MessageType.STEP:  # its last token stands before the trailer
            self.wait = 1.5 if int.from_bytes(data[-8:-4], "little") == 1 else 0.001
        self.inner.send(parts, deadline)

    def receive_into(self, buffer: memoryview, deadline: float) -> int:
        if self.clock.now + self.wait > deadline:
            self.clock.now = deadline
            raise TimeoutError
        self.clock.now, self.wait = self.clock.now + self.wait, 0.0
        return self.inner.receive_into(buffer, deadline)

    def close(self) -> None:
        self.inner.close()


def test_the_law_is_exact_under_a_deadline_that_follows_earlier_rounds() -> None:
    """q = p = (1/2, 1/2); how late a reply comes is decided by the text before its round.

    So the deadline, what is lost, and the rounds after it follow what earlier rounds drew. The law
    of five tokens is enumerated over all words and must be 1/32 each.
    """
    clock, shared, lost = Clock(), Shared(), set()
    target, engine = ToyTarget(lambda context: (2, 2), 2), ToyDrafter(lambda context: (2, 2), 2)

    def run(tree: WordTree) -> tuple[int, ...]:
        shared.tree = tree
        program = DrafterProgram(engine, DrafterConfig(), clock=clock, source=shared)
        with DraftClient(
            lambda until: Late(MemoryChannel(program, MemoryPair(), clock), clock),  # type: ignore[arg-type]
            verifier_hello(target),
            deadline=None,
            connect_timeout=10.0,
            audit=False,
            clock=clock,
        ) as client:
            policy = ProposalPolicy(Layout.DENSE, 1, 1.0)
            sampling = Sampling(seed=0, max_tokens=5)
            emissions = list(generate(target, client, (0,), sampling, policy, words=tree))
            lost.add((client.counters.drops[DropReason.MISSED_DEADLINE], client.deadline))
        return tuple(emission.token for emission in emissions)

    law = law_of(run, 2)
    assert len(law) == 32 and set(law.values()) == {Fraction(1, 32)}
    assert len(lost) > 2  # what was lost, and the deadline at the end, followed what was drawn
