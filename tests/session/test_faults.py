"""Both halves over a faulty pair, driven by hypothesis: whatever happens, nothing wrong is used.

The invariants: no exception but ProtocolError where the caller is out of order; after each whole
proposal both prefixes agree, and what is emitted is what the drafter drew; no address of a draw is
used for two contents (checked by the drafter of :mod:`testing.harness.joined`); no round's proposal
is emitted twice or after it was given up; and once the link heals, drafting resumes (T37).
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from draftwire.session.link import Link
from draftwire.session.proposal import DraftTask, Dropped, Proposal
from draftwire.session.reasons import DropReason
from draftwire.session.session_states import State
from draftwire.session.session_table import SessionTable
from draftwire.session.shards import ShardProposal
from draftwire.session.verifier_session import VerifierSession
from draftwire.wire.registry import LayoutSet, Outcome, Role, Status
from testing.harness.joined import (
    DENSE,
    IDS_ONLY,
    KEY,
    PROMPT,
    SPARSE,
    V2,
    VOCABULARY,
    HashDrafter,
    hello,
)
from testing.harness.linked import DrafterEnd, VerifierEnd
from testing.harness.memory import Fault, Faults, MemoryEnd, MemoryPair

LONGEST = 2.0
BETWEEN = (State.IDLE, State.OPEN)
SELDOM = st.sampled_from([False] * 7 + [True])  # so that a run is not made of endings alone
CHOICE = st.integers(0, 3)
ACCEPTED = st.integers(0, 5)
TOKEN = st.integers(0, VOCABULARY - 1)


class FaultyRounds(RuleBasedStateMachine):
    """One request; connections come and go under it."""

    layouts = V2
    policies = (SPARSE, DENSE, replace(SPARSE, depth=1), replace(DENSE, depth=5))

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.asking = VerifierSession(1, 0, PROMPT, KEY, None)
        self.model = HashDrafter()
        self.proposal: Proposal | None = None
        self.emitted: set[tuple[int, int]] = set()
        self.given_up: set[tuple[int, int]] = set()
        self.used_at: set[tuple[int, int, int]] = set()
        self.fault_seed = 0

    @initialize(seed=st.integers(0, 2**16))
    def begin(self, seed: int) -> None:
        self.fault_seed = seed
        self.connect()

    # the two programs, as small as they can be

    @precondition(lambda self: self.verifier.closed and self.asking.state is not State.ENDED)
    @rule()
    def connect(self) -> None:
        self.fault_seed += 1
        self.pair = MemoryPair(Faults(longest=LONGEST), self.fault_seed)
        self.ends = (
            VerifierEnd(hello(Role.VERIFIER, self.layouts), self.now),
            DrafterEnd(hello(Role.DRAFTER, self.layouts), self.now, model=self.model),
        )
        self.verifier, self.drafter = (end.link for end in self.ends)
        self.ends[0].sessions[1] = self.asking
        self.begun = (0, 0)  # the generation and round of the task that was begun last
        self.model.states.clear()
        self.pump()

    @property
    def table(self) -> SessionTable | None:
        return self.ends[1].table

    @property
    def tasks(self) -> deque[DraftTask]:
        return self.ends[1].tasks

    def write(self, link: Link, end: MemoryEnd) -> None:
        parts = link.outgoing()
        if parts and self.pair.connected:
            end.send(parts, self.now)

    def pump(self) -> None:
        """Deliver all that has arrived by now, both ways, until nothing moves."""
        moved = True
        while moved:
            self.write(self.verifier, self.pair.verifier)
            self.write(self.drafter, self.pair.drafter)
            moved = self.pump_drafter() | self.pump_verifier()
        if self.verifier.closed or self.drafter.closed:
            self.disconnect()

    def arrived(self, link: Link, end: MemoryEnd) -> bytes:
        """What has come for an open link, which hears of the stream's end too; b"" = nothing."""
        data = end.receive(self.now)
        if data is None or link.closed:
            return b""
        if data == b"":
            link.finished()
        return data

    def pump_drafter(self) -> bool:
        data = self.arrived(self.drafter, self.pair.drafter)
        if data:
            self.ends[1].receive(data, self.now)
        return bool(data)

    def pump_verifier(self) -> bool:
        data = self.arrived(self.verifier, self.pair.verifier)
        if data:
            for _, result in self.ends[0].receive(data, self.now):
                self.taken(result)
        return bool(data)

    def taken(self, result: Proposal | ShardProposal | Dropped) -> None:
        if isinstance(result, Dropped):
            self.given_up.add((result.generation, result.round))
        if not isinstance(result, Proposal):
            return
        named = (result.generation, result.round)
        assert named == (self.asking.generation, self.asking.round)
        assert named not in self.emitted and named not in self.given_up
        self.emitted.add(named)
        drawn = self.model.proposals[1, *named]
        assert result.tokens == tuple(token for token, _ in drawn)
        for ours, (_, theirs) in zip(result.rows, drawn, strict=True):
            assert ours.exact() == theirs.exact()
        assert self.table is not None
        session = self.table[1]
        assert session.tokens == self.asking.tokens
        assert session.prefix_digest == self.asking.prefix_digest
        self.proposal = result

    # what may happen

    @rule(fault=st.sampled_from(Fault), end=st.sampled_from(["verifier", "drafter"]))
    def plan(self, fault: Fault, end: str) -> None:
        getattr(self.pair, end).plan(fault)

    @rule(seconds=st.sampled_from([0.1, LONGEST]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.pump()

    @precondition(lambda self: self.asking.state in BETWEEN)
    @rule(
        choice=CHOICE,
        faults=st.lists(st.tuples(st.sampled_from(Fault), st.booleans()), max_size=2),
        retries=st.integers(0, 2),
        accepted=ACCEPTED,
        token=TOKEN,
    )
    def whole_round(
        self,
        choice: int,
        faults: list[tuple[Fault, bool]],
        retries: int,
        accepted: int,
        token: int,
    ) -> None:
        """A round as a verifier goes about it, with some faults in its way."""
        if self.verifier.closed:
            self.connect()
        if self.asking.room() < 5:
            return
        for fault, at_verifier in faults:
            self.plan(fault, "verifier" if at_verifier else "drafter")
        self.ask(choice)
        for _ in range(retries):
            self.draft_all()
            if self.asking.deadline is not None:
                self.now += 0.5
                self.retry()
        self.draft_all()
        if self.asking.deadline is not None:
            self.give_up()
        self.use(accepted, token)

    def draft_all(self) -> None:
        while self.tasks:
            self.draft(last=False, status=None)

    @precondition(lambda self: self.asking.state in BETWEEN and self.asking.room() >= 5)
    @rule(choice=CHOICE)
    def ask(self, choice: int) -> None:
        policy = self.policies[choice % len(self.policies)]
        self.verifier.send(self.asking.ask(policy, self.now, self.now + 1.0))
        self.pump()

    @precondition(lambda self: self.asking.deadline is not None)
    @rule()
    def retry(self) -> None:
        self.verifier.send(self.asking.retry())
        self.pump()

    @precondition(lambda self: self.tasks)
    @rule(last=st.booleans(), status=st.sampled_from([None, None, None, Status.INTERNAL]))
    def draft(self, last: bool, status: Status | None) -> None:
        """The drafter does one of its tasks, wanted or not."""
        assert self.table is not None
        task = self.tasks.pop() if last else self.tasks.popleft()
        if not self.table.wanted(task):
            if status is None and (task.generation, task.round) > self.begun:
                # It had begun before it was given up, and so before any later task.
                self.begun = (task.generation, task.round)
                assert self.table.reply(task, self.model.draft(task)) == []
            assert self.table.decline(task, Status.INTERNAL) == []
            return
        if status is None:
            self.begun = (task.generation, task.round)
            self.ends[1].draft(task)
        else:
            self.drafter.send_parts(self.table.decline(task, status))
        self.pump()

    @precondition(lambda self: self.asking.deadline is not None or self.proposal is not None)
    @rule()
    def give_up(self) -> None:
        dropped = self.asking.give_up()
        assert dropped.drafted > 0
        self.given_up.add((dropped.generation, dropped.round))
        self.proposal = None

    @precondition(lambda self: self.asking.state in BETWEEN)
    @rule(really=SELDOM)
    def skip(self, really: bool) -> None:
        if really:
            self.asking.skip()

    @precondition(lambda self: self.asking.state in (State.PROPOSED, State.TARGET_ONLY))
    @rule(accepted=ACCEPTED, token=TOKEN)
    def use(self, accepted: int, token: int) -> None:
        before = self.asking.tokens
        tokens = () if self.proposal is None else self.proposal.tokens
        accepted = min(accepted, len(tokens))
        if self.proposal is None:
            self.asking.commit(0, Outcome.TARGET_ONLY, token)
        elif accepted == len(tokens):
            self.asking.commit(accepted, Outcome.BONUS, token)
        else:
            token = token if token != tokens[accepted] else (token + 1) % VOCABULARY
            self.asking.commit(accepted, Outcome.CORRECTION, token)
        assert self.asking.tokens == (*before, *tokens[:accepted], token)
        for position in range(len(before), len(self.asking)):
            address = (self.asking.generation, self.asking.round, position)
            assert address not in self.used_at, "an address is used twice"
            self.used_at.add(address)
        self.proposal = None

    @precondition(lambda self: self.asking.state is State.OPEN and not self.verifier.closed)
    @rule()
    def tell(self) -> None:
        self.tell_if_up()

    def tell_if_up(self) -> None:
        if self.verifier.closed:
            return
        message = self.asking.commit_message()
        if message is not None:
            self.verifier.send(message)
            self.pump()

    @precondition(lambda self: not self.verifier.closed)
    @rule(really=SELDOM)
    def reset(self, really: bool) -> None:
        if not really:
            return
        agreed = self.verifier.agreed is not None
        for message in self.asking.reset():
            assert agreed
            self.verifier.send(message)
        self.proposal = None
        self.pump()

    @precondition(lambda self: not self.verifier.closed)
    @rule(really=SELDOM)
    def cut(self, really: bool) -> None:
        if really:
            self.disconnect()

    def disconnect(self) -> None:
        self.pair.verifier.close()
        self.verifier.close()
        self.drafter.close()
        if self.table is not None:
            self.table.close()
        self.tasks.clear()
        dropped = self.asking.disconnected()
        if dropped is not None:
            assert dropped.reason is DropReason.DISCONNECTED
            self.given_up.add((dropped.generation, dropped.round))

    @invariant()
    def a_proposal_is_in_hand_in_one_state_alone(self) -> None:
        assert (self.proposal is not None) is (self.asking.state is State.PROPOSED)

    def teardown(self) -> None:
        """The link heals; at most two rounds later there is a proposal again."""
        if not hasattr(self, "pair"):
            return
        self.pair.heal()
        for _ in range(2):
            self.now += LONGEST
            self.pump()
        for _ in range(3):
            if self.verifier.closed or self.verifier.agreed is None:
                if not self.verifier.closed:
                    self.disconnect()
                self.connect()
            if self.asking.deadline is not None:
                self.give_up()
            if self.asking.state not in BETWEEN:
                self.use(1, 0)
            if self.asking.room() < 5:
                return  # a long text: the context is full, and nothing more is asked
            self.ask(0)
            self.draft_all()
            if self.proposal is not None:
                return
        raise AssertionError("drafting did not resume")


class FaultyRoundsV1(FaultyRounds):
    """The same over the greedy wire."""

    layouts = LayoutSet.IDS_ONLY
    policies = (IDS_ONLY, replace(IDS_ONLY, depth=1), replace(IDS_ONLY, depth=5))


SETTINGS = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_t37_faulty_rounds_over_v2():
    run_state_machine_as_test(FaultyRounds, settings=SETTINGS)


def test_t37_faulty_rounds_over_v1():
    run_state_machine_as_test(FaultyRoundsV1, settings=settings(SETTINGS, max_examples=15))


@pytest.mark.parametrize(("machine", "requests"), [(FaultyRounds, 24), (FaultyRoundsV1, 12)])
def test_t37_long_requests_over_a_bad_line(machine: type[FaultyRounds], requests: int):
    """Requests of up to 50 rounds, seeds 0, 1, ..., two rounds of three with faults in their way.

    Each fault and each way to lose a proposal must have happened, and most rounds be good ones.
    """
    drops: Counter[DropReason] = Counter()
    faults: Counter[Fault] = Counter()
    emitted = 0
    for seed in range(requests):
        source = random.Random(seed)
        one = machine()
        one.begin(seed)
        for _ in range(50):
            unlucky = source.sample(list(Fault), source.choice([0, 1, 1]))
            if Fault.DISCONNECT in unlucky and source.random() < 0.7:
                unlucky = []
            one.whole_round(
                source.randrange(4),
                [(fault, source.random() < 0.5) for fault in unlucky],
                source.randrange(3),
                source.randrange(6),
                source.randrange(VOCABULARY),
            )
            faults += one.pair.happened
            one.now += source.choice([0.0, 0.1, LONGEST])
            one.pump()
            if source.random() < 0.03 and not one.verifier.closed:
                one.reset(really=True)
            if source.random() < 0.3 and one.asking.state is State.OPEN:
                one.tell_if_up()
        drops += one.asking.drops
        emitted += len(one.emitted)
        one.teardown()
    assert set(faults) == set(Fault)
    assert {DropReason.STALE, DropReason.DUPLICATE, DropReason.DISCONNECTED} <= set(drops)
    assert DropReason.MISSED_DEADLINE in drops
    assert emitted > 25 * requests
