"""Going away: no session begins, open ones finish, then every verifier hears of it; counters."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from typing import Any

import pytest

from draftwire.drafter.counters import Rejection
from draftwire.drafter.limits import PeerLimits
from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.errors import ProtocolErrorCode
from draftwire.session.reasons import DropReason
from draftwire.transport.tcp import Address
from draftwire.verifier.emission import Kind
from draftwire.verifier.generate import generate
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.miss import MissReason
from draftwire.verifier.remote import RemoteDrafter
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from testing.harness.servers import ThreadedServer, serving
from testing.toys.models import ToyDrafter, ToyTarget, mixed

V = 11
POLICY = ProposalPolicy(Layout.DENSE, 4, 1.0)


def served(config: DrafterConfig | None = None) -> AbstractContextManager[ThreadedServer[Any]]:
    return serving(DrafterProgram(ToyDrafter(mixed(V, 1), V), config or DrafterConfig()))


def target() -> ToyTarget:
    return ToyTarget(mixed(V, 1), V)


def text(drafter: RemoteDrafter, tokens: int, seed: int = 1):  # type: ignore[no-untyped-def]
    return generate(target(), drafter, (1,), Sampling(seed=seed, max_tokens=tokens), POLICY)


def test_open_sessions_finish_and_new_ones_are_declined() -> None:
    with (
        served() as server,
        RemoteDrafter(server.address, target(), deadline=20.0) as drafter,
    ):
        alone = [e.token for e in text(drafter, 60)]
        running = text(drafter, 60)
        begun = [next(running) for _ in range(10)]
        assert not server.draining
        server.drain(60.0)
        while not server.program.draining:
            time.sleep(0.01)
        late = text(drafter, 10, seed=5)
        assert {e.kind for e in late} == {Kind.TARGET_ONLY}
        assert late.report.misses[DropReason.DECLINED_SHUTTING_DOWN] >= 1
        assert server.thread.is_alive() and server.draining
        whole = [*begun, *running]
        assert [e.token for e in whole] == alone  # nothing of its drafting was lost
        assert not running.report.misses
        late.close()
        server.thread.join(10)
        assert not server.thread.is_alive()


def test_a_drain_that_takes_too_long_ends_and_the_text_goes_on() -> None:
    with (
        served() as server,
        RemoteDrafter(server.address, target(), deadline=20.0) as drafter,
    ):
        running = text(drafter, 80)
        [next(running) for _ in range(10)]
        server.drain(0.2)
        server.thread.join(10)
        assert not server.thread.is_alive()
        assert len(list(running)) == 70
        misses = running.report.misses
        assert misses[DropReason.DECLINED_SHUTTING_DOWN] == 1
        assert misses[MissReason.NO_CONNECTION] > 1
        assert drafter.counters.remote_errors[ProtocolErrorCode.SHUTTING_DOWN] == 1
        assert drafter.counters.lost == 1


def test_an_idle_server_drains_at_once_and_the_second_request_stops() -> None:
    with (
        served() as server,
        RemoteDrafter(server.address, target(), deadline=20.0) as drafter,
    ):
        drafter.connect()
        server.drain(60.0)
        server.thread.join(10)
        assert not server.thread.is_alive()
    with (
        served() as server,
        RemoteDrafter(server.address, target(), deadline=20.0) as drafter,
    ):
        running = text(drafter, 50)
        next(running)
        server.drain(60.0)
        server.drain(60.0)
        server.thread.join(10)
        assert not server.thread.is_alive()
        running.close()


PROGRAM = """
from draftwire.drafter.program import DrafterConfig
from draftwire.drafter.server import serve
from testing.toys.models import ToyDrafter, mixed
serve(ToyDrafter(mixed(11, 1), 11), DrafterConfig(), ready=lambda a: print(a, flush=True),
      drain_seconds=60.0)
print("ended", flush=True)
"""


def test_sigterm_waits_for_the_text_that_is_being_made() -> None:
    child = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        address = Address.parse(child.stdout.readline().strip())
        with RemoteDrafter(address, target(), deadline=20.0) as drafter:
            running = text(drafter, 60)
            next(running)
            child.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            assert child.poll() is None
            list(running)
            assert not running.report.misses
        assert child.stdout.readline().strip() == "ended"
        assert child.wait(20) == 0
    finally:
        child.kill()
        child.wait()


def test_both_sides_count_the_same() -> None:
    program = DrafterProgram(ToyDrafter(mixed(V, 1), V), DrafterConfig())
    with LocalDrafter(program, target()) as drafter:
        for seed in range(3):
            list(generate(target(), drafter, (1,), Sampling(seed=seed, max_tokens=30), POLICY))
        total, theirs, mine = drafter.totals.sum(), program.counters, drafter.counters
        assert total.tokens == 90
        assert theirs.proposals == total.drafted_rounds == mine.round_trip.count
        assert theirs.drafts == total.drafted == sum(total.proposed_by_position)
        assert theirs.sessions == 3 and program.open_sessions == 0
        assert theirs.batches.count == theirs.proposals == theirs.batches.counts[0]
        assert theirs.connections == mine.connections == 1 and theirs.ended == 0
        assert mine.sent == total.traffic.sent < theirs.received
        assert mine.received == total.traffic.received < theirs.sent
        assert drafter.totals.texts == 3 and drafter.totals.running == 0
    assert theirs.ended == 1


def test_what_an_unauthenticated_peer_costs_is_counted() -> None:
    config = DrafterConfig(max_connections=1, peer=PeerLimits(max_half_open=1))
    with served(config) as server, socket.create_connection(server.address) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        while peer.recv(4096):
            continue
        with socket.create_connection(server.address), socket.create_connection(server.address):
            counters, deadline = server.program.counters, time.monotonic() + 5
            while not counters.rejected[Rejection.EVICTED]:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        assert sum(counters.local_errors.values()) == 1


def test_the_log_tells_of_connections_and_drains_and_never_of_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "draftwire")
    with (
        served() as server,
        RemoteDrafter(server.address, target(), deadline=20.0) as drafter,
    ):
        running = text(drafter, 40)
        next(running)
        server.drain(0.1)
        server.thread.join(10)
        list(running)
    events = [getattr(record, "draftwire_fields", {}).get("event") for record in caplog.records]
    wanted = ["connection_opened", "drafter_found", "draining", "ended", "connection_closed"]
    assert set(wanted) <= set(events)
    assert {"drafter_lost", "proposal_lost", "drafter_away"} <= set(events)
    for record in caplog.records:
        fields = record.draftwire_fields  # type: ignore[attr-defined]
        assert not {"tokens", "token", "text", "prompt"} & set(fields)
        assert str(list(running.tokens)[:3])[1:-1] not in record.getMessage()
