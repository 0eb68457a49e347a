"""What answers hold is bounded over all verifiers, whatever these ask, read and leave unread."""

from __future__ import annotations

import logging
import random
from collections import Counter

import pytest

from draftwire.drafter.config import DrafterConfig
from draftwire.drafter.counters import LeaseEnd
from draftwire.drafter.memory import Answers, ReplyMemory, answer_bytes, usual_memory
from draftwire.drafter.program import DrafterProgram
from draftwire.errors import ConfigurationError
from draftwire.session.link import Link
from draftwire.session.proposal import Received
from draftwire.session.verifier_session import VerifierSession
from draftwire.verifier.hello import verifier_hello
from draftwire.wire.messages import Cancel, Complete, Message, ProposalPolicy, Reply
from draftwire.wire.registry import Layout, Outcome, Status
from testing.harness.clock import Clock
from testing.toys.models import ToyDrafter, ToyTarget, mixed

V = 2048
DENSE = ProposalPolicy(Layout.DENSE, 3, 1.0)
SPARSE = ProposalPolicy(Layout.SPARSE, 2, 1.0, support=4)
SESSIONS = 3


class Verifier:
    """One connection by hand: what is sent to it is read when the test wants that."""

    def __init__(self, program: DrafterProgram[object], sessions: int = SESSIONS) -> None:
        connection = program.connect()
        assert connection is not None
        self.connection = connection
        hello = verifier_hello(ToyTarget(mixed(V, 1), V), max_sessions=sessions)
        self.link = Link(hello, 0.0)
        self.link.start()
        self._feed()
        self.read(1 << 30)
        self.asking = [
            VerifierSession(number, number - 1, (1, 2), 5, self.link.agreed)
            for number in range(1, sessions + 1)
        ]

    def say(self, message: Message) -> None:
        self.link.send(message)
        self._feed()

    def ask(self, which: int, policy: ProposalPolicy) -> None:
        """Ask for the next round of a session, and never look at what comes."""
        asking = self.asking[which]
        self.say(asking.ask(policy, 0.0, 1.0))
        asking.give_up()
        asking.commit(0, Outcome.TARGET_ONLY, 1)

    def read(self, most: int) -> list[object]:
        """Take so many bytes of what waits; returns the messages that are whole by then."""
        data = bytearray(min(self.connection.outgoing.size, most))
        self.connection.outgoing.take(memoryview(data))
        return [event.message for event in self.link.feed(data, 0.0) if isinstance(event, Received)]

    def _feed(self) -> None:
        self.connection.feed(b"".join(self.link.outgoing()))


def program_of(most: int, clock: Clock | None = None, **config: int) -> DrafterProgram[object]:
    limits = {"max_sessions": SESSIONS, "max_slots": SESSIONS, "max_depth": 3, "max_support": 8}
    return DrafterProgram(
        ToyDrafter(mixed(V, 1), V),  # type: ignore[arg-type]
        DrafterConfig(**{**limits, **config, "max_reply_memory": most}),  # type: ignore[arg-type]
        clock=clock or Clock(),
    )


def really_held(program: DrafterProgram[object]) -> int:
    """Bytes of all answers that sessions keep or that wait to be sent, each object once."""
    found: dict[int, int] = {}
    for connection in program.connections:
        sessions = () if connection.table is None else connection.table.sessions()
        parts = [part for session in sessions for part in session.kept_answer]
        for part in (*parts, *connection.outgoing.head()):
            whole = part.obj if isinstance(part, memoryview) else part
            size = memoryview(whole).nbytes
            if size >= 1024:  # rows; heads and whole small answers are joined and copied
                found[id(whole)] = size
    return sum(found.values())


DENSE_BYTES = 3 * 4 * V


@pytest.mark.parametrize("seed", range(4))
def test_no_history_of_many_verifiers_holds_more_than_may_be(seed: int) -> None:
    """Random ones: who asks for what, reads how much, cancels, resets, leaves and comes again."""
    most, chance, clock = 9 * DENSE_BYTES + 2000, random.Random(seed), Clock()
    program = program_of(most, clock)
    verifiers = [Verifier(program) for _ in range(5)]
    peak = 0
    for _ in range(3000):
        verifier = chance.choice(verifiers)
        which, what = chance.randrange(SESSIONS), chance.random()
        if what < 0.45:
            verifier.ask(which, DENSE if chance.random() < 0.7 else SPARSE)
        elif what < 0.75:
            program.draft()
        elif what < 0.9:
            verifier.read(chance.choice([100, 10_000, 1 << 30]))
        elif what < 0.94:
            for cancel in verifier.asking[which].cancel():
                verifier.say(cancel)
            fresh = VerifierSession(which + 1, which, (1, 2), 5, verifier.link.agreed)
            fresh.generation = verifier.asking[which].generation + 1
            verifier.asking[which] = fresh
        elif what < 0.98:
            for reset in verifier.asking[which].reset():
                verifier.say(reset)
        else:
            program.disconnect(verifier.connection)
            verifiers[verifiers.index(verifier)] = Verifier(program)
        clock.now += 0.01
        peak = max(peak, really_held(program))
        assert really_held(program) <= program.memory.held <= most
        assert program.counters.declined[Status.NO_SLOT] == program.counters.short
    assert peak >= 8 * DENSE_BYTES
    assert program.counters.short > 50 and program.counters.proposals > 200
    for verifier in verifiers:
        program.disconnect(verifier.connection)
    assert program.memory.held == 0


def test_one_that_leaves_much_unread_takes_nothing_from_who_is_served() -> None:
    """A round at a time, one verifier holds what one answer holds, for ever."""
    program = program_of(3 * DENSE_BYTES + 2000)
    lazy, served = Verifier(program), Verifier(program)
    for which in range(2):
        lazy.ask(which, DENSE)
    program.draft()
    for _ in range(50):
        served.ask(0, DENSE)
        program.draft()
        kinds = Counter(type(message) for message in served.read(1 << 30))
        assert kinds == {Reply: 1, Complete: 1}
        lazy.ask(2, DENSE)
    assert program.counters.declined[Status.NO_SLOT] == program.counters.short == 50


def test_what_is_declined_was_never_drawn_and_says_so() -> None:
    engine_calls = []
    program = program_of(DENSE_BYTES + 1000)
    program.engine.forward, forward = (  # type: ignore[method-assign]
        lambda batch: engine_calls.append(len(batch)) or forward(batch),
        program.engine.forward,
    )
    first, second = Verifier(program), Verifier(program)
    first.ask(0, DENSE)
    second.ask(0, DENSE)
    (said,) = second.read(1 << 30)
    assert isinstance(said, Complete) and said.status is Status.NO_SLOT
    program.draft()
    assert engine_calls == [1, 1, 1]  # the three tokens of the other one
    second.ask(0, SPARSE)  # a small answer has room
    program.draft()
    assert Reply in {type(message) for message in second.read(1 << 30)}


def test_an_answer_kept_for_nobody_makes_way_in_time() -> None:
    clock = Clock()
    program = program_of(DENSE_BYTES + 1000, clock)
    gone, comes = Verifier(program), Verifier(program)
    gone.ask(0, DENSE)
    program.draft()
    gone.read(1 << 30)
    comes.ask(0, DENSE)
    assert program.counters.short == 1
    clock.now += program.config.peer.evict_idle_after
    comes.ask(0, DENSE)
    program.draft()
    assert Reply in {type(message) for message in comes.read(1 << 30)}
    assert program.counters.short == 1
    assert program.counters.ended_sessions[LeaseEnd.EVICTED] == 1


@pytest.mark.parametrize("unread", [False, True])
def test_nobody_makes_way_where_that_is_not_enough(unread: bool) -> None:
    """Those that hold too little, or only what must be sent first, keep their model's state."""
    clock = Clock()
    program = program_of(2 * DENSE_BYTES + 4000, clock)
    idle, used, comes = Verifier(program), Verifier(program), Verifier(program)
    idle.ask(0, DENSE if unread else SPARSE)
    program.draft()
    idle.read(0 if unread else 1 << 30)
    clock.now += program.config.peer.evict_idle_after
    for which in range(1 if unread else 2):
        used.ask(which, DENSE)
    program.draft()
    used.read(1 << 30)
    sessions = program.open_sessions
    comes.ask(0, DENSE)
    assert program.counters.short == 1
    assert program.counters.ended_sessions[LeaseEnd.EVICTED] == 0
    assert program.open_sessions == sessions
    if unread:
        idle.read(1 << 30)  # from now on its end gives back what it holds
        comes.ask(0, DENSE)
        assert program.counters.short == 1
        assert program.counters.ended_sessions[LeaseEnd.EVICTED] == 1


def test_only_as_many_make_way_as_must() -> None:
    """The one that has been silent for longest gives too little, and one more is enough."""
    clock = Clock()
    program = program_of(2 * DENSE_BYTES + 1000, clock)
    idle, comes = Verifier(program), Verifier(program)
    for which, policy in enumerate((SPARSE, DENSE, SPARSE)):
        idle.ask(which, policy)
        program.draft()
        clock.now += 0.1
    idle.read(1 << 30)
    clock.now += program.config.peer.evict_idle_after
    comes.ask(0, DENSE)
    comes.ask(1, DENSE)
    assert program.counters.short == 0
    assert program.counters.ended_sessions[LeaseEnd.EVICTED] == 2


def test_a_cancelled_session_holds_nothing_once_its_answer_has_left() -> None:
    program = program_of(2 * DENSE_BYTES + 1000)
    verifier = Verifier(program)
    verifier.ask(0, DENSE)
    program.draft()
    verifier.say(Cancel(1, 1))
    assert program.memory.held > DENSE_BYTES
    verifier.read(1 << 30)
    verifier.connection.settle()
    assert program.memory.held == 0


@pytest.mark.parametrize("drawn", [False, True])
def test_a_reset_session_holds_nothing_once_its_answer_has_left(drawn: bool) -> None:
    program = program_of(2 * DENSE_BYTES + 1000)
    verifier = Verifier(program)
    verifier.ask(0, DENSE)
    if drawn:
        program.draft()
        verifier.read(1 << 30)
    for reset in verifier.asking[0].reset():
        verifier.say(reset)
    assert program.memory.held == 0


def test_the_books_are_right_whatever_leaves_first() -> None:
    memory = ReplyMemory(10)
    answers = Answers(memory)
    assert answers.take(1, 4) and answers.take(2, 6) and not answers.take(3, 1)
    answers.over(2, 50)  # queued behind what ends at 90
    answers.over(1, 90)
    answers.sent(49)
    assert memory.held == 10
    answers.sent(50)
    assert memory.held == 4
    answers.over(1, 90)
    answers.close()
    answers.close()
    assert memory.held == 0


def test_the_start_says_what_is_held_and_refuses_what_holds_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "draftwire")
    program_of(1 << 30).warm_up()
    program_of(30_000).warm_up()
    fits, over = [record for record in caplog.records if "answers hold" in record.getMessage()]
    assert fits.levelno == logging.INFO and "64 verifiers x 3 sessions" in fits.getMessage()
    assert over.levelno == logging.WARNING and "--max-reply-mib" in over.getMessage()
    with pytest.raises(ConfigurationError, match="raise max_reply_memory"):
        program_of(DENSE_BYTES)
    with pytest.raises(ConfigurationError, match="max_reply_memory"):
        program_of(-1)
    assert program_of(0).memory.most == usual_memory() > 1 << 24


def test_an_answer_is_as_large_as_was_reserved() -> None:
    program = program_of(1 << 30)
    verifier = Verifier(program)
    agreed = verifier.link.agreed
    assert agreed is not None
    for policy in (DENSE, SPARSE):
        verifier.ask(0, policy)
        program.draft()
        assert verifier.connection.outgoing.size == answer_bytes(policy, agreed)
        verifier.read(1 << 30)
