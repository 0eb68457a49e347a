"""A drafter that others can reach: keys and certificates end to end, and what a peer may cost."""

from __future__ import annotations

import logging
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftwire.drafter.limits import Allowance, PeerLimits
from draftwire.drafter.log import DrafterLog
from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.drafter.server import DrafterServer, serve
from draftwire.errors import (
    ConfigurationError,
    ProtocolError,
    ProtocolErrorCode,
    RemoteError,
    TransportError,
)
from draftwire.session.proposal import Received
from draftwire.session.verifier_session import VerifierSession
from draftwire.transport.keys import PresharedKey
from draftwire.transport.security import Security
from draftwire.transport.tcp import Address
from draftwire.transport.tls import TlsFiles
from draftwire.verifier.generate import generate
from draftwire.verifier.remote import RemoteDrafter
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import Complete, ProposalPolicy
from draftwire.wire.registry import Layout, Status
from testing.harness.certificates import tls_files
from testing.harness.servers import serving as on_loopback
from testing.harness.verifiers import HandVerifier
from testing.toys.models import ToyDrafter, ToyTarget, mixed

V = 11
CODE = ProtocolErrorCode
POLICY = ProposalPolicy(Layout.SPARSE, 4, 1.0, support=5)
KEY = PresharedKey(bytes(range(32)))
OTHER = PresharedKey(bytes(range(1, 33)))


@contextmanager
def serving(security: Security | None = None, **changes: Any) -> Iterator[DrafterServer[Any]]:
    config = DrafterConfig(**changes)
    engine = ToyDrafter(mixed(V, 1), V)
    key = security.secret if isinstance(security, PresharedKey) else b""
    with on_loopback(DrafterProgram(engine, config, key=key), security) as server:
        yield server
    assert not engine.contexts


def remote(server: DrafterServer[Any], security: Security | None, **options: Any) -> RemoteDrafter:
    return RemoteDrafter(
        server.address,
        ToyTarget(mixed(V, 1), V),
        security=security,
        deadline=20.0,
        connect_timeout=10.0,
        **options,
    )


def text(drafter: RemoteDrafter | None) -> list[int]:
    target = ToyTarget(mixed(V, 1), V)
    run = generate(target, drafter, (1,), Sampling(seed=1, max_tokens=30), POLICY)
    list(run)
    assert drafter is None or not run.report.misses
    return list(run.tokens)


def received_all(peer: socket.socket, seconds: float = 10.0) -> bytes:
    peer.settimeout(seconds)
    got = bytearray()
    try:
        while piece := peer.recv(4096):
            got += piece
    except ConnectionError:
        pass
    return bytes(got)


# who is let in


def test_the_text_is_the_same_over_every_kind_of_connection(tmp_path: Path) -> None:
    verifier, drafter = tls_files(tmp_path, "verifier"), tls_files(tmp_path, "drafter")
    texts = []
    for theirs, ours in ((None, None), (KEY, KEY), (drafter, verifier)):
        with serving(theirs) as server, remote(server, ours) as client:
            texts.append(text(client))
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize(
    ("theirs", "ours", "field", "logged"),
    [
        (KEY, OTHER, "proof", "another key"),
        (KEY, None, "nonce", "where a CHALLENGE is due (was the peer given the key?)"),
        (None, KEY, "", "no handshake is due (was this side given the key?)"),
    ],
    ids=["another key", "the drafter's alone", "the verifier's alone"],
)
def test_key_wrong_or_on_one_side_only_is_clear_on_both_ends(
    theirs: PresharedKey | None,
    ours: PresharedKey | None,
    field: str,
    logged: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving(theirs) as server, remote(server, ours) as client:
        began = time.monotonic()
        with pytest.raises(RemoteError) as caught:
            client.connect()
        assert time.monotonic() - began < 5.0
        assert (caught.value.code, caught.value.field) == (CODE.AUTHENTICATION_FAILED, field)
        while not caplog.records and time.monotonic() - began < 5.0:
            time.sleep(0.01)
        request = client.open((1,), 1)
        assert "AUTHENTICATION_FAILED" in str(request.propose(POLICY))  # and a round goes on
        request.close()
    first = caplog.records[0].getMessage()
    assert "AUTHENTICATION_FAILED" in first and logged in first and "127.0.0.1:" in first
    for key in (KEY, OTHER):
        assert key.secret.hex() not in caplog.text and repr(key.secret)[2:-1] not in caplog.text


def test_certificates_wrong_or_on_one_side_only_are_clear_on_both_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    drafter, verifier = tls_files(tmp_path, "drafter"), tls_files(tmp_path, "verifier")
    stranger = tls_files(tmp_path, "stranger", "authority")
    impostor = tls_files(tmp_path, "stranger", "authority")
    for theirs, ours, error, says in (
        (drafter, stranger, ProtocolError, "TLS was ended there"),
        (impostor, verifier, ProtocolError, "not trusted here"),
        (drafter, None, ProtocolError, "the peer speaks TLS"),
        (drafter, KEY, ProtocolError, "the peer speaks TLS"),
        (None, verifier, ProtocolError, "must be started with --tls-cert"),
        (KEY, verifier, ProtocolError, "must be started with --tls-cert"),
    ):
        caplog.clear()
        with serving(theirs) as server, remote(server, ours) as client:
            began = time.monotonic()
            with pytest.raises(error, match=says):
                client.connect()
            assert time.monotonic() - began < 5.0
            while not caplog.records and time.monotonic() - began < 5.0:
                time.sleep(0.01)
            assert "was turned away" in caplog.text


def test_an_address_that_others_can_reach_is_not_listened_on_without_either(
    tmp_path: Path,
) -> None:
    engine = ToyDrafter(mixed(V, 1), V)
    with pytest.raises(TransportError, match=r"--psk-file FILE.*--tls-cert"):
        serve(engine, DrafterConfig(), host="0.0.0.0")
    ready: list[Address] = []

    def stop(address: Address) -> None:
        ready.append(address)
        signal.raise_signal(signal.SIGTERM)

    for security in (KEY, tls_files(tmp_path, "drafter")):
        serve(engine, DrafterConfig(), host="0.0.0.0", security=security, ready=stop)
    assert [address.host for address in ready] == ["0.0.0.0"] * 2


# what an unauthenticated peer costs


def test_who_does_not_agree_in_time_is_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Silent from the start, silent in the handshake, and silent in TLS: one bounded time each."""
    limits = PeerLimits(handshake_seconds=0.3)
    for security in (None, KEY, tls_files(tmp_path, "drafter")):
        with serving(security, peer=limits) as server:
            began = time.monotonic()
            with (
                socket.create_connection(server.address) as silent,
                socket.create_connection(server.address) as slow,
            ):
                slow.send(b"\x16" if isinstance(security, TlsFiles) else b"D")
                assert received_all(silent) == received_all(slow) == b""
            assert 0.25 <= time.monotonic() - began < 3.0
    assert "did not agree on HELLO in time" in caplog.text


def test_a_verifier_that_has_agreed_may_be_silent_for_longer() -> None:
    with serving(KEY, peer=PeerLimits(handshake_seconds=0.2)) as server, remote(server, KEY) as c:
        c.connect()
        time.sleep(0.5)
        text(c)
        assert c.counters.connections == 1


def test_half_open_connections_are_few_and_the_oldest_is_evicted() -> None:
    limits = PeerLimits(max_half_open=3, handshake_seconds=30.0)
    with serving(KEY, peer=limits, max_connections=4) as server:
        unauthenticated = [socket.create_connection(server.address) for _ in range(12)]
        for peer in unauthenticated[:9]:
            assert received_all(peer) == b""
        assert len(server.program.connections) <= 3
        with remote(server, KEY) as client:  # and a verifier comes in among them
            text(client)
        for peer in unauthenticated:
            peer.close()


def test_connections_that_have_agreed_are_not_evicted() -> None:
    with (
        serving(max_connections=2) as server,
        remote(server, None) as first,
        remote(server, None) as second,
    ):
        first.connect()
        second.connect()
        with socket.create_connection(server.address) as third:
            assert received_all(third) == b""
        text(first)
        text(second)


@pytest.mark.parametrize("security", [None, KEY], ids=["open", "keyed"])
def test_x40_what_an_unauthenticated_peer_reads_has_one_size(security: Security | None) -> None:
    sizes = set()
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x80\x04\x95" + bytes(40), bytes(range(256)) * 50):
        with serving(security) as server, socket.create_connection(server.address) as peer:
            peer.sendall(data)
            sizes.add(len(received_all(peer)))
    assert sizes == {72}


# what a verifier may cost


def agreed(server: DrafterServer[Any], **changes: Any) -> HandVerifier:
    """A verifier that does as it likes."""
    by_hand = HandVerifier.to(server.address, ToyTarget(mixed(V, 1), V), **changes)
    assert by_hand.agree()
    return by_hand


def test_too_many_frames_are_waited_for_and_not_refused() -> None:
    limits = PeerLimits(frames_per_second=200.0)
    with serving(peer=limits) as server:
        raw = agreed(server)
        began = time.monotonic()
        for nonce in range(400):
            raw.link.ping(nonce, 0.0)
        raw.flush()
        pongs = 0
        while pongs < 400:
            list(raw.read())
            pongs = sum(n for kind, n in raw.link.received.items() if kind.name == "PONG")
        raw.link.ping(9999, 0.0)  # sent while nothing is read: answered once the debt is paid
        raw.flush()
        assert raw.events(1)
        assert time.monotonic() - began > 0.8
        with remote(server, None) as other:  # no other waits
            asked = time.monotonic()
            text(other)
            assert time.monotonic() - asked < 5.0
        raw.close()


def test_too_many_bytes_are_waited_for() -> None:
    with serving(peer=PeerLimits(bytes_per_second=2000.0)) as server:
        raw = agreed(server)
        began = time.monotonic()
        for nonce in range(200):  # 5600 bytes: 2000 may come at once, and about as many are last
            raw.link.ping(nonce, 0.0)
        raw.flush()
        time.sleep(0.1)
        raw.link.ping(1000, 0.0)
        raw.flush()
        while not any(event.__class__.__name__ == "Alive" for event in raw.events(1)):
            pass
        assert time.monotonic() - began > 0.7
        raw.close()


def test_too_many_refused_messages_end_in_one_constant_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = PeerLimits(refusals_at_once=5, refusals_per_second=0.001)
    with serving(peer=limits) as server:
        raw = agreed(server)
        asking = VerifierSession(1, 0, (1, 2), 7, raw.link.agreed)
        good = asking.ask(POLICY, 0.0, 1.0)
        for session in range(1, 9):
            raw.link.send(replace(good, session=session, prefix_digest=b"x" * 16))
        raw.flush()
        events = raw.events(9)
        codes = [event.message.code for event in events if isinstance(event, Received)]
        assert codes == [CODE.WRONG_DIGEST] * 6
        assert events[-1].error.code is CODE.LIMIT_EXCEEDED
        assert not raw.heard()
        assert "LIMIT_EXCEEDED" in caplog.text
        raw.close()


def test_more_positions_in_flight_than_allowed_are_declined() -> None:
    with serving(peer=PeerLimits(max_positions=6), max_sessions=3, max_depth=4) as server:
        raw = agreed(server)
        assert raw.link.agreed is not None
        for session in (1, 2, 3):
            asking = VerifierSession(session, session - 1, (1, 2), 7, raw.link.agreed)
            raw.link.send(asking.ask(POLICY, 0.0, 1.0))
        raw.flush()
        statuses = sorted(
            event.message.status for event in raw.events(4) if isinstance(event.message, Complete)
        )
        assert statuses == [Status.OK, Status.NO_SLOT, Status.NO_SLOT]
        raw.close()


def test_sessions_over_the_limit_are_refused_and_the_others_go_on() -> None:
    with serving(max_sessions=1) as server:
        raw = agreed(server)
        assert raw.link.agreed is not None
        for session in (1, 2):
            asking = VerifierSession(session, 0, (1, 2), 7, raw.link.agreed)
            raw.link.send(asking.ask(POLICY, 0.0, 1.0))
        raw.flush()
        names = sorted(type(event.message).__name__ for event in raw.events(3))
        assert names == ["Complete", "ErrorMessage", "Reply"]
        raw.close()


def test_limits_under_which_nobody_could_be_served_are_refused() -> None:
    for name in ("handshake_seconds", "max_half_open", "frames_per_second", "refusals_at_once"):
        for value in (0, -1, float("inf"), float("nan")):
            with pytest.raises(ConfigurationError, match=name):
                PeerLimits(**{name: value})
    with pytest.raises(ConfigurationError, match="max_positions"):
        PeerLimits(max_positions=-1)
    allowance = Allowance(PeerLimits(frames_per_second=10.0, bytes_per_second=100.0), 0.0)
    assert allowance.read(10, 100, 0.0) == 0.0
    assert allowance.read(1, 50, 0.0) == 0.5


# logs

HOSTILE = ("%s%s%n", "{0.__class__}", "$(reboot)", "%(asctime)s", "\\x1b[2J", "../../etc/passwd")


@pytest.mark.parametrize("said", HOSTILE)
def test_what_a_peer_says_is_no_format_no_path_and_no_second_line(
    said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving() as server:
        with pytest.raises((AssertionError, RemoteError)):
            agreed(server, q_semantic=said)
        began = time.monotonic()
        while not caplog.records and time.monotonic() - began < 5.0:
            time.sleep(0.01)
    message = caplog.records[0].getMessage()
    assert said.encode("unicode_escape").decode() in message
    assert "\n" not in message and message.isprintable()


def test_the_log_of_refusals_is_bounded_escaped_and_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = iter([0.0, 0.1, 0.2, 1.5]).__next__
    log = DrafterLog(clock)
    for index in range(4):
        log.refused(
            "peer", "127.0.0.1", ProtocolError(CODE.BAD_FIELD, f"{index}\n\x1b[31m%s" + "x" * 5000)
        )
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[0].startswith("peer was turned away: BAD_FIELD 0\\n\\x1b[31m%s")
    assert lines[1].endswith("(and 2 more before)")
    assert all(len(line) < 300 and line.isprintable() for line in lines)
    assert all(record.levelno == logging.WARNING for record in caplog.records)
