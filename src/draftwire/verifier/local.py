"""A drafter in this very process, behind the same messages: for comparison, and for tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from draftwire.errors import TransportError
from draftwire.transport.channel import Channel, Part
from draftwire.transport.queue import OutQueue, size_of
from draftwire.verifier.breaker import Breaker
from draftwire.verifier.client import DraftClient
from draftwire.verifier.engine import TargetEngine
from draftwire.verifier.hello import verifier_hello
from draftwire.wire.registry import Adaptation, WireVersion

_NO_DEADLINE = 1e9


class ProgramConnection(Protocol):
    """What is used of the drafter program's connection."""

    outgoing: OutQueue
    closing: bool

    def feed(self, data: Part) -> int:
        """Take received bytes; returns how many, fewer only once it closes."""


class Program(Protocol):
    """What is used of :class:`draftwire.drafter.program.DrafterProgram`."""

    @property
    def waiting(self) -> bool:
        """Whether there is something to draft."""

    def connect(self) -> Any:
        """Return a new connection, or None when there are as many as may be."""

    def draft(self) -> Any:
        """Draw the next batch."""

    def disconnect(self, connection: Any) -> None:
        """Free everything the connection held."""


class ProgramChannel:
    """A channel whose other end is a drafter program that runs while its client waits.

    There is no time in it: an answer is there at once or never comes, so deadlines are not used.
    """

    def __init__(self, program: Program) -> None:
        """Connect; raises TransportError when the program takes no more connections."""
        connection: ProgramConnection | None = program.connect()
        if connection is None:
            raise TransportError("the drafter takes no more connections")
        self._program = program
        self._connection = connection
        self._open = True

    def send(self, parts: Sequence[Part], deadline: float) -> None:
        """Hand all parts over."""
        for part in parts:
            if not self._open or self._connection.feed(part) < size_of(part):
                raise ConnectionResetError("the drafter has closed the connection")

    def receive_into(self, buffer: memoryview, deadline: float) -> int:
        """Let the program draft until it has something to say, and take that."""
        outgoing = self._connection.outgoing
        while not outgoing and self._program.waiting:
            self._program.draft()
        if not outgoing:
            if self._connection.closing or not self._open:
                raise ConnectionResetError("the drafter has closed the connection")
            raise TimeoutError("the drafter has nothing to say")
        return outgoing.take(buffer)

    def close(self) -> None:
        """End the connection; may be called twice."""
        if self._open:
            self._open = False
            self._program.disconnect(self._connection)


class LocalDrafter(DraftClient):
    """A drafter program in this process; see :class:`DraftClient`.

    program: a ``DrafterProgram``, which runs while a round waits for it. through: wraps its
    channel, to inject faults.
    """

    def __init__(
        self,
        program: Program,
        target: TargetEngine[Any],
        *,
        version: WireVersion = WireVersion.V2,
        audit: bool = True,
        max_depth: int = 16,
        max_support: int = 1024,
        draft_identity: bytes = bytes(32),
        adaptation: Adaptation = Adaptation.ANY,
        through: Callable[[Channel], Channel] = lambda channel: channel,
        clock: Callable[[], float] = time.monotonic,
        breaker: Breaker | None = None,
    ) -> None:
        """Remember the program; nothing is sent yet."""
        super().__init__(
            lambda until: through(ProgramChannel(program)),
            verifier_hello(
                target,
                version=version,
                max_depth=max_depth,
                max_support=max_support,
                draft_identity=draft_identity,
                adaptation=adaptation,
            ),
            deadline=_NO_DEADLINE,
            connect_timeout=_NO_DEADLINE,
            audit=audit,
            clock=clock,
            breaker=breaker,
        )
