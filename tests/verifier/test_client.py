"""Rounds under faults: each costs its own round, under a named reason, and drafting resumes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.drafter.propose import Draft, DraftJob, ProposalSource, propose
from draftwire.errors import TransportError
from draftwire.session.proposal import Proposal
from draftwire.session.reasons import DropReason
from draftwire.transport.channel import Channel, Part
from draftwire.transport.tcp import free_address
from draftwire.verifier.client import DraftClient
from draftwire.verifier.emission import Kind
from draftwire.verifier.generate import generate
from draftwire.verifier.hello import verifier_hello
from draftwire.verifier.local import LocalDrafter, ProgramChannel
from draftwire.verifier.miss import Miss, MissReason
from draftwire.verifier.remote import RemoteDrafter
from draftwire.verifier.report import Report
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import (
    Layout,
    Outcome,
    Status,
)
from testing.harness.clock import Clock
from testing.harness.memory import Fault, Faults, MemoryPair
from testing.harness.paths import MemoryChannel, drafting
from testing.harness.servers import serving
from testing.toys.models import ToyContext, ToyDrafter, ToyTarget, constant, mixed

V = 11
PROMPT = (1, 2, 3)
POLICY = ProposalPolicy(Layout.SPARSE, 4, 1.0, support=6)


def pair_of_toys() -> tuple[ToyTarget, ToyDrafter]:
    return ToyTarget(mixed(V, 1), V), ToyDrafter(mixed(V, 1, sharpness=1.2), V)


class Planned:
    """A channel that does something to chosen rounds' answers; ``rounds`` counts STEPs sent."""

    def __init__(self, inner: Channel, plan: dict[int, Callable[[Planned], None]]) -> None:
        self.inner = inner
        self.plan = plan
        self.rounds = 0

    def send(self, parts: Sequence[Part], deadline: float) -> None:
        self.rounds += bytes(parts[0])[5] == 2  # the type byte of a STEP
        self.inner.send(parts, deadline)
        action = self.plan.get(self.rounds)
        if action is not None and bytes(parts[0])[5] == 2:
            action(self)

    def receive_into(self, buffer: memoryview, deadline: float) -> int:
        return self.inner.receive_into(buffer, deadline)

    def close(self) -> None:
        self.inner.close()


class Dying:
    """A channel that has ended when it is read for the n-th time."""

    def __init__(self, inner: Channel, reads: int) -> None:
        self.inner = inner
        self.reads = reads

    def send(self, parts: Sequence[Part], deadline: float) -> None:
        self.inner.send(parts, deadline)

    def receive_into(self, buffer: memoryview, deadline: float) -> int:
        if not self.reads:
            raise ConnectionResetError("gone")
        self.reads -= 1
        return self.inner.receive_into(buffer, deadline)

    def close(self) -> None:
        self.inner.close()


@pytest.mark.parametrize("reads", range(8))
@pytest.mark.parametrize("depth", [2, 8])
def test_a_drafter_that_goes_between_the_requests_of_one_call_costs_no_more_than_the_round(
    reads: int, depth: int
):
    """It is away, or back with smaller limits, at every time that a call for three looks at it."""
    target, engine = pair_of_toys()
    clock = Clock()
    programs = [
        DrafterProgram(engine, DrafterConfig(max_depth=most), clock=clock) for most in (8, depth)
    ]
    dialled = []

    def dial(until: float) -> Channel:
        channel = ProgramChannel(programs[min(len(dialled), 1)])
        dialled.append(Dying(channel, 1 + reads if not dialled else 1 << 30))
        return dialled[-1]

    with DraftClient(
        dial, verifier_hello(target), deadline=1e9, connect_timeout=1e9, clock=clock
    ) as client:
        requests = [client.open(PROMPT, key) for key in (1, 2, 3)]
        for _ in range(6):
            clock.now += 40.0  # a connection that was quiet is looked at first
            for request, drafted in zip(
                requests, client.propose_all([(each, POLICY) for each in requests]), strict=True
            ):
                assert isinstance(drafted, Proposal | Miss)
                if isinstance(drafted, Proposal):
                    request.commit(Outcome.CORRECTION, 0, [(drafted.tokens[0] + 1) % V])
                else:
                    request.commit(Outcome.TARGET_ONLY, 0, [1])
        assert isinstance(drafted, Proposal)


BAD_POLICIES = {
    "depth": replace(POLICY, depth=0),
    "temperature": replace(POLICY, temperature=math.nan),
    "support": replace(POLICY, support=0),
    "top_k": replace(POLICY, top_k=-1),
    "top_p": replace(POLICY, top_p=0),
    "min_p": replace(POLICY, min_p=1 << 25),
}


@pytest.mark.parametrize("key", [b"", bytes(range(32))])
@pytest.mark.parametrize("field", sorted(BAD_POLICIES))
def test_a_policy_that_no_step_can_carry_costs_its_own_request_a_round(field: str, key: bytes):
    target, engine = pair_of_toys()
    program = DrafterProgram(engine, DrafterConfig(), key=key)
    with DraftClient(
        lambda until: ProgramChannel(program),
        verifier_hello(target),
        deadline=1e9,
        connect_timeout=1e9,
        key=key,
    ) as client:
        good, bad = (client.open(PROMPT, key) for key in (1, 2))
        for policy in (BAD_POLICIES[field], POLICY):
            ours, theirs = client.propose_all([(good, POLICY), (bad, policy)])
            assert isinstance(ours, Proposal)
            good.commit(Outcome.CORRECTION, 0, [(ours.tokens[0] + 1) % V])
            if policy is POLICY:
                assert isinstance(theirs, Proposal)
            else:
                assert isinstance(theirs, Miss) and theirs.reason is MissReason.NOT_OFFERED
                assert field in theirs.detail
                bad.commit(Outcome.TARGET_ONLY, 0, [1])
        assert client.counters.connections == 1


class Interrupted:
    """A channel in which somebody presses Ctrl-C, once, in the n-th call from now."""

    def __init__(self, inner: Channel) -> None:
        self.inner = inner
        self.calls: int | None = None

    def _count(self) -> None:
        if self.calls is not None:
            self.calls -= 1
            if self.calls < 0:
                self.calls = None
                raise KeyboardInterrupt

    def send(self, parts: Sequence[Part], deadline: float) -> None:
        self._count()
        self.inner.send(parts, deadline)

    def receive_into(self, buffer: memoryview, deadline: float) -> int:
        self._count()
        return self.inner.receive_into(buffer, deadline)

    def close(self) -> None:
        self.inner.close()


@pytest.mark.parametrize("calls", range(4))
def test_a_client_that_was_interrupted_in_a_round_goes_on_with_the_next_request(calls: int):
    target, engine = pair_of_toys()
    programs = [DrafterProgram(engine, DrafterConfig()) for _ in range(2)]
    dialled: list[Interrupted] = []

    def dial(until: float) -> Channel:
        dialled.append(Interrupted(ProgramChannel(programs[min(len(dialled), 1)])))
        return dialled[-1]

    def text_of(client: DraftClient) -> tuple[int, ...]:
        sampling = Sampling(seed=3, max_tokens=20)
        with generate(target, client, PROMPT, sampling, POLICY) as run:
            return tuple(emission.token for emission in run)

    with DraftClient(dial, verifier_hello(target), deadline=1e9, connect_timeout=1e9) as client:
        expected = text_of(client)
        dialled[0].calls = calls
        with pytest.raises(KeyboardInterrupt):
            text_of(client)
        assert text_of(client) == expected
        assert text_of(client) == expected
    assert not engine.contexts


def test_a_drafter_that_fails_by_what_it_drew_is_asked_ever_more_seldom():
    """Law 4: it dies whenever it drew 0. Of n rounds about log2(n) are lost, not half."""
    fair = constant(1, 1)
    target = ToyTarget(fair, 2)
    lost = asked = 0

    def fails(
        engine: ToyDrafter, jobs: Sequence[DraftJob[ToyContext]], source: ProposalSource
    ) -> list[Draft | Status]:
        drafts = propose(engine, jobs, source)
        if any(isinstance(draft, Draft) and draft.tokens[0] == 0 for draft in drafts):
            raise RuntimeError("it dislikes 0")
        return drafts

    policy = ProposalPolicy(Layout.DENSE, 1, 1.0)
    for seed in range(10):
        program = DrafterProgram(ToyDrafter(fair, 2), DrafterConfig(), proposer=fails)
        with LocalDrafter(program, target) as client:
            run = generate(target, client, (1,), Sampling(seed=seed, max_tokens=1000), policy)
            assert len(list(run)) == 1000
            misses = run.report.misses
            lost += misses[DropReason.DECLINED_INTERNAL]
            asked += run.report.drafted_rounds
            assert misses[DropReason.DECLINED_INTERNAL] <= 9  # 2 + log2(1000 / 8)
            assert misses[MissReason.QUARANTINED] > 500
    assert lost and asked


class Counting:
    """A channel that counts the bytes that come."""

    def __init__(self, inner: Channel) -> None:
        self.inner = inner
        self.received = 0

    def send(self, parts: Sequence[Part], deadline: float) -> None:
        self.inner.send(parts, deadline)

    def receive_into(self, buffer: memoryview, deadline: float) -> int:
        count = self.inner.receive_into(buffer, deadline)
        self.received += count
        return count

    def close(self) -> None:
        self.inner.close()


@pytest.mark.parametrize("key", [b"", bytes(range(32))])
def test_every_byte_of_an_answer_is_counted_its_macs_too(key: bytes):
    target, engine = pair_of_toys()
    program = DrafterProgram(engine, DrafterConfig(), key=key)
    channel = Counting(ProgramChannel(program))
    with DraftClient(
        lambda until: channel,
        verifier_hello(target),
        deadline=1e9,
        connect_timeout=1e9,
        key=key,
    ) as client:
        request = client.open(PROMPT, 7)
        client.connect()
        greeted = channel.received
        assert isinstance(request.propose(POLICY), Proposal)
        assert request.traffic.received == channel.received - greeted


def run_with(
    faults_of_round: dict[int, Fault], *, tokens: int = 60, seed: int = 7
) -> tuple[list[Kind], Report, MemoryPair]:
    """Generate over a memory pair; the drafter's answer to the n-th STEP suffers the fault."""
    target, engine = pair_of_toys()
    pairs: list[MemoryPair] = []

    def pair() -> MemoryPair:
        pairs.append(MemoryPair(Faults(longest=20.0), seed=3))
        return pairs[-1]

    def through(channel: Channel) -> Channel:
        def afflict(planned: Planned) -> None:
            pairs[-1].drafter.plan(faults_of_round[planned.rounds])

        first = len(pairs) == 1
        return Planned(channel, dict.fromkeys(faults_of_round, afflict) if first else {})

    with drafting("memory", engine, target, pair=pair, through=through) as client:
        sampling = Sampling(seed=seed, max_tokens=tokens)
        run = generate(target, client, PROMPT, sampling, POLICY)
        kinds = [emission.kind for emission in run]
        assert len(kinds) == tokens
    return kinds, run.report, pairs[0]


def test_t37_one_lost_reply_costs_one_round_and_drafting_resumes() -> None:
    kinds, report, _ = run_with({3: Fault.LOSE})
    assert report.misses == {DropReason.MISSED_DEADLINE: 1}
    assert report.discarded == {DropReason.MISSED_DEADLINE: 4}
    assert kinds.count(Kind.TARGET_ONLY) <= 2  # that round, and a last one without room for drafts
    at = kinds.index(Kind.TARGET_ONLY)
    assert Kind.ACCEPTED in kinds[at + 1 :]
    assert report.drafted == report.verified + 4


@pytest.mark.parametrize(
    ("fault", "reasons"),
    [
        (Fault.LOSE, {DropReason.MISSED_DEADLINE}),
        (Fault.CORRUPT, {DropReason.CORRUPT}),
        (Fault.DISCONNECT, {DropReason.DISCONNECTED}),
        (Fault.DELAY, {DropReason.MISSED_DEADLINE, None}),
        (Fault.SPLIT, {None}),
        (Fault.DUPLICATE, {None}),
    ],
)
def test_a_fault_of_one_round_costs_at_most_that_round(
    fault: Fault, reasons: set[DropReason | None]
) -> None:
    kinds, report, _ = run_with({2: fault, 6: fault})
    assert set(report.misses) | {None} <= reasons | {None}
    if None not in reasons:
        assert set(report.misses) == reasons
    assert sum(report.misses.values()) <= 2
    assert Kind.ACCEPTED in kinds[-20:]


@pytest.mark.parametrize("fault", [Fault.SPLIT, Fault.DUPLICATE])
def test_faults_that_lose_nothing_leave_the_seeded_text_as_it_is(fault: Fault) -> None:
    target, engine = pair_of_toys()
    with drafting("colocated", engine, target) as client:
        whole = [
            e.kind
            for e in generate(target, client, PROMPT, Sampling(seed=7, max_tokens=60), POLICY)
        ]
    assert run_with(dict.fromkeys(range(1, 30), fault))[0] == whole


def test_x41_a_late_reply_is_dropped_by_its_id_and_the_next_one_is_used() -> None:
    """Reply r comes after r + 1 was sent: r is counted as stale, r + 1 is a proposal."""
    target, engine = pair_of_toys()
    program = DrafterProgram(engine, DrafterConfig())
    clock = Clock()

    class Late(MemoryChannel):
        """Holds back what the drafter says until it is released."""

        held = False

        def receive_into(self, buffer: memoryview, deadline: float) -> int:
            if self.held:
                clock.now = deadline
                raise TimeoutError
            return super().receive_into(buffer, deadline)

    channel = Late(program, MemoryPair(), clock)
    hello = verifier_hello(target)
    client = DraftClient(
        lambda until: channel, hello, deadline=1.0, connect_timeout=1.0, clock=clock
    )
    with client:
        client.connect()
        request = client.open(PROMPT, 99)
        channel.held = True
        missed = request.propose(POLICY)
        assert missed == Miss(DropReason.MISSED_DEADLINE, "", 4)
        request.commit(Outcome.TARGET_ONLY, 0, [5])
        channel.pump()  # the drafter answers round 1 now
        channel.held = False
        proposal = request.propose(POLICY)
        assert isinstance(proposal, Proposal)
        assert (proposal.round, proposal.first_position) == (request.round, 4)
        assert request.asking.drops[DropReason.STALE] >= 1
        request.close()
        channel.pump()
        assert not engine.contexts


def test_seeded_faults_of_every_kind_never_stop_the_text() -> None:
    """60 texts, each chunk hit with probability 0.24: all are whole, every loss has a name."""
    target, engine = pair_of_toys()
    faults = Faults(0.04, 0.04, 0.04, 0.04, 0.04, 0.02, 0.02, longest=8.0)
    seeds = iter(range(10_000))
    drafted = 0
    pairs: list[MemoryPair] = []

    def pair() -> MemoryPair:
        pairs.append(MemoryPair(faults, seed=next(seeds)))
        return pairs[-1]

    with drafting("memory", engine, target, pair=pair, clock=Clock(tick=0.02)) as client:
        for seed in range(60):
            sampling = Sampling(seed=seed, max_tokens=25)
            run = generate(target, client, PROMPT, sampling, POLICY)
            assert len(list(run)) == 25
            report = run.report
            assert report.drafted == report.verified + sum(report.discarded.values())
            assert report.rounds == report.drafted_rounds + report.target_only_rounds
            drafted += report.drafted_rounds
    assert drafted > 200
    happened = sum(sum(each.happened.values()) for each in pairs)
    assert happened > 100


def test_m56_when_nothing_ever_arrives_drafting_pauses_and_says_so() -> None:
    """Every reply is too late: rounds are asked ever more seldom, none of it silently."""
    target, engine = pair_of_toys()
    with drafting(
        "memory",
        engine,
        target,
        pair=lambda: MemoryPair(Faults(latency=1.0)),
        deadline=0.5,
        connect_timeout=10.0,
    ) as client:
        run = generate(target, client, PROMPT, Sampling(seed=1, max_tokens=100), POLICY)
        assert {e.kind for e in run} == {Kind.TARGET_ONLY}
    asked = run.report.misses[DropReason.MISSED_DEADLINE]
    assert asked <= 9
    assert run.report.misses[MissReason.PAUSED] == 99 - asked
    assert run.report.discarded == {DropReason.MISSED_DEADLINE: 4 * asked}
    assert any("pauses" in note for note in run.report.notes)


def test_nobody_there_is_a_target_only_run_that_says_so() -> None:
    address = free_address()
    target = ToyTarget(mixed(V, 1), V)
    with RemoteDrafter(address, target) as drafter:
        run = generate(target, drafter, PROMPT, Sampling(seed=1, max_tokens=30), POLICY)
        assert {e.kind for e in run} == {Kind.TARGET_ONLY}
        assert set(run.report.misses) == {MissReason.NO_CONNECTION}
        assert run.report.drafted == 0
        assert len(run.report.notes) == 1
        assert "the drafter is away" in run.report.notes[0]
        assert str(address) in run.report.notes[0]
        with pytest.raises(TransportError, match="draftwire serve"):
            drafter.connect()


def test_a_drafter_that_goes_and_comes_back_is_found_again() -> None:
    """Its process ends in mid-text and another one listens at the same port: drafting resumes."""
    target, engine = pair_of_toys()
    with serving(DrafterProgram(engine, DrafterConfig())) as server:
        address = server.address
        drafter = RemoteDrafter(address, target, deadline=20.0)
        run = generate(target, drafter, PROMPT, Sampling(seed=1, max_tokens=4000), POLICY)
        kinds = [next(run).kind for _ in range(40)]
        assert Kind.ACCEPTED in kinds
    away = [next(run).kind for _ in range(40)]
    assert Kind.TARGET_ONLY in away
    with serving(DrafterProgram(engine, DrafterConfig()), address=address):
        deadline = time.monotonic() + 20
        kinds = []
        while Kind.ACCEPTED not in kinds and time.monotonic() < deadline:
            time.sleep(0.002)
            kinds.append(next(run).kind)
        assert Kind.ACCEPTED in kinds
        assert run.report.misses[MissReason.NO_CONNECTION] >= 1
        run.close()
        drafter.close()
    assert not engine.contexts
