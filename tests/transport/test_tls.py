"""Mutual TLS: who is let in, what is said to whom is not, and deadlines of slow handshakes."""

from __future__ import annotations

import contextlib
import dataclasses
import selectors
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest

from draftwire.errors import (
    ConfigurationError,
    ProtocolError,
    ProtocolErrorCode,
    TransportError,
)
from draftwire.transport.queue import OutQueue
from draftwire.transport.tcp import accept, bound_address, listen
from draftwire.transport.tls import Tls, TlsChannel, TlsFiles, TlsStream
from testing.harness.certificates import FOLDER, tls_files


def soon(seconds: float = 10.0) -> float:
    return time.monotonic() + seconds


class Server:
    """Accepts one TLS connection without ever blocking, as the drafter does."""

    def __init__(self, files: TlsFiles) -> None:
        self.listener = listen("127.0.0.1", 0)
        self.tls = Tls(files, server=True)
        self.stream: TlsStream | None = None
        self.error: OSError | None = None
        self.thread = threading.Thread(target=self.shake_hands)
        self.thread.start()

    def shake_hands(self) -> None:
        while (peer := accept(self.listener)) is None:
            time.sleep(0.001)
        try:
            stream = self.tls.accept(peer)
        except OSError as error:  # it has gone already
            self.error = error
            peer.close()
            return
        with selectors.DefaultSelector() as selector:
            while not stream.handshake_done:
                selector.register(stream.socket, stream.wants)
                selector.select(5)
                selector.unregister(stream.socket)
                try:
                    stream.do_handshake()
                except OSError as error:
                    self.error = error
                    stream.socket.close()
                    return
        self.stream = stream

    def close(self) -> None:
        self.thread.join(10)
        self.listener.close()
        if self.stream is not None:
            self.stream.socket.close()


@contextlib.contextmanager
def server(files: TlsFiles):
    running = Server(files)
    try:
        yield running
    finally:
        with contextlib.suppress(OSError):  # so that it ends without a client
            socket.create_connection(bound_address(running.listener)).close()
        running.close()


def dial(running: Server, files: TlsFiles, deadline: float | None = None) -> TlsChannel:
    address = bound_address(running.listener)
    return Tls(files, server=False).connect(address, deadline or soon())


LET_IN = {
    "one authority": (("drafter",), ("verifier",)),
    "each other's own certificate": (("stranger", "verifier"), ("verifier", "stranger")),
    "an authority and fingerprints": (
        ("elsewhere", "authority", "verifier"),
        ("verifier", "authority", "elsewhere"),
    ),
}


@pytest.mark.parametrize("name", LET_IN)
def test_who_is_trusted_is_let_in_and_bytes_go_both_ways(name: str, tmp_path: Path) -> None:
    theirs, ours = LET_IN[name]
    with server(tls_files(tmp_path, *theirs)) as running:
        channel = dial(running, tls_files(tmp_path, *ours))
        running.thread.join(10)
        stream = running.stream
        assert stream is not None
        assert channel.raw_socket.version() == "TLSv1.3"  # type: ignore[attr-defined]
        large = bytes(range(256)) * 20_000
        parts = [b"head", memoryview(large), b"", bytearray(b"tail")]
        sender = threading.Thread(target=lambda: channel.send(parts, soon()))
        sender.start()
        assert received(stream, len(large) + 8) == b"head" + large + b"tail"
        sender.join()
        queue = OutQueue()
        queue.push([large, b"end"])
        got = bytearray()
        store = memoryview(bytearray(5003))
        while len(got) < len(large) + 3:
            stream.flush(queue)
            got += store[: channel.receive_into(store, soon())]
        assert bytes(got) == large + b"end" and not queue
        channel.close()


def received(stream: TlsStream, size: int) -> bytes:
    got, store = bytearray(), memoryview(bytearray(70_000))
    while len(got) < size:
        try:
            got += store[: stream.receive_into(store)]
        except BlockingIOError:
            time.sleep(0.001)
    assert not stream.pending
    return bytes(got)


KEPT_OUT = {
    "drafter of another authority": (("stranger", "authority"), ("verifier", "authority")),
    "drafter of another name": (("elsewhere", "authority"), ("verifier", "authority")),
    "drafter of another fingerprint": (
        ("drafter", "authority"),
        ("verifier", "authority", "elsewhere"),
    ),
    "a verifier as drafter": (("verifier", "authority"), ("verifier", "authority")),
}


@pytest.mark.parametrize("name", KEPT_OUT)
def test_a_drafter_that_is_not_the_right_one_is_refused(name: str, tmp_path: Path) -> None:
    theirs, ours = KEPT_OUT[name]
    with server(tls_files(tmp_path, *theirs)) as running:
        with pytest.raises(ProtocolError, match="certificate that is not trusted") as caught:
            dial(running, tls_files(tmp_path, *ours))
        assert caught.value.code is ProtocolErrorCode.AUTHENTICATION_FAILED


TURNED_AWAY = {
    "of another authority": (("drafter", "authority"), ("stranger", "authority")),
    "of another fingerprint": (("drafter", "authority", "elsewhere"), ("verifier", "authority")),
    "a drafter as verifier": (("drafter", "authority"), ("drafter", "authority")),
}


@pytest.mark.parametrize("name", TURNED_AWAY)
def test_a_verifier_that_is_not_trusted_is_turned_away(name: str, tmp_path: Path) -> None:
    """TLS 1.3 tells a client only with the first byte it would read."""
    theirs, ours = TURNED_AWAY[name]
    with server(tls_files(tmp_path, *theirs)) as running:
        channel = dial(running, tls_files(tmp_path, *ours))
        with pytest.raises(ConnectionError):
            channel.receive_into(memoryview(bytearray(8)), soon())
        channel.close()
        running.thread.join(10)
        assert isinstance(running.error, ssl.SSLError) and running.stream is None


def test_without_a_certificate_or_with_an_old_version_nobody_comes_in(tmp_path: Path) -> None:
    for old in (False, True):
        with server(tls_files(tmp_path, "drafter")) as running:
            context = ssl.create_default_context(cafile=str(FOLDER / "authority.pem"))
            if old:
                context.maximum_version = ssl.TLSVersion.TLSv1_2
            with (
                socket.create_connection(bound_address(running.listener)) as plain,
                pytest.raises(OSError),
                context.wrap_socket(plain, server_hostname="localhost") as wrapped,
            ):
                assert wrapped.recv(1)  # never reached with a byte
                raise ConnectionResetError
            running.thread.join(10)
            assert isinstance(running.error, ssl.SSLError)


def test_a_drafter_without_tls_is_named(tmp_path: Path) -> None:
    listener = listen("127.0.0.1", 0)
    listener.setblocking(True)

    def answer() -> None:
        peer, _ = listener.accept()
        peer.recv(100)
        peer.sendall(b"DWIR" + bytes(60))
        peer.close()

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(ProtocolError, match="must be started with --tls-cert"):
        Tls(tls_files(tmp_path, "verifier"), server=False).connect(bound_address(listener), soon())
    thread.join()
    listener.close()


def test_a_handshake_that_stalls_ends_at_its_deadline(tmp_path: Path) -> None:
    listener = listen("127.0.0.1", 0)  # it takes the connection and says nothing
    began = time.monotonic()
    with pytest.raises(TransportError, match="no TLS with"):
        Tls(tls_files(tmp_path, "verifier"), server=False).connect(
            bound_address(listener), began + 0.2
        )
    assert 0.2 <= time.monotonic() - began < 2.0
    listener.close()
    with pytest.raises(TransportError, match="draftwire serve"):
        Tls(tls_files(tmp_path, "verifier"), server=False).connect(bound_address_of(), soon())


def bound_address_of():
    listener = listen("127.0.0.1", 0)
    address = bound_address(listener)
    listener.close()
    return address


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    good = tls_files(tmp_path, "drafter")
    junk = tmp_path / "junk.pem"
    junk.write_text("no certificate")
    junk.chmod(0o600)
    for changes, says in (
        ({"certificate": junk}, "no certificate with its key"),
        ({"key": junk}, "no certificate with its key"),
        ({"key": tmp_path / "verifier.key"}, "no certificate with its key"),
        ({"trusted": junk}, "holds no certificates"),
        ({"trusted": tmp_path / "missing.pem"}, "holds no certificates"),
        ({"key": tmp_path / "missing.key"}, "cannot be read"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            Tls(dataclasses.replace(good, **changes), server=True)
    (tmp_path / "drafter.key").chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        Tls(good, server=True)
    with pytest.raises(ConfigurationError, match="32 bytes"):
        dataclasses.replace(good, fingerprints=(b"short",))
