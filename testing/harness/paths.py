"""The three paths from a verifier to a toy drafter: colocated, an in-memory pair, TCP."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from draftwire.drafter.early_stop import EarlyStop, StopMaker
from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.drafter.propose import ProposalSource
from draftwire.exact.words import ProposalWords
from draftwire.transport.channel import Channel, Part
from draftwire.transport.tcp import TcpChannel
from draftwire.verifier.client import DraftClient
from draftwire.verifier.config import VerifierConfig
from draftwire.verifier.local import LocalDrafter
from draftwire.wire.registry import WireVersion
from testing.harness.clock import Clock
from testing.harness.memory import MemoryPair
from testing.harness.servers import serving
from testing.toys.models import ToyDrafter, ToyTarget

PATHS = ("colocated", "memory", "tcp")


@dataclass
class MemoryChannel:
    """A channel over a MemoryPair, with the drafter program at its other end."""

    program: DrafterProgram[Any]
    pair: MemoryPair
    clock: Clock
    rest: bytes = b""
    connection: Any = field(init=False)

    def __post_init__(self) -> None:
        self.connection = self.program.connect()

    def send(self, parts: Sequence[Part], deadline: float) -> None:
        self.pair.verifier.send(parts, self.clock.now)

    def receive_into(self, buffer: memoryview, deadline: float) -> int:
        while True:
            self.pump()
            if not self.rest:
                chunk = self.pair.verifier.receive(self.clock.now)
                if chunk == b"":
                    raise ConnectionResetError("the connection has ended")
                self.rest = chunk or b""
            if self.rest:
                count = min(len(buffer), len(self.rest))
                buffer[:count] = self.rest[:count]
                self.rest = self.rest[count:]
                return count
            due = self.pair.due()
            if due is None or due > deadline:
                self.clock.now = max(deadline, self.clock.now)
                raise TimeoutError("the deadline has passed")
            self.clock.now = max(due, self.clock.now)

    def pump(self) -> None:
        """Let the drafter read what has arrived, draft and answer."""
        while chunk := self.pair.drafter.receive(self.clock.now):
            self.connection.feed(chunk)
        if chunk == b"":
            self.program.disconnect(self.connection)
            return
        while self.program.waiting:
            self.program.draft()
        outgoing = self.connection.outgoing
        while outgoing and self.pair.connected:
            self.pair.drafter.send([outgoing.drain()], self.clock.now)
        if self.connection.closing:
            self.pair.drafter.close()

    def close(self) -> None:
        self.pair.verifier.close()
        self.program.disconnect(self.connection)


@contextmanager
def drafting(
    path: str,
    engine: ToyDrafter,
    target: ToyTarget,
    *,
    version: WireVersion = WireVersion.V2,
    config: DrafterConfig | None = None,
    source: ProposalSource = ProposalWords,
    audit: bool = True,
    connect_timeout: float = 1.0,
    deadline: float = 20.0,
    through: Callable[[Channel], Channel] = lambda channel: channel,
    pair: Callable[[], MemoryPair] = MemoryPair,
    clock: Clock | None = None,
    stop: StopMaker | None = None,
) -> Iterator[DraftClient]:
    """Yield a client whose rounds take the named path; afterwards nothing may be left open.

    stop: the rule of each session; without one the client agrees on no early stop.
    """
    program = DrafterProgram(
        engine,
        config or DrafterConfig(),
        source=source,
        stop=stop or EarlyStop,
        clock=clock or monotonic,
    )
    early = stop is not None
    hello = VerifierConfig(version=version, early_stop=early).hello(target)
    if path == "colocated":
        with LocalDrafter(
            program, target, version=version, audit=audit, early_stop=early, through=through
        ) as client:
            yield client
    elif path == "memory":
        time = clock or Clock()
        with DraftClient(
            lambda until: through(MemoryChannel(program, pair(), time)),
            hello,
            deadline=deadline,
            connect_timeout=connect_timeout,
            audit=audit,
            clock=time,
        ) as client:
            yield client
    else:
        with (
            serving(program) as server,
            DraftClient(
                lambda until: through(TcpChannel.connect(server.address, until)),
                hello,
                deadline=deadline,
                connect_timeout=20.0,
                audit=audit,
            ) as client,
        ):
            yield client
    assert not program.connections
    assert not engine.contexts
    assert not target.requests
