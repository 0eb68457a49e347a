"""A verifier by hand, against a drafter program without a socket or channel.

Unlike ``HandVerifier`` it has many requests open at once and never waits: the test decides when the
program drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from draftwire.drafter.program import Connection, DrafterProgram
from draftwire.session.link import Closed
from draftwire.session.proposal import Proposal, Received
from draftwire.session.verifier_session import VerifierSession
from draftwire.verifier.hello import verifier_hello
from draftwire.wire.messages import ErrorMessage, Hello, ProposalPolicy
from testing.harness.linked import Result, VerifierEnd
from testing.toys.models import ToyTarget, mixed

V: Final = 9
TARGET: Final = ToyTarget(mixed(V, 1), V)


class Peer:
    """A verifier by hand: a link and its sessions, bytes carried over one by one.

    hello: what it says of itself; None = that of ``model`` as target.
    """

    def __init__(
        self, program: DrafterProgram[Any], model: Any = TARGET, hello: Hello | None = None
    ) -> None:
        connection = program.connect()
        assert connection is not None
        self.connection: Connection[Any] = connection
        self.end = VerifierEnd(verifier_hello(model) if hello is None else hello)
        self.link, self.sessions = self.end.link, self.end.sessions
        self.results: dict[int, list[Result]] = {}
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
        for session, result in self.end.receive(self.connection.outgoing.drain()):
            self.results[session].append(result)
        assert not any(isinstance(event, Closed) for event in self.end.events)

    @property
    def errors(self) -> list[ErrorMessage]:
        """The errors that were heard of sessions."""
        messages = [event.message for event in self.end.events if isinstance(event, Received)]
        return [message for message in messages if isinstance(message, ErrorMessage)]


def tokens_of(result: Result) -> tuple[int, ...]:
    assert isinstance(result, Proposal)
    return result.tokens
