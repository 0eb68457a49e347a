"""A drafter in this very process, behind the same messages: for comparison, and for tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from draftwire.errors import TransportError
from draftwire.transport.channel import Channel, Part
from draftwire.transport.queue import OutQueue, size_of
from draftwire.verifier.breaker import Breaker
from draftwire.verifier.client import DraftClient
from draftwire.verifier.config import VerifierConfig, configured
from draftwire.verifier.engine import TargetEngine
from draftwire.verifier.states import TargetStates

_NO_DEADLINE: Final = 1e9


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
        self._turn = threading.Lock()  # the program runs in one thread at a time

    def send(self, parts: Sequence[Part], deadline: float) -> None:
        """Hand all parts over."""
        with self._turn:
            for part in parts:
                if not self._open or self._connection.feed(part) < size_of(part):
                    raise ConnectionResetError("the drafter has closed the connection")

    def receive_into(self, buffer: memoryview, deadline: float) -> int:
        """Let the program draft until it has something to say, and take that."""
        outgoing = self._connection.outgoing
        with self._turn:
            while not outgoing and self._program.waiting:
                self._program.draft()
            if not outgoing:
                if self._connection.closing or not self._open:
                    raise ConnectionResetError("the drafter has closed the connection")
                raise TimeoutError("the drafter has nothing to say")
            return outgoing.take(buffer)

    def close(self) -> None:
        """End the connection; may be called twice."""
        with self._turn:
            if self._open:
                self._open = False
                self._program.disconnect(self._connection)


_PATIENT: Final = VerifierConfig(deadline=_NO_DEADLINE, connect_timeout=_NO_DEADLINE)


class LocalDrafter(DraftClient):
    """A drafter program in this process; see :class:`DraftClient`.

    program: a ``DrafterProgram``, which runs while a round waits for it. config, options: see
    :class:`VerifierConfig`; without a config there is no deadline. through: wraps the channel, to
    inject faults.
    """

    def __init__(
        self,
        program: Program,
        target: TargetEngine[Any],
        config: VerifierConfig | None = None,
        *,
        through: Callable[[Channel], Channel] = lambda channel: channel,
        clock: Callable[[], float] = time.monotonic,
        breaker: Breaker | None = None,
        **options: Any,
    ) -> None:
        config = configured(config or _PATIENT, **options)
        super().__init__(
            lambda until: through(ProgramChannel(program)),
            config.hello(target),
            config,
            target_states=TargetStates.of(target),
            clock=clock,
            breaker=breaker,
        )
