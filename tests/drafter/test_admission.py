"""Admission is judged by silence alone: never by a time in which the drafter itself was busy."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from draftwire.drafter import admission
from draftwire.drafter.counters import LeaseEnd, Rejection
from draftwire.drafter.leases import Leases
from draftwire.drafter.limits import PeerLimits
from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.drafter.server import DrafterServer
from draftwire.transport.tcp import Address, TcpChannel, listen
from draftwire.verifier.generate import generate
from draftwire.verifier.remote import RemoteDrafter
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from testing.harness.servers import serving
from testing.harness.verifiers import HandVerifier
from testing.toys.models import ToyContext, ToyDrafter, ToyTarget, mixed

V = 11
POLICY = ProposalPolicy(Layout.SPARSE, 1, 1.0, support=5)


@dataclass
class HeldEngine(ToyDrafter):
    """An engine whose batches last until the test lets them end."""

    entered: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    once: bool = False

    def forward(self, batch: Sequence[tuple[ToyContext, Sequence[int]]]) -> NDArray[np.float32]:
        if [list(tokens) for _, tokens in batch] == [[0]]:  # the server's warm-up
            return super().forward(batch)
        self.entered.set()
        assert self.go_on.wait(30)
        if self.once:
            self.go_on.clear()
        return super().forward(batch)

    def one(self) -> None:
        """Let one batch end, and hold the next one."""
        self.once = True
        self.go_on.set()


class Caller(HandVerifier):
    """A verifier by hand, who says each thing when the test wants it."""

    def __init__(self, address: Address) -> None:
        channel = TcpChannel.connect(address, time.monotonic() + 20)
        super().__init__(channel, ToyTarget(mixed(V, 1), V))

    def ask(self) -> None:
        self.send(self.session().ask(POLICY, 0.0, 1.0))

    def alive(self) -> bool:
        """Whether the connection is still there: what it was sent is answered."""
        self.ping()
        return self.heard()


@contextmanager
def held(**config: Any) -> Iterator[tuple[HeldEngine, DrafterProgram[ToyContext], Address]]:
    engine = HeldEngine(mixed(V, 1), V)
    program = DrafterProgram(engine, DrafterConfig(**config))
    with serving(program) as server:
        try:
            yield engine, program, server.address
        finally:
            engine.once = False
            engine.go_on.set()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_hello_that_waits_while_a_batch_is_drawn_is_not_too_slow() -> None:
    """It came at once; the batch lasts four times as long as HELLO may take."""
    limits = PeerLimits(handshake_seconds=0.25)
    with held(peer=limits) as (engine, program, address):
        first = Caller(address)
        assert first.agree()
        late = Caller(address)
        until(lambda: len(program.connections) == 2)
        first.ask()
        assert engine.entered.wait(10)
        late.say_hello()
        time.sleep(1.0)
        engine.go_on.set()
        assert late.agree()
        assert not program.counters.rejected[Rejection.TOO_SLOW]
        mute = Caller(address)  # but one that says nothing is
        assert not mute.heard()
        assert program.counters.rejected[Rejection.TOO_SLOW] == 1


def test_a_stranger_is_judged_though_bytes_of_another_wait_all_along() -> None:
    """Decrypted bytes that wait leave the server no moment in which it waits itself."""
    program = DrafterProgram(
        ToyDrafter(mixed(V, 1), V), DrafterConfig(peer=PeerLimits(handshake_seconds=0.2))
    )
    with DrafterServer(program, listen("127.0.0.1", 0)) as server:
        speaker, mute = (socket.create_connection(server.address) for _ in range(2))
        with speaker, mute:
            while len(server.peers) < 2:
                server.turn()
            busy = min(server.peers, key=lambda peer: peer.deadline)
            busy.deadline = float("inf")  # it is no stranger
            end = time.monotonic() + 5
            while not program.counters.rejected[Rejection.TOO_SLOW]:
                assert time.monotonic() < end
                server.unread.add(busy)
                server.turn()
            assert busy in server.peers
            assert len(server.peers) == 1


def test_a_verifier_that_asked_while_a_batch_was_drawn_keeps_its_place() -> None:
    """Even from one whose HELLO lies before its STEP: who has a place is read first."""
    limits = PeerLimits(yield_seconds=0.3, lease_seconds=60.0)
    with held(peer=limits, max_connections=2) as (engine, program, address):
        asks, speaks = Caller(address), Caller(address)
        assert asks.agree() and speaks.agree()
        time.sleep(0.4)
        wants = Caller(address)
        until(lambda: len(program.connections) == 3)
        asks.ask()
        assert engine.entered.wait(10)
        wants.say_hello()
        time.sleep(0.1)
        speaks.ask()
        time.sleep(0.1)
        engine.go_on.set()
        assert speaks.alive()
        assert program.counters.ended_leases[LeaseEnd.EVICTED] == 0
        assert program.counters.rejected[Rejection.FULL] == 1


def test_a_lease_is_not_over_for_one_who_spoke_while_a_batch_was_drawn() -> None:
    limits = PeerLimits(yield_seconds=0.1, lease_seconds=0.5)
    with held(peer=limits) as (engine, program, address):
        asks, speaks = Caller(address), Caller(address)
        assert asks.agree() and speaks.agree()
        asks.ask()
        assert engine.entered.wait(10)
        speaks.ping()
        time.sleep(1.0)
        engine.go_on.set()
        assert speaks.alive()
        assert program.counters.ended_leases[LeaseEnd.EXPIRED] == 0


def test_a_lease_is_not_over_for_one_whose_proposal_has_just_been_sent() -> None:
    """It asked long ago, and waited in the queue for longer than its lease."""
    limits = PeerLimits(yield_seconds=0.1, lease_seconds=0.5)
    with held(peer=limits, max_batch=1) as (engine, program, address):
        callers = [Caller(address) for _ in range(3)]
        assert all(each.agree() for each in callers)
        engine.entered.clear()
        for each in callers:
            each.ask()
            time.sleep(0.1)  # the first one's batch holds the others up
        assert engine.entered.wait(10)
        for answered in range(3):
            time.sleep(0.7)
            for each in callers[:answered]:
                each.ping()
            engine.one()
        until(lambda: program.counters.proposals == 3)
        assert all(each.alive() for each in callers)
        assert program.counters.ended_leases[LeaseEnd.EXPIRED] == 0


def test_the_time_of_leases_never_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    """As their model asks; with batches between, each turn judges and renews in that order."""
    times: list[float] = []

    class Noted(Leases[Any]):
        def renew(self, holder: Any, now: float) -> None:
            times.append(now)
            super().renew(holder, now)

        def expired(self, now: float) -> list[Any]:
            times.append(now)
            return super().expired(now)

        def evictable(self, now: float, seconds: float) -> Any:
            times.append(now)
            return super().evictable(now, seconds)

    monkeypatch.setattr(admission, "Leases", Noted)
    program = DrafterProgram(ToyDrafter(mixed(V, 1), V), DrafterConfig(max_connections=3))
    with serving(program) as server:
        for seed in range(4):
            target = ToyTarget(mixed(V, 1), V)
            with RemoteDrafter(server.address, target, deadline=20.0) as drafter:
                list(generate(target, drafter, (1,), Sampling(seed=seed, max_tokens=8), POLICY))
    assert len(times) > 8
    assert times == sorted(times)


def test_unauthenticated_peers_do_not_keep_a_verifier_out_of_a_place_that_is_free() -> None:
    """They came while somebody would have yielded; then a place became free by itself."""
    limits = PeerLimits(yield_seconds=0.2, lease_seconds=60.0, max_half_open=4)
    program = DrafterProgram(
        ToyDrafter(mixed(V, 1), V), DrafterConfig(max_connections=2, peer=limits)
    )
    with serving(program) as server:
        first, second = Caller(server.address), Caller(server.address)
        assert first.agree() and second.agree()
        time.sleep(0.3)
        unauthenticated = [socket.create_connection(server.address) for _ in range(4)]
        until(lambda: len(program.connections) == 6)
        first.close()
        until(lambda: len(program.connections) == 5)
        third = Caller(server.address)
        assert third.agree()
        assert not program.counters.rejected[Rejection.FULL]
        assert not any(program.counters.ended_leases.values())
        for each in (*unauthenticated, second, third):
            each.close()
