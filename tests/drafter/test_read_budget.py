"""A verifier that floods takes no more of a turn than one that works, in turns and in frames."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from draftwire.drafter.connection import Connection
from draftwire.drafter.limits import PeerLimits
from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.drafter.server import DrafterServer
from draftwire.session.link import FRAME_BYTES
from draftwire.transport.keys import PresharedKey
from draftwire.transport.security import Security
from draftwire.transport.tcp import listen
from draftwire.transport.tls import Tls, TlsFiles
from draftwire.wire.agreement import LEAST_READ_AHEAD, drafter_read_ahead
from draftwire.wire.frames import READ_AHEAD
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import HEADER_BYTES, Layout, MessageType, Outcome
from testing.harness.certificates import tls_files
from testing.harness.verifiers import HandVerifier
from testing.toys.models import ToyDrafter, ToyTarget, mixed

V = 11
POLICY = ProposalPolicy(Layout.SPARSE, 4, 1.0, support=5)
KEY = PresharedKey(bytes(range(32)))
PINGS, FLOODERS, ROUNDS = 2000, 3, 12
PING_BYTES = FRAME_BYTES + 8
MOST_FRAMES = (LEAST_READ_AHEAD + HEADER_BYTES) // PING_BYTES + 2  # and what was begun before


class TurnByTurn:
    """A server whose turns the test takes, and verifiers by hand."""

    def __init__(
        self,
        security: Security | None,
        theirs: Security | None,
        stack: ExitStack,
        sessions: int,
    ) -> None:
        limits = PeerLimits(frames_per_second=1e9, bytes_per_second=1e12)
        config = DrafterConfig(max_sessions=sessions, max_slots=sessions, peer=limits)
        key = security.secret if isinstance(security, PresharedKey) else b""
        tls = Tls(security, server=True) if isinstance(security, TlsFiles) else None
        self.program = DrafterProgram(ToyDrafter(mixed(V, 1), V), config, key=key)
        self.server: DrafterServer[Any] = DrafterServer(self.program, listen("127.0.0.1", 0), tls)
        stack.enter_context(self.server)
        self.security, self.stack = theirs, stack

    def turn(self) -> None:
        """Take one turn, and do not wait for anything."""
        self.server.wake()
        self.server.turn()

    def meanwhile(self, work: Callable[[], object]) -> None:
        """Take turns until some work that blocks is done."""
        thread = threading.Thread(target=work)
        thread.start()
        while thread.is_alive():
            self.turn()
            thread.join(0.001)

    def verifier(self) -> tuple[HandVerifier, Connection[Any]]:
        """Return a verifier that has agreed, and the program's end of its connection."""
        before = set(self.program.connections)
        made: list[HandVerifier] = []

        def connect() -> None:
            target = ToyTarget(mixed(V, 1), V)
            by_hand = HandVerifier.to(self.server.address, target, self.security)
            assert by_hand.agree()
            made.append(by_hand)

        self.meanwhile(connect)
        (by_hand,) = made
        self.stack.callback(by_hand.close)
        (connection,) = set(self.program.connections) - before
        return by_hand, connection


@contextmanager
def turns(
    ours: Security | None = None, theirs: Security | None = None, sessions: int = 4
) -> Iterator[TurnByTurn]:
    with ExitStack() as stack:
        yield TurnByTurn(ours, theirs, stack, sessions)


def flood(client: HandVerifier) -> None:
    """Send tiny frames as fast as the socket takes them, in large pieces."""
    for nonce in range(PINGS):
        client.link.ping(nonce, 0.0)
    client.flush()


@pytest.mark.parametrize("which", ["plain", "key", "tls"])
def test_beside_a_flood_a_round_takes_as_many_turns_as_without(which: str, tmp_path: Path) -> None:
    """One each. And of no connection more is read in a turn than the STEPs of one round may be."""
    ours, theirs = (tls_files(tmp_path, name) for name in ("drafter", "verifier"))
    sides = {"plain": (None, None), "key": (KEY, KEY), "tls": (ours, theirs)}[which]
    with turns(*sides) as at:
        honest, _ = at.verifier()
        floods = [at.verifier() for _ in range(FLOODERS)]
        session = honest.session()
        for client, _ in floods:
            at.meanwhile(lambda client=client: flood(client))
        heard = [0] * FLOODERS
        for done in range(ROUNDS):
            honest.send(session.ask(POLICY, 0.0, 1.0))
            for turn in range(1 + (done == 0)):
                before = [end.received[MessageType.PING] for _, end in floods]
                at.turn()
                after = [end.received[MessageType.PING] for _, end in floods]
                heard = [now - then for now, then in zip(after, before, strict=True)]
                assert max(heard) <= MOST_FRAMES, turn
            assert at.program.counters.proposals == done + 1
            session.give_up()
            session.commit(0, Outcome.TARGET_ONLY, 1)
        for _ in range(FLOODERS * PINGS):
            if all(end.received[MessageType.PING] == PINGS for _, end in floods):
                break
            at.turn()
        for _, end in floods:  # nothing of it is lost, and no connection was ended
            assert end.received[MessageType.PING] == PINGS and not end.closing


@pytest.mark.parametrize("sessions", [4, 64])
def test_the_steps_of_all_slots_are_read_in_one_turn(sessions: int) -> None:
    """So they are drawn as one batch: the budget grows with what HELLO agreed on."""
    with turns(sessions=sessions) as at:
        client, end = at.verifier()
        assert end.table is not None
        agreed = end.table.agreed
        assert LEAST_READ_AHEAD <= drafter_read_ahead(agreed) <= READ_AHEAD
        assert agreed.max_slots == sessions
        asking = [client.session(number) for number in range(1, sessions + 1)]
        client.send(*(each.ask(POLICY, 0.0, 1.0) for each in asking))
        at.turn()
        assert end.received[MessageType.STEP] == sessions


def test_a_long_prompt_is_read_as_fast_as_it_comes() -> None:
    """The frame that a verifier is in has its whole place, whatever else may be read ahead."""
    with turns() as at:
        client, end = at.verifier()
        client.send(client.session(1, (1,) * 3000).ask(POLICY, 0.0, 1.0))
        at.turn()
        at.turn()
        assert end.received[MessageType.STEP] == 1
