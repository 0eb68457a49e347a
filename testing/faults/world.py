"""A drafter's machine, a line to it and time, all of them made up: nothing waits, all is repeated.

The client, the link, the session, the program and the arithmetic are the real ones. Seconds pass
when a call waits for them. Every frame passes :attr:`World.passing`, which may do anything to it.

A line is no :class:`testing.harness.memory.MemoryPair`: it carries whole frames, so that a fault
hits the frame of a moment, and its drafter can restart, freeze, leave or die under it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Any, Final

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.drafter.propose import ProposalSource
from draftwire.errors import TransportError
from draftwire.exact.words import ProposalWords
from draftwire.transport.channel import Part
from draftwire.wire.registry import MessageType
from testing.faults.frames import kind_of, size_of
from testing.harness.clock import Clock
from testing.toys.models import ToyDrafter

LATENCY: Final = 0.001
MOST_WAITS: Final = 20_000
"""Waits of one run; more is a hang."""

Arrivals = list[tuple[float, bytes]]
"""What arrives in place of a frame: bytes, and by how many seconds late."""


class Way(Enum):
    """Where a frame goes."""

    THERE = "to the drafter"
    BACK = "to the verifier"


class HangError(Exception):
    """Something waits without an end."""


@dataclass
class Line:
    """One connection, both ways. Bytes keep their order: what is late delays what follows.

    ended: no more is sent, what is under way still arrives. dead: all that is sent vanishes without
    a sign. stuck: the drafter takes no more bytes. frozen: until when nothing moves there.
    """

    connection: Any
    ended: bool = False
    dead: bool = False
    stuck: bool = False
    frozen: float = 0.0
    under_way: dict[Way, deque[tuple[float, bytes]]] = field(
        default_factory=lambda: {way: deque() for way in Way}
    )
    sealed: dict[Way, bool] = field(default_factory=lambda: dict.fromkeys(Way, False))

    def put(self, way: Way, due: float, data: bytes) -> None:
        """Let bytes arrive at a time, and not before what is ahead of them."""
        queue = self.under_way[way]
        queue.append((max(due, queue[-1][0] if queue else 0.0), data))

    def take(self, way: Way, now: float) -> bytes | None:
        """Return bytes that have arrived, or None."""
        queue = self.under_way[way]
        return queue.popleft()[1] if queue and queue[0][0] <= now else None

    def kill(self) -> None:
        """End it at once: what is under way never arrives."""
        self.ended = True
        for queue in self.under_way.values():
            queue.clear()


Passing = Callable[[Line, Way, bytes], Arrivals]


class World:
    """One drafter's machine and the lines to it.

    engine: makes the drafter's model anew, as a restart does. source: of proposals' words.
    """

    def __init__(
        self,
        engine: Callable[[], ToyDrafter],
        config: DrafterConfig,
        *,
        source: ProposalSource = ProposalWords,
        key: bytes = b"",
    ) -> None:
        """Start the drafter."""
        self.clock = Clock()
        self.engine = engine
        self.config = config
        self.key = key
        self.passing: Passing = lambda line, way, frame: [(0.0, frame)]
        self.away_until = 0.0
        self.frozen_until = 0.0
        self.lines: list[Line] = []
        self.waits = 0
        self.source = source
        self._nonces = count(1)
        self.start()

    def start(self) -> None:
        """Start the drafter's program with nothing in it."""
        self.model = self.engine()
        self.program: DrafterProgram[Any] = DrafterProgram(
            self.model,
            self.config,
            source=self.source,
            clock=self.clock,
            key=self.key,
            entropy=self.entropy,
        )

    def restart(self, away: float = 0.0) -> None:
        """Kill the drafter, as kill -9 does; another is there after so many seconds."""
        for line in self.lines:
            line.kill()
        self.lines.clear()
        self.away_until = self.clock.now + away
        self.start()

    def leave(self) -> None:
        """The drafter says goodbye, as it does after SIGTERM, and another one starts."""
        for line in self.lines:
            line.connection.leave()
            self._speak(line)
            line.ended = True
        self.lines.clear()
        self.start()

    def freeze(self, seconds: float) -> None:
        """Stop the drafter where it stands, as SIGSTOP does, for some seconds."""
        self.frozen_until = self.clock.now + seconds
        for line in self.lines:
            line.frozen = self.frozen_until

    def entropy(self, size: int) -> bytes:
        """Return bytes that are never returned again."""
        return next(self._nonces).to_bytes(size, "little")

    def dial(self, until: float) -> Channel:
        """Connect, as a verifier does."""
        if self.clock.now < self.away_until:
            raise TransportError("connection refused")
        connection = self.program.connect()
        if connection is None:
            raise TransportError("the drafter takes no more connections")
        line = Line(connection, frozen=self.frozen_until)
        self.lines.append(line)
        return Channel(self, line)

    def serve(self, line: Line) -> None:
        """Let the drafter read what has arrived, draft and answer."""
        if self.clock.now < line.frozen or line not in self.lines:
            return
        while (data := line.take(Way.THERE, self.clock.now)) is not None:
            if line.stuck:
                continue
            line.connection.feed(data)
        while self.program.waiting:
            self.program.draft()
        self._speak(line)
        if line.connection.closing:
            self.hang_up(line)

    def hang_up(self, line: Line) -> None:
        """The line ends; the drafter frees what it held for it."""
        line.ended = True
        if line in self.lines:
            self.lines.remove(line)
        self.program.disconnect(line.connection)

    def pass_on(self, line: Line, way: Way, data: bytes) -> None:
        """Let whole frames on their way, each past whatever happens to it."""
        while data:
            size = size_of(data, sealed=line.sealed[way])
            frame, data = data[:size], data[size:]
            if line.dead or line.ended:
                continue
            arrivals = self.passing(line, way, frame)
            if kind_of(frame) is MessageType.PROOF:
                line.sealed[way] = True
            if line.dead or line.ended:
                continue
            for seconds, piece in arrivals:
                line.put(way, self.clock.now + LATENCY + seconds, piece)

    def _speak(self, line: Line) -> None:
        outgoing = line.connection.outgoing
        if outgoing:
            self.pass_on(line, Way.BACK, outgoing.drain())


class Channel:
    """The verifier's end of a line; see :class:`draftwire.transport.channel.Channel`."""

    def __init__(self, world: World, line: Line) -> None:
        """Made by :meth:`World.dial`."""
        self._world = world
        self.line = line

    def send(self, parts: Sequence[Part], deadline: float) -> None:
        """Send whole frames. To a peer that has gone they go nowhere, as with TCP."""
        self._world.waits += 1
        if self.line.stuck:
            self._wait_until(deadline)
            raise TimeoutError("the drafter takes no bytes")
        if not self.line.ended:
            self._world.pass_on(self.line, Way.THERE, b"".join(bytes(part) for part in parts))

    def receive_into(self, buffer: memoryview, deadline: float) -> int:
        """Wait for bytes, no longer than until the deadline."""
        world, line = self._world, self.line
        while True:
            world.waits += 1
            if world.waits > MOST_WAITS:
                raise HangError("more waits than any run needs")
            if world.clock.now >= deadline:  # as TcpChannel: before what is there
                raise TimeoutError("the deadline has passed")
            world.serve(line)
            now = world.clock.now
            data = line.take(Way.BACK, now)
            if data is not None:
                if len(data) > len(buffer):
                    line.under_way[Way.BACK].appendleft((now, data[len(buffer) :]))
                    data = data[: len(buffer)]
                buffer[: len(data)] = data
                return len(data)
            if line.ended and not line.under_way[Way.BACK]:
                raise ConnectionResetError("the drafter has closed the connection")
            self._wait_until(min(deadline, self._next_event()))

    def close(self) -> None:
        """End the connection: the drafter finds out, unless the line is dead."""
        if not self.line.ended and not self.line.dead:
            self._world.serve(self.line)
            self._world.hang_up(self.line)
        self.line.ended = True

    def _next_event(self) -> float:
        line, now = self.line, self._world.clock.now
        times = [queue[0][0] for queue in line.under_way.values() if queue]
        times += [line.frozen] if line.frozen > now else []
        later = [time for time in times if time > now]
        return min(later, default=float("inf"))

    def _wait_until(self, time: float) -> None:
        self._world.clock.now = max(self._world.clock.now, time)
