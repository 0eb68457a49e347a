"""One cell of the matrix: a drafter, a verifier, and one fault in one state of a session.

The same scene is played (:mod:`testing.faults.play`) three ways: seeded without the fault, seeded
with it, and, over a pair of models that is small enough, for every word that any draw can read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from draftwire.drafter.program import DrafterConfig
from draftwire.drafter.propose import ProposalSource
from draftwire.exact.words import WordSource
from draftwire.session.session_states import State
from draftwire.telemetry.log_handler import QueuedHandler
from draftwire.verifier.breaker import Breaker, Choice, Paused, RequestBreaker
from draftwire.verifier.client import ClientRequest, DraftClient
from draftwire.verifier.hello import verifier_hello
from draftwire.verifier.report import Report
from draftwire.wire.registry import LayoutSet, MessageType, WireVersion
from testing.faults.frames import kind_of
from testing.faults.requests import PROMPT, Size
from testing.faults.world import Arrivals, Channel, Line, Way, World
from testing.toys.models import ToyDrafter, ToyRequest, ToyTarget

DEADLINE: Final = 1.0
CONNECT: Final = 1.0
PASS: Final = 0.2  # seconds of a forward pass of the target
KEY: Final = b"k" * 32


class Moment(Enum):
    """The states in which a fault strikes; the value says what is under way then."""

    PROVING = "key being proved"
    GREETING = "before HELLO"
    GREETED = "HELLO answered"
    AGREED = "agreed and idle"
    OPENING = "session opening"
    ASKED = "round asked"
    REPLYING = "reply arriving"
    REPLIED = "reply there, not its end"
    PROPOSED = "proposal ready"
    COMMITTED = "committed"
    TARGET_ONLY = "target-only"
    ENDING = "cancelled"


UNDER_WAY: Final = {
    Moment.PROVING: (Way.BACK, MessageType.CHALLENGE),
    Moment.GREETING: (Way.THERE, MessageType.HELLO),
    Moment.GREETED: (Way.BACK, MessageType.HELLO),
    Moment.AGREED: (Way.BACK, MessageType.PONG),
    Moment.OPENING: (Way.THERE, MessageType.STEP),
    Moment.ASKED: (Way.THERE, MessageType.STEP),
    Moment.REPLYING: (Way.BACK, MessageType.REPLY),
    Moment.REPLIED: (Way.BACK, MessageType.COMPLETE),
    Moment.ENDING: (Way.THERE, MessageType.CANCEL),
}
"""The frame that a fault of a frame hits; in the other states none is under way."""

SESSION_STATE: Final = {
    Moment.OPENING: State.IDLE,
    Moment.ASKED: State.ASKED,
    Moment.REPLYING: State.ASKED,
    Moment.REPLIED: State.REPLIED,
    Moment.PROPOSED: State.PROPOSED,
    Moment.COMMITTED: State.OPEN,
    Moment.TARGET_ONLY: State.TARGET_ONLY,
    Moment.ENDING: State.ENDED,
}
"""The state of the session's table that each moment is; the others are states of the link."""

WordsOf = Callable[[int], WordSource]

BETWEEN: Final = frozenset(Moment) - frozenset(UNDER_WAY)


Places = dict[int, tuple[int, int | None]]
"""By seed, the tokens that a text had when it was struck, and when it was drafted again."""


class Strike(Protocol):
    """What a fault does when its moment has come; ``frame``: what is under way, None = nothing."""

    def __call__(self, scene: Scene, frame: bytes | None) -> Arrivals:
        """Return what arrives in the frame's place."""


@dataclass(frozen=True)
class Aimed:
    """A strike at one of several requests that are asked together; which: from 1."""

    strike: Strike
    which: int

    def __call__(self, scene: Scene, frame: bytes | None) -> Arrivals:
        """Strike."""
        return self.strike(scene, frame)


@dataclass
class Told:
    """What a run has come to."""

    texts: list[tuple[int, ...]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    misses: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    strays: int = 0
    connections: int = 0
    generations: list[int] = field(default_factory=list)
    resumed: bool = False
    longest: float = 0.0
    struck: bool = False
    seeds: list[int] = field(default_factory=list)  # of the texts
    struck_at: int = 0  # tokens that the request had when it was struck
    resumed_at: int = 0  # and that its text had when it was first drafted again
    jumped: float = 0.0  # seconds that the clock was set ahead
    apart: list[Counter[str]] = field(default_factory=list)  # misses of each that runs together
    places: Places = field(default_factory=dict)


@dataclass
class Watched:
    """A request that is being run. drafted_before: its drafted rounds up to the struck one."""

    seed: int
    report: Report
    tokens: list[int] = field(default_factory=list)
    drafted_before: int = 0

    @property
    def drafted_since(self) -> bool:
        """Whether it was drafted again after it was struck."""
        return self.report.drafted_rounds > self.drafted_before


class _Client(DraftClient):
    """Remembers the requests that were opened."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """As a DraftClient."""
        super().__init__(*arguments, **named)
        self.opened: list[ClientRequest] = []

    def open(self, prompt: Sequence[int], proposal_key: int) -> ClientRequest:
        """Begin drafting for one request."""
        request = super().open(prompt, proposal_key)
        self.opened.append(request)
        return request


class _Target(ToyTarget):
    """A pass takes time, and during it a proposal is ready, or the round is target-only."""

    scene: Scene

    def score(
        self, context: ToyRequest, committed: Sequence[int], drafts: Sequence[int]
    ) -> NDArray[np.float64]:
        """Return the weights of p."""
        self.scene.between(Moment.PROPOSED if drafts else Moment.TARGET_ONLY)
        self.scene.world.clock.now += PASS
        return super().score(context, committed, drafts)


class _Leaving(Breaker):
    """Leaves out the round that is to be target-only, whatever anything costs."""

    def __init__(self, round: int) -> None:
        """round: which."""
        super().__init__()
        self._left = round

    def admits(self, requests: Sequence[RequestBreaker], size: int | None = None) -> list[Choice]:
        """Decide by counting alone."""
        self._left -= 1
        return [Choice.DRAFT if self._left else Choice.SAMPLE] * len(requests)

    def finished(self, *arguments: Any, **named: Any) -> list[Paused]:
        """Learn nothing."""
        return []


@dataclass
class Scene:
    """strike: None = nothing happens. after: what happens to every later frame. rounds: STEPs.

    together: requests that are asked in one go; of them the first is struck, or who is aimed at.
    """

    moment: Moment
    version: WireVersion
    size: Size
    strike: Strike | None
    words: WordsOf | None = None  # by a request's seed
    again: bool = False  # whether another request follows, over the same client
    pinned: bool = False  # whether the first request is given up once it was struck
    together: int = 1
    rounds: int = 0
    seen: Counter[MessageType | Moment] = field(default_factory=Counter)
    held: dict[Way, bytes] = field(default_factory=dict)
    last: dict[MessageType, bytes] = field(default_factory=dict)
    after: Callable[[bytes], Arrivals] | None = None
    told: Told = field(default_factory=Told)
    way: Way = Way.BACK
    exit: ExitStack = field(default_factory=ExitStack)
    must_lose: QueuedHandler | None = None
    orphaned: bool = False  # whether the verifier is gone
    watched: Watched | None = None  # the request that is being run

    def __post_init__(self) -> None:
        """Start the drafter and make a client."""
        v1 = self.version is WireVersion.V1
        config = DrafterConfig(
            version=self.version,
            layouts=LayoutSet.IDS_ONLY if v1 else LayoutSet.DENSE | LayoutSet.SPARSE,
        )
        key = KEY if self.moment is Moment.PROVING else b""
        size = self.size
        self.world = World(lambda: ToyDrafter(size.q, size.vocab_size), config, key=key)
        self.world.passing = self.passing
        self.target = _Target(size.p, size.vocab_size)
        self.target.scene = self
        self.key = key
        self.client = self.new_client()

    def new_client(self) -> _Client:
        """Return a verifier of its own."""
        leaves = self.moment is Moment.TARGET_ONLY
        return _Client(
            self._dial,
            verifier_hello(self.target, version=self.version),
            deadline=DEADLINE,
            connect_timeout=CONNECT,
            clock=self.world.clock,
            key=self.key,
            entropy=self.world.entropy,
            breaker=_Leaving(self.size.round + 1) if leaves else None,
        )

    @property
    def line(self) -> Line | None:
        """The connection that was made last."""
        return None if self._channel is None else self._channel.line

    _channel: Channel | None = None

    def _dial(self, until: float) -> Channel:
        self._channel = self.world.dial(until)
        self.held.clear()
        return self._channel

    def use_words(self, of_request: WordsOf, of_proposals: ProposalSource) -> None:
        """Draw with these words from now on, on both sides; begin with a fresh drafter."""
        self.words = of_request
        self.world.source = of_proposals
        self.world.start()

    # what happens to frames

    def passing(self, line: Line, way: Way, frame: bytes) -> Arrivals:
        """Let a frame pass, or strike."""
        kind = kind_of(frame)
        self.rounds += kind is MessageType.STEP
        self.seen[kind] += 1
        if kind in (MessageType.REPLY, MessageType.COMPLETE):
            self.last[kind] = frame
        if self._due(way, kind):
            return self._strike(way, frame)
        arrivals = [(0.0, frame)] if self.after is None else self.after(frame)
        if way in self.held:  # it is overtaken by this one
            arrivals.append((0.0, self.held.pop(way)))
        return arrivals

    def between(self, moment: Moment) -> None:
        """Strike where nothing is under way, if this is the moment."""
        if self.moment is not moment or self.told.struck or self.rounds != self._struck_round:
            return
        self.seen[moment] += 1
        if self.seen[moment] != self._which:
            return
        arrivals = self._strike(Way.BACK, None)
        line = self.line
        if line is not None and not line.ended and not line.dead:
            for seconds, piece in arrivals:
                line.put(Way.BACK, self.world.clock.now + seconds, piece)

    def _strike(self, way: Way, frame: bytes | None) -> Arrivals:
        self.told.struck, self.way = True, way
        if self.watched is not None:
            self.told.struck_at = len(self.watched.tokens)
        if self.strike is None:
            return [] if frame is None else [(0.0, frame)]
        return self.strike(self, frame)

    def _due(self, way: Way, kind: MessageType) -> bool:
        if self.told.struck or UNDER_WAY.get(self.moment) != (way, kind):
            return False
        if self.together > 1:
            before = 0 if self.moment is Moment.OPENING else self._struck_round - self.together
            return self.seen[kind] == before + self._which
        if self.moment in (Moment.ASKED, Moment.REPLYING, Moment.REPLIED):
            return self.rounds == self.size.round
        return True

    @property
    def _which(self) -> int:
        return self.strike.which if isinstance(self.strike, Aimed) else 1

    @property
    def _struck_round(self) -> int:
        """STEPs that have been asked when the struck round is."""
        return self.size.round * self.together

    def orphan(self) -> None:
        """This verifier is gone without a word; another one takes its place."""
        self.orphaned = True

    def neighbour(self) -> None:
        """Another verifier begins a request at the same drafter, and is gone amid it."""
        passing, self.world.passing = self.world.passing, lambda line, way, frame: [(0.0, frame)]
        channel, rounds = self._channel, self.rounds
        client = self.new_client()
        request = client.open(PROMPT, 77)
        if not self.key:
            request.propose(self.size.policy)
        other = self.line
        if other is not None and other is not (None if channel is None else channel.line):
            self.world.hang_up(other)
        self._channel, self.rounds = channel, rounds
        self.world.passing = passing
