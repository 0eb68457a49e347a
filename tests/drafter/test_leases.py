"""Peers that vanish give up their place: leases, who yields to whom, and what stays bounded."""

from __future__ import annotations

import gc
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest

from draftwire.drafter.counters import LeaseEnd
from draftwire.drafter.leases import Leases
from draftwire.drafter.limits import PeerLimits
from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.errors import ConfigurationError, TransportError
from draftwire.session.link import Link
from draftwire.session.reasons import DropReason
from draftwire.session.verifier_session import VerifierSession
from draftwire.transport.tcp import TcpChannel
from draftwire.verifier.client import DraftClient
from draftwire.verifier.connection import KEEP_SECONDS
from draftwire.verifier.emission import Kind
from draftwire.verifier.generate import generate
from draftwire.verifier.hello import verifier_hello
from draftwire.verifier.remote import RemoteDrafter
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import Cancel, ProposalPolicy
from draftwire.wire.registry import Layout, MessageType, Outcome
from testing.harness.clock import Clock
from testing.harness.memory import MemoryPair
from testing.harness.paths import MemoryChannel
from testing.harness.servers import serving
from testing.harness.verifiers import HandVerifier
from testing.toys.models import ToyDrafter, ToyTarget, mixed

V = 11
POLICY = ProposalPolicy(Layout.SPARSE, 4, 1.0, support=5)


def program_of(*, max_connections: int = 64, **limits: float) -> DrafterProgram[object]:
    config = DrafterConfig(
        max_connections=max_connections,
        peer=PeerLimits(**limits),  # type: ignore[arg-type]
    )
    return DrafterProgram(ToyDrafter(mixed(V, 1), V), config)  # type: ignore[arg-type]


def remote(address: object, **options: float) -> RemoteDrafter:
    return RemoteDrafter(address, ToyTarget(mixed(V, 1), V), **{"deadline": 20.0} | options)  # type: ignore[arg-type]


def until(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


# the model


def test_leases_agree_with_their_definition_in_every_history_of_three_holders() -> None:
    """All 4^6 histories: each step somebody is heard, or a second passes; busy in all 8 ways."""
    for history in product("abc.", repeat=6):
        busy: set[str] = set()
        leases, heard, now = Leases[str](2.0, busy.__contains__), dict[str, float](), 0.0
        for step in history:
            if step == ".":
                now += 1.0
            else:
                leases.renew(step, now)
                heard.pop(step, None)  # of equally silent ones the first one heard goes first
                heard[step] = now
        for chosen in product((False, True), repeat=3):
            busy.clear()
            busy |= {name for name, is_busy in zip("abc", chosen, strict=True) if is_busy}
            idle = [name for name in heard if name not in busy]
            longest = min(idle, key=heard.__getitem__, default=None)
            assert leases.expired(now) == [n for n in idle if now - heard[n] >= 2.0]
            assert leases.due() == (None if longest is None else heard[longest] + 2.0)
            enough = longest is not None and now - heard[longest] >= 1.0
            assert leases.evictable(now, 1.0) == (longest if enough else None)
    leases.end("a")
    leases.end("a")
    assert len(leases) == len(set(history) - {"a", "."})


# over TCP


def test_a_peer_that_is_silent_for_its_lease_loses_connection_and_sessions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One asks and never reads, one does nothing, one says PING: only that one stays."""
    caplog.set_level(logging.INFO, "draftwire")
    program = program_of(lease_seconds=2.5, yield_seconds=0.1)  # long: machines are busy
    with serving(program) as server, remote(server.address) as speaks:
        mute = HandVerifier.to(server.address, ToyTarget(mixed(V, 1), V))
        idle = remote(server.address)
        idle.connect()
        assert mute.agree()
        mute.send(mute.session().ask(POLICY, 0.0, 1.0))
        until(lambda: program.open_sessions == 1)
        began = time.monotonic()
        while program.counters.ended_leases[LeaseEnd.EXPIRED] < 2:
            assert time.monotonic() - began < 30.0
            speaks.ping()
            time.sleep(0.05)
        assert time.monotonic() - began > 0.3
        assert len(program.connections) == 1 and not program.open_sessions
        speaks.ping()
        for each in (mute, idle):
            each.close()
    lines = [record.getMessage() for record in caplog.records]
    told = [line for line in lines if "its lease is over" in line]
    assert len(told) == 2 and any("1 sessions end" in line for line in told)


def test_the_longest_idle_one_makes_way_for_a_verifier_and_for_nobody_else() -> None:
    program = program_of(max_connections=2, yield_seconds=0.3)
    with (
        serving(program) as server,
        remote(server.address) as first,
        remote(server.address) as second,
        remote(server.address) as third,
    ):
        first.connect()
        second.connect()
        with pytest.raises(TransportError, match="HELLO"):  # no holder has been silent for long
            third.connect()
        time.sleep(0.4)
        for _ in range(3):
            first.ping()  # keeps its lease, and no place
        with socket.create_connection(server.address), socket.create_connection(server.address):
            until(lambda: len(program.connections) == 4)
            assert not any(
                program.counters.ended_leases.values()
            )  # unauthenticated peers evict no holder
            third.connect()
            assert program.counters.ended_leases[LeaseEnd.EVICTED] == 1
        assert second.ping() and second.counters.connections == 1
        assert third.ping()
        with pytest.raises(TransportError):
            first.ping()


@pytest.mark.parametrize("rest", [0.5, 1.2], ids=["soon", "later"])
def test_a_request_goes_on_after_its_lease_has_ended(rest: float) -> None:
    """It connects again and sends its prefix again: an ordinary loss, and none at all if it was
    silent for so long that it looks first."""
    program = program_of(lease_seconds=0.2, yield_seconds=0.1)
    target = ToyTarget(mixed(V, 1), V)
    with serving(program) as server, remote(server.address) as drafter:
        run = generate(target, drafter, (1,), Sampling(seed=1, max_tokens=60), POLICY)
        for _ in range(20):
            next(run)
        time.sleep(rest)
        kinds = [emission.kind for emission in run]
        assert Kind.ACCEPTED in kinds[8:]
        assert sum(run.report.misses.values()) == (rest < 1.0)
        assert set(run.report.misses) <= {DropReason.DISCONNECTED}
        assert drafter.counters.connections == 2
        assert len(run.tokens) == 60


def test_a_request_that_pauses_says_ping_and_no_more_often_than_needed() -> None:
    clock, pair = Clock(), MemoryPair()
    program = DrafterProgram(ToyDrafter(mixed(V, 1), V), DrafterConfig(), clock=clock)
    target = ToyTarget(mixed(V, 1), V)
    with DraftClient(
        lambda until: MemoryChannel(program, pair, clock),  # type: ignore[arg-type]
        verifier_hello(target),
        deadline=20.0,
        connect_timeout=1.0,
        clock=clock,
    ) as client:
        request = client.open((1,), 7)
        client.connect()
        (connection,) = program.connections
        for _ in range(100):
            clock.now += KEEP_SECONDS / 10
            request.skip()
            request.commit(Outcome.TARGET_ONLY, 0, [1])
        assert program.connections == {connection} and client.counters.connections == 1
        assert 9 <= connection.received[MessageType.PING] <= 10
        assert connection.sent[MessageType.PONG] >= 8
        request.close()


def test_both_ends_of_tcp_notice_that_the_other_machine_is_gone() -> None:
    with serving(program_of()) as server:
        channel = TcpChannel.connect(server.address, time.monotonic() + 10)
        until(lambda: bool(server.peers))
        accepted = next(iter(server.peers)).stream.socket
        for each in (accepted, channel.raw_socket):
            assert each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            for name, value in {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}.items():
                if hasattr(socket, name):
                    assert each.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value
        channel.close()


def test_leases_that_cannot_hold_are_refused() -> None:
    for name in ("lease_seconds", "yield_seconds"):
        for value in (0.0, -1.0, float("nan"), float("inf")):
            with pytest.raises(ConfigurationError, match=name):
                PeerLimits(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="yield_seconds must not exceed"):
        PeerLimits(lease_seconds=5.0, yield_seconds=6.0)
    with pytest.raises(ConfigurationError, match="max_positions 3 never lets"):
        DrafterConfig(peer=PeerLimits(max_positions=3), max_depth=4)


# what stays bounded


def alive() -> int:
    """How many objects that may hold others there are."""
    gc.collect()
    return len(gc.get_objects())


def test_t38_ten_thousand_aborted_sessions_leave_nothing_at_the_drafter() -> None:
    """Asked and cancelled before a batch begins, after it, and never cancelled at all."""
    engine = ToyDrafter(mixed(V, 1), V)
    program = DrafterProgram(engine, DrafterConfig(max_sessions=4, max_slots=4, max_batch=2))

    def connect() -> None:
        link.start()
        connection.feed(b"".join(link.outgoing()))
        list(link.feed(connection.outgoing.drain(), 0.0))

    link = Link(verifier_hello(ToyTarget(mixed(V, 1), V)), 0.0)
    connection = program.connect()  # type: ignore[assignment]
    connect()
    asked = VerifierSession(1, 0, (1, 2), 7, link.agreed).ask(POLICY, 0.0, 1.0)
    objects = []
    for number in range(10_000):
        session = number + 1
        link.send(replace(asked, session=session))
        if number % 20 == 1:
            connection.feed(b"".join(link.outgoing()))
            program.draft()
        link.send(Cancel(session, 1))
        connection.feed(b"".join(link.outgoing()))
        if number % 50 == 49:
            program.draft()
            assert not program.waiting  # fifty were withdrawn, and none of them waits for its turn
        connection.outgoing.drain()
        if number % 2500 == 2499:
            objects.append(alive())
    assert not engine.contexts and not program.open_sessions and not program.slots_in_use
    assert program.counters.withdrawn >= 9_500
    assert connection.table.ends_remembered <= 4  # type: ignore[union-attr]
    assert max(objects) - min(objects) < 100
    for session in range(20_001, 20_101):  # without an end: no more than were agreed
        link.send(replace(asked, session=session, slot=session % 4))
    connection.feed(b"".join(link.outgoing()))
    program.draft()
    program.draft()
    assert len(engine.contexts) == program.open_sessions == 4
    program.disconnect(connection)
    assert not engine.contexts and not program.connections


def test_t38_ten_thousand_requests_of_a_drafter_that_never_answers() -> None:
    """Each costs one lost round; nothing is kept of it once it is closed."""
    clock = Clock(tick=1e-4)

    class Silent(MemoryChannel):
        """Answers HELLO and then nothing."""

        def pump(self) -> None:
            if client.agreed is None:
                super().pump()
            else:
                while self.pair.drafter.receive(self.clock.now):
                    continue

    program = DrafterProgram(ToyDrafter(mixed(V, 1), V), DrafterConfig())
    with DraftClient(
        lambda until: Silent(program, MemoryPair(), clock),  # type: ignore[arg-type]
        verifier_hello(ToyTarget(mixed(V, 1), V)),
        deadline=0.01,
        connect_timeout=1.0,
        clock=clock,
    ) as client:
        client.connect()
        objects = []
        for number in range(10_000):
            request = client.open((1, 2), number)
            request.propose(POLICY)
            request.commit(Outcome.TARGET_ONLY, 0, [1])
            request.close()
            if number % 2500 == 2499:
                objects.append(alive())
        assert client.counters.drops[DropReason.MISSED_DEADLINE] == 10_000
        assert not client.open_requests and not client.awaits_rounds
        assert max(objects) - min(objects) < 100
