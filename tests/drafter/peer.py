"""A verifier by hand, against a drafter program without a socket or channel.

Unlike ``HandVerifier`` it has many requests open at once and never waits: the test decides when the
program drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from draftwire.drafter.program import Connection, DrafterProgram
from draftwire.session.link import AgreedEvent, Link
from draftwire.session.proposal import Dropped, Proposal, Received
from draftwire.session.verifier_session import VerifierSession
from draftwire.verifier.hello import verifier_hello
from draftwire.wire.messages import ErrorMessage, ProposalPolicy
from testing.toys.models import ToyTarget, mixed

V: Final = 9
TARGET: Final = ToyTarget(mixed(V, 1), V)


class Peer:
    """A verifier by hand: a link and its sessions, bytes carried over one by one."""

    def __init__(self, program: DrafterProgram[Any], model: Any = TARGET) -> None:
        connection = program.connect()
        assert connection is not None
        self.connection: Connection[Any] = connection
        self.link = Link(verifier_hello(model), 0.0)
        self.sessions: dict[int, VerifierSession] = {}
        self.results: dict[int, list[Proposal | Dropped]] = {}
        self.errors: list[ErrorMessage] = []
        self.link.start()
        self.send()
        self.receive()
        assert self.link.agreed is not None

    def open(self, session: int, prompt: Sequence[int], *, slot: int | None = None) -> None:
        self.sessions[session] = VerifierSession(
            session, session - 1 if slot is None else slot, prompt, 77 + session, self.link.agreed
        )
        self.results[session] = []

    def ask(self, session: int, policy: ProposalPolicy) -> None:
        self.link.send(self.sessions[session].ask(policy, 0.0, 1.0))
        self.send()

    def send(self) -> None:
        for part in self.link.outgoing():
            for byte in bytes(part):
                self.connection.feed(bytes((byte,)))

    def receive(self) -> None:
        for event in self.link.feed(self.connection.outgoing.drain(), 0.0):
            if isinstance(event, Received):
                message = event.message
                if isinstance(message, ErrorMessage):
                    self.errors.append(message)
                result = self.sessions[message.session].take(event, 0.0)  # type: ignore[union-attr]
                if result is not None:
                    self.results[message.session].append(result)  # type: ignore[union-attr]
            else:
                assert isinstance(event, AgreedEvent)


def tokens_of(result: Proposal | Dropped) -> tuple[int, ...]:
    assert isinstance(result, Proposal)
    return result.tokens
