"""Both ends of a connection by hand: a link each and the sessions behind it, without a program.

A test carries the bytes, or lets :class:`LinkedPair` do it; who needs no link takes
:class:`testing.harness.joined.Joined`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from draftwire.session.link import AgreedEvent, Event, Link
from draftwire.session.proposal import DraftTask, Dropped, Proposal, Received
from draftwire.session.session_table import SessionTable
from draftwire.session.shards import ShardProposal
from draftwire.session.verifier_session import VerifierSession
from draftwire.wire.messages import Hello
from draftwire.wire.registry import LayoutSet, Role
from testing.harness.joined import KEY, PROMPT, V2, HashDrafter, hello

NONCES: Final = (b"v" * 32, b"d" * 32)

Result = Proposal | ShardProposal | Dropped


class VerifierEnd:
    """A link and the sessions that ask over it. events: all that the link has said."""

    def __init__(
        self, hello: Hello, now: float = 0.0, *, key: bytes = b"", nonce: bytes = b""
    ) -> None:
        """Say the first words, which wait in ``link.outgoing``."""
        self.link = Link(hello, now, key, nonce)
        self.sessions: dict[int, VerifierSession] = {}
        self.events: list[Event] = []
        self.link.start()

    def receive(self, data: bytes | memoryview, now: float = 0.0) -> list[tuple[int, Result]]:
        """Take bytes; returns what has come of rounds, each with its session."""
        results: list[tuple[int, Result]] = []
        for event in self.link.feed(data, now):
            self.events.append(event)
            if isinstance(event, AgreedEvent):
                for session in self.sessions.values():
                    session.connected(event.agreed)
            elif isinstance(event, Received):
                number = event.message.session  # type: ignore[union-attr]
                asking = self.sessions.get(number)
                result = None if asking is None else asking.take(event, now)
                if result is not None:
                    results.append((number, result))
        return results


class DrafterEnd:
    """A link, its sessions and the tasks that they wait for. events: all that the link has said."""

    def __init__(
        self,
        hello: Hello,
        now: float = 0.0,
        *,
        key: bytes = b"",
        nonce: bytes = b"",
        model: HashDrafter | None = None,
    ) -> None:
        """Wait for the verifier's words. model: that drafts; None = a new one."""
        self.link = Link(hello, now, key, nonce)
        self.table: SessionTable | None = None
        self.tasks: deque[DraftTask] = deque()
        self.model = HashDrafter() if model is None else model
        self.events: list[Event] = []
        self.link.start()

    def receive(self, data: bytes | memoryview, now: float = 0.0) -> None:
        """Take bytes: sessions answer, and tasks wait."""
        for event in self.link.feed(data, now):
            self.events.append(event)
            if isinstance(event, AgreedEvent):
                self.table = SessionTable(event.agreed)
            elif isinstance(event, Received):
                assert self.table is not None
                actions = self.table.receive(event.message)
                self.link.send_parts(actions.parts)
                if actions.task is not None:
                    self.tasks.append(actions.task)

    def draft(self, task: DraftTask) -> None:
        """Answer a task with its proposal; the model's state is of the session's tokens then."""
        assert self.table is not None
        drawn = self.model.draft(task, self.table[task.session].tokens)
        self.link.send_parts(self.table.reply(task, drawn))


class LinkedPair:
    """Both ends; what one says reaches the other at once, and a task is done when it comes.

    sent: all bytes of the verifier, and of the drafter. results: what has come of rounds.
    """

    def __init__(
        self,
        layouts: LayoutSet = V2,
        *,
        keys: tuple[bytes, bytes] = (b"", b""),
        nonces: tuple[bytes, bytes] = NONCES,
    ) -> None:
        """Carry nothing yet. keys, nonces: the verifier's, then the drafter's."""
        said, answered = (nonce if key else b"" for key, nonce in zip(keys, nonces, strict=True))
        self.verifier = VerifierEnd(hello(Role.VERIFIER, layouts), key=keys[0], nonce=said)
        self.drafter = DrafterEnd(hello(Role.DRAFTER, layouts), key=keys[1], nonce=answered)
        self.links = (self.verifier.link, self.drafter.link)
        self.events = (self.verifier.events, self.drafter.events)
        self.sent = (bytearray(), bytearray())
        self.results: list[Result] = []

    def open(self, session: int = 1, prompt: Sequence[int] = PROMPT) -> VerifierSession:
        """A session that asks; both ends have agreed."""
        agreed = self.verifier.link.agreed
        asking = VerifierSession(session, session - 1, prompt, KEY, agreed)
        self.verifier.sessions[session] = asking
        return asking

    def on_way(self, sender: int, data: bytes) -> bytes:
        """What arrives of bytes that an end has sent: all of them, unharmed."""
        return data

    def feed(self, receiver: int, data: bytes, size: int = 0) -> None:
        """Hand bytes to an end, ``size`` at a time (0: at once)."""
        for begin in range(0, len(data), size or len(data)):
            piece = data[begin : begin + (size or len(data))]
            if receiver == 0:
                self.results += [result for _, result in self.verifier.receive(piece)]
            else:
                self.drafter.receive(piece)
                while self.drafter.tasks:
                    self.drafter.draft(self.drafter.tasks.popleft())

    def carry(self) -> None:
        """Move bytes both ways until neither end has any left."""
        moved = True
        while moved:
            moved = False
            for sender, link in enumerate(self.links):
                data = b"".join(link.outgoing())
                if data:
                    moved = True
                    arriving = self.on_way(sender, data)
                    self.sent[sender].extend(data)
                    self.feed(1 - sender, arriving)
