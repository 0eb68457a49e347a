"""Both roles without a socket: a drafter program and a verifier's session, fed in any split.

Unlike the harness, each side runs alone against recorded bytes, and with a table for a model: what
it did has to be comparable between splits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from draftwire.conformance.transcripts import TableContext, TableEngine, converse
from draftwire.conformance.wire import hello_of
from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.errors import ProtocolError, RemoteError
from draftwire.session.link import AgreedEvent, Closed, Event, Link
from draftwire.session.proposal import Received
from draftwire.session.session_states import State
from draftwire.session.verifier_session import Dropped, Proposal, VerifierSession
from draftwire.wire.checks import require_policy
from draftwire.wire.messages import Hello, ProposalPolicy
from draftwire.wire.registry import Layout, Outcome, WireVersion
from spec.generators.vectors import peers
from spec.generators.vectors.drafters import NAN_LOGITS
from spec.generators.vectors.form import binary32
from spec.oracle import keys
from spec.oracle.frames import write_fields
from testing.fuzz.pieces import Keyed

SECRET = bytes(range(7, 71))
VERIFIER_NONCE, DRAFTER_NONCE = b"v" * 32, b"d" * 32
PROMPT = (4, 0, 5)
LATEST = 100.0  # seconds: deadlines lie after every `now`, which is 0

Split = Callable[[bytes], Sequence[bytes]]


@dataclass(frozen=True, slots=True)
class Setup:
    """What both machines are configured for."""

    version: int
    keyed: bool
    broken_model: bool = False

    @property
    def secret(self) -> bytes:
        """The key, or none."""
        return SECRET if self.keyed else b""

    def keyed_as(self, role: str) -> Keyed | None:
        """What the frames that a role sends are sealed with."""
        if not self.keyed:
            return None
        if role == "verifier":
            return Keyed(SECRET, keys.VERIFIER_FRAMES, DRAFTER_NONCE)
        return Keyed(SECRET, keys.DRAFTER_FRAMES, VERIFIER_NONCE)

    def hello(self, role: str) -> Hello:
        """The HELLO of a role."""
        fields = {
            ("verifier", 2): peers.VERIFIER_HELLO,
            ("drafter", 2): peers.DRAFTER_HELLO,
            ("verifier", 1): peers.VERIFIER_HELLO_V1,
            ("drafter", 1): peers.DRAFTER_HELLO_V1,
        }[role, self.version]
        return hello_of(write_fields("HELLO", fields).hex(), self.version)


@dataclass(frozen=True)
class Run:
    """What a machine did with its turns: bytes and events of each, and how it ended."""

    sent: list[bytes]
    events: list[Sequence[object]]
    closed: bool
    error: tuple[str, str | None, bool] | None  # code, field, whether it was the peer's


def shown_error(error: ProtocolError | None) -> tuple[str, str | None, bool] | None:
    """An error in a form that can be compared."""
    if error is None:
        return None
    return error.code.name, error.field, isinstance(error, RemoteError)


# A drafter ---------------------------------------------------------------------------------------


class CountingEngine(TableEngine):
    """A table that knows how many contexts are open."""

    def __init__(self, hello: Hello, broken: bool) -> None:
        table = NAN_LOGITS if broken else peers.LOGITS
        super().__init__(hello, {context: binary32(row) for context, row in table.items()})
        self.held = self.most = 0

    def open(self) -> TableContext:
        """Return an empty context."""
        self.held += 1
        self.most = max(self.most, self.held)
        return super().open()

    def close(self, context: TableContext) -> None:
        """One is closed."""
        self.held -= 1


class Drafter:
    """A drafter program with one connection; drafts between two turns."""

    def __init__(self, setup: Setup) -> None:
        hello = setup.hello("drafter")
        self.engine = CountingEngine(hello, setup.broken_model)
        self.program = DrafterProgram(
            self.engine,
            DrafterConfig(
                version=WireVersion(setup.version),
                layouts=hello.layouts,
                max_sessions=hello.max_sessions,
                max_slots=hello.max_slots,
                max_depth=hello.max_depth,
                max_support=max(hello.max_support, 1),
            ),
            clock=lambda: 0.0,
            key=setup.secret,
            entropy=lambda count: DRAFTER_NONCE,
        )
        connection = self.program.connect()
        if connection is None:
            raise RuntimeError("the first connection is refused")
        self.connection = connection
        self.limit = hello.max_sessions

    def turn(self, pieces: Sequence[bytes]) -> bytes:
        """Bytes come in, then everything that was asked is drafted; returns what is sent."""
        for piece in pieces:
            self.connection.feed(piece)
        return converse(self.program, self.connection, b"")

    def end(self) -> None:
        """The stream ends; raises AssertionError if anything of it is still held."""
        if self.engine.most > self.limit:
            raise AssertionError(f"{self.engine.most} contexts for {self.limit} sessions")
        self.program.disconnect(self.connection)
        if self.engine.held or self.program.connections or self.program.waiting:
            raise AssertionError(f"{self.engine.held} contexts are left")


def run_drafter(setup: Setup, turns: Sequence[bytes], split: Split) -> Run:
    """Feed a drafter."""
    drafter = Drafter(setup)
    sent = [drafter.turn(split(turn)) for turn in turns]
    closing = drafter.connection.closing
    error = drafter.connection.error
    drafter.end()
    return Run(sent, [], closing, shown_error(error))


# A verifier --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Action:
    """What a verifier does of its own before a turn."""

    do: str
    policy: ProposalPolicy | None = None


@dataclass
class Verifier:
    """A verifier's link and one session of it, following a script as far as its states let it."""

    setup: Setup
    events: list[object] = field(default_factory=list)
    session: VerifierSession | None = None
    proposal: Proposal | None = None
    closed: Closed | None = None

    def __post_init__(self) -> None:
        """Begin a connection."""
        nonce = VERIFIER_NONCE if self.setup.keyed else b""
        self.link = Link(self.setup.hello("verifier"), 0.0, self.setup.secret, nonce)
        self.link.start()

    def act(self, action: Action) -> None:
        """Do one thing of the script, unless there is nothing to do it to."""
        session = self.session
        if session is None or self.link.closed or session.state is State.ENDED:
            return
        if action.do == "ping":
            self.link.ping(77, 0.0)
        elif action.do == "retry":
            if session.deadline is not None:
                self.link.send(session.retry())
        elif action.do == "reset":
            self.proposal = None
            for reset in session.reset():
                self.link.send(reset)
        else:
            self.settle(session)
            self.begin(session, action)

    def begin(self, session: VerifierSession, action: Action) -> None:
        """Begin the next round, or end the session."""
        if self.link.agreed is None:
            raise AssertionError("a round without an agreement")
        if action.do == "finish":
            for message in session.finish():
                self.link.send(message)
        elif action.policy is None or session.room() < action.policy.depth:
            session.skip()
        else:
            try:
                require_policy(self.link.agreed, action.policy)
            except ProtocolError as error:  # P7: a verifier refuses what cannot carry its own
                self.take(self.link.refuse(error))
                return
            self.link.send(session.ask(action.policy, 0.0, LATEST))

    def settle(self, session: VerifierSession) -> None:
        """Commit the round before, by a rule that knows nothing of a target."""
        if session.deadline is not None:
            session.give_up()
        if self.proposal is not None:
            tokens, self.proposal = self.proposal.tokens, None
            if session.round % 3:
                session.commit(len(tokens), Outcome.BONUS, session.round % 6)
            else:
                session.commit(0, Outcome.CORRECTION, (tokens[0] + 1) % 6)
        elif session.state is State.TARGET_ONLY:
            session.commit(0, Outcome.TARGET_ONLY, session.round % 6)

    def turn(self, pieces: Sequence[bytes]) -> bytes:
        """Bytes come in; returns what is sent."""
        for piece in pieces:
            if self.link.closed:
                break
            for event in self.link.feed(piece, 0.0):
                self.take(event)
        return b"".join(self.link.outgoing())

    def take(self, event: Event) -> None:
        """Note what has happened, and keep a whole proposal."""
        if isinstance(event, AgreedEvent):
            self.events.append(event.agreed)
            self.session = VerifierSession(7, 0, PROMPT, KEY, event.agreed)
        elif isinstance(event, Closed):
            self.closed = event
        elif isinstance(event, Received):
            self.receive(event)
        else:
            self.events.append(event)

    def receive(self, event: Received) -> None:
        """A message for the session."""
        if self.session is None:
            raise AssertionError("a message for a session came before there was one")
        result = self.session.take(event, 0.0)
        if isinstance(result, Proposal):
            self.proposal = result
            rows = [row.exact() for row in result.rows]
            self.events.append((result.tokens, rows, result.round, result.first_position))
        else:
            if isinstance(result, Dropped):
                self.proposal = None
            self.events.append(result)

    def end(self) -> None:
        """The stream ends."""
        if not self.link.closed:
            self.closed = self.link.finished()


KEY = peers.step_of(list(PROMPT))["proposal_key"]


def run_verifier(
    setup: Setup, turns: Sequence[bytes], split: Split, script: Sequence[Action]
) -> Run:
    """Feed a verifier: before each turn it does what its script says."""
    verifier = Verifier(setup)
    sent: list[bytes] = []
    events: list[Sequence[object]] = []
    for number, turn in enumerate(turns):
        if number < len(script):
            verifier.act(script[number])
        sent.append(verifier.turn(split(turn)))
        events.append(verifier.events)
        verifier.events = []
    verifier.end()
    sent.append(b"".join(verifier.link.outgoing()))
    if verifier.session is not None:
        events.append(sorted(f"{reason.name} {n}" for reason, n in verifier.session.drops.items()))
    closed = verifier.closed
    error = None if closed is None else closed.error
    return Run(sent, events, verifier.link.closed, shown_error(error))


# Conversations -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Conversation:
    """What was said in an undisturbed conversation, turn by turn, both ways."""

    setup: Setup
    script: tuple[Action, ...]
    to_drafter: list[bytes]
    to_verifier: list[bytes]


def record(setup: Setup, script: Sequence[Action]) -> Conversation:
    """Let both machines talk."""
    verifier, drafter = Verifier(setup), Drafter(setup)
    there: list[bytes] = []
    back: list[bytes] = []
    for action in script:
        verifier.act(action)
        data = b"".join(verifier.link.outgoing())
        turn_there, turn_back = b"", b""
        while data:
            turn_there += data
            answer = drafter.turn([data])
            turn_back += answer
            data = verifier.turn([answer])
        there.append(turn_there)
        back.append(turn_back)
    return Conversation(setup, tuple(script), there, back)


def conversations() -> list[Conversation]:
    """Both versions with and without a key, every layout, every message."""
    found = []
    for keyed in (False, True):
        for script in SCRIPTS_V2:
            found.append(record(Setup(2, keyed), script))
        found.append(record(Setup(2, keyed, broken_model=True), SCRIPTS_V2[0]))
        found.append(record(Setup(1, keyed), SCRIPT_V1))
    return found


def asks(*policies: ProposalPolicy) -> list[Action]:
    """A round for each policy."""
    return [Action("ask", policy) for policy in policies]


SPARSE = ProposalPolicy(Layout.SPARSE, 3, 0.75, support=4)
GREEDY = ProposalPolicy(Layout.SPARSE, 2, 0.0, support=3)
DENSE = ProposalPolicy(Layout.DENSE, 3, 0.75)
SHORT = ProposalPolicy(Layout.DENSE, 1, 1.5, top_k=4)
IDS = ProposalPolicy(Layout.IDS_ONLY, 3, 0.0)
START, FINISH, SKIP, RETRY = Action("start"), Action("finish"), Action("skip"), Action("retry")
SCRIPTS_V2: list[list[Action]] = [
    [START, *asks(SPARSE, SPARSE), RETRY, *asks(SPARSE), FINISH],
    [START, *asks(DENSE), Action("ping"), *asks(SHORT), SKIP, *asks(DENSE)],
    [START, *asks(GREEDY), Action("reset"), *asks(SPARSE, DENSE), FINISH],
]
SCRIPT_V1: list[Action] = [START, *asks(IDS, IDS), SKIP, *asks(IDS), Action("reset"), *asks(IDS)]
