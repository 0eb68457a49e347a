"""Mutual TLS 1.3 with the standard library: both sides show a certificate that the other trusts."""

from __future__ import annotations

import hashlib
import select
import socket
import ssl
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from draftwire.errors import (
    ConfigurationError,
    ProtocolError,
    ProtocolErrorCode,
    TransportError,
)
from draftwire.transport.channel import Part, UntrustedError
from draftwire.transport.keys import read_private
from draftwire.transport.queue import OutQueue, joined
from draftwire.transport.stream import READ, WRITE
from draftwire.transport.tcp import Address, connected_to
from draftwire.transport.times import seconds_until, wait_until

FINGERPRINT_BYTES: Final = 32
_NO_TLS: Final = bytes.fromhex("15030300020246")  # alert record: fatal, protocol_version


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What one side needs for mutual TLS: PEM files.

    certificate, key: this side's own, the key readable by its owner alone. trusted: certificates of
    the authorities that sign the peers', or the peers' own certificates. fingerprints: SHA-256 of
    the only certificates that are taken; none = any that is trusted. A verifier without them asks
    besides that the drafter's certificate names the host it connects to.
    """

    certificate: Path
    key: Path
    trusted: Path
    fingerprints: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        """Refuse fingerprints that are none."""
        if any(len(each) != FINGERPRINT_BYTES for each in self.fingerprints):
            raise ConfigurationError("a fingerprint is the SHA-256 of a certificate: 32 bytes")


def parse_fingerprint(text: str) -> bytes:
    """Read the SHA-256 of a certificate: 64 hexadecimal digits, with or without colons."""
    try:
        fingerprint = bytes.fromhex(text.replace(":", ""))
    except ValueError:
        fingerprint = b""
    if len(fingerprint) != FINGERPRINT_BYTES:
        raise ConfigurationError(
            "a fingerprint is 64 hexadecimal digits, as openssl x509 -noout -fingerprint"
            " -sha256 -in FILE prints them"
        )
    return fingerprint


class Tls:
    """The files of one side, read and checked; makes the streams and channels of connections."""

    def __init__(self, files: TlsFiles, *, server: bool) -> None:
        """Read the files; ConfigurationError names the one that is at fault."""
        protocol = ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT
        self._context = ssl.SSLContext(protocol)
        self._fingerprints = frozenset(files.fingerprints)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._context.check_hostname = not server and not files.fingerprints
        self._context.verify_mode = ssl.CERT_REQUIRED
        # A peer's own certificate among the trusted ones is trusted under any signature.
        self._context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if server:
            self._context.num_tickets = 0  # every connection shows its certificate
        self._load(files)

    def accept(self, peer: socket.socket) -> TlsStream:
        """Take over an accepted non-blocking socket; its handshake is still to be done."""
        wrapped = self._context.wrap_socket(peer, server_side=True, do_handshake_on_connect=False)
        return TlsStream(wrapped, self)

    def connect(self, address: Address, deadline: float) -> TlsChannel:
        """Connect and do the handshake.

        Raises ProtocolError AUTHENTICATION_FAILED (another certificate, or no TLS there) and
        TransportError (no listener, or too slow).
        """
        plain = connected_to(address, deadline)
        try:
            wrapped = self._context.wrap_socket(
                plain, server_hostname=address.host, do_handshake_on_connect=False
            )
        except (OSError, ValueError) as error:
            plain.close()
            raise TransportError(f"no TLS with {address}: {tls_reason(error)}") from error
        try:
            wrapped.settimeout(max(seconds_until(deadline), 0.001))
            wrapped.do_handshake()
            self.check_peer(wrapped)
            return TlsChannel(wrapped)
        except ssl.SSLError as error:
            wrapped.close()
            code = ProtocolErrorCode.AUTHENTICATION_FAILED
            raise ProtocolError(code, _advice(address, error)) from error
        except OSError as error:
            wrapped.close()
            raise TransportError(f"no TLS with {address}: {tls_reason(error)}") from error

    def check_peer(self, connected: ssl.SSLSocket) -> None:
        """Raise ssl.SSLError unless the peer's certificate is one of the fingerprints'."""
        shown = connected.getpeercert(binary_form=True) or b""
        if self._fingerprints and hashlib.sha256(shown).digest() not in self._fingerprints:
            raise ssl.SSLCertVerificationError("another certificate than the fingerprints say")

    def _load(self, files: TlsFiles) -> None:
        read_private(files.key, "TLS key")
        try:
            self._context.load_cert_chain(files.certificate, files.key, password="")
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"{files.certificate} and {files.key} are no certificate with its key, in PEM and"
                f" without a password: {tls_reason(error)}"
            ) from error
        try:
            self._context.load_verify_locations(cafile=files.trusted)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"{files.trusted} holds no certificates in PEM: {tls_reason(error)}"
            ) from error


class TlsStream:
    """An accepted connection under TLS, non-blocking; see :class:`draftwire.transport.stream`."""

    def __init__(self, wrapped: ssl.SSLSocket, tls: Tls) -> None:
        """Made by :meth:`Tls.accept`."""
        self.socket: socket.socket = wrapped
        self.handshake_done = False
        self.wants = READ
        self.peer_identity = b""
        self._wrapped = wrapped
        self._tls = tls

    @property
    def pending(self) -> bool:
        """Whether received bytes wait that the selector does not know of."""
        return self.handshake_done and self._wrapped.pending() > 0

    def do_handshake(self) -> None:
        """Go on with the handshake; ``handshake_done`` and ``wants`` say where it stands."""
        try:
            self._wrapped.do_handshake()
        except ssl.SSLWantReadError:
            self.wants = READ
        except ssl.SSLWantWriteError:
            self.wants = WRITE
        except ssl.SSLError as error:
            if error.reason == "WRONG_VERSION_NUMBER":
                # OpenSSL says nothing to a peer that speaks no TLS at all; so the peer is told.
                socket.socket.send(self._wrapped, _NO_TLS)
            raise
        else:
            self._tls.check_peer(self._wrapped)
            shown = self._wrapped.getpeercert(binary_form=True) or b""
            self.peer_identity = hashlib.sha256(shown).digest()
            self.handshake_done, self.wants = True, READ

    def receive_into(self, buffer: memoryview) -> int:
        """Return how many bytes came, 0 at the end; BlockingIOError when there are none yet."""
        try:
            return self._wrapped.recv_into(buffer)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def flush(self, queue: OutQueue) -> bool:
        """Send what the socket takes; returns whether the queue is empty now."""
        while queue:
            try:
                queue.drop(self._wrapped.send(queue.head()[0]))
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
        return True


class TlsChannel:
    """One connected socket under TLS, blocking up to a deadline.

    Raises as :class:`~draftwire.transport.tcp.TcpChannel` does, and UntrustedError.
    """

    def __init__(self, connected: ssl.SSLSocket) -> None:
        """Take over a socket whose handshake is done."""
        connected.setblocking(False)
        self._socket = connected
        self._turn = threading.Lock()  # OpenSSL reads and writes in one thread at a time
        self._readable = select.poll()
        self._readable.register(connected, select.POLLIN)
        self._writable = select.poll()
        self._writable.register(connected, select.POLLOUT)

    @property
    def raw_socket(self) -> ssl.SSLSocket:
        """The socket, for its options."""
        return self._socket

    def receive_into(self, buffer: memoryview, deadline: float) -> int:
        """Wait for bytes and put them into ``buffer``; returns how many, at least one."""
        try:
            if seconds_until(deadline) <= 0:
                raise TimeoutError("the deadline has passed")
            count = None
            while count is None:
                count = self._received(buffer)  # first: OpenSSL may hold what poll knows nothing of
                if count is None:
                    wait_until(self._readable, deadline)
        except TimeoutError:
            raise
        except ssl.SSLError as error:  # TLS 1.3 refuses a client only now
            raise UntrustedError(
                f"TLS was ended there ({tls_reason(error)}): it must trust this side's certificate"
                " in its --tls-ca"
            ) from error
        except OSError as error:
            raise ConnectionError(tls_reason(error)) from error
        if not count:
            raise ConnectionResetError("the peer closed the connection")
        return count

    def send(self, parts: Sequence[Part], deadline: float) -> None:
        """Send all parts in order."""
        try:
            for part in joined(parts):
                view = memoryview(part).cast("B")
                while view.nbytes:
                    if seconds_until(deadline) <= 0:
                        raise TimeoutError("the deadline has passed")
                    sent = self._sent(view)
                    view = view[sent:]
                    if not sent:
                        wait_until(self._writable, deadline)
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionError(tls_reason(error)) from error

    def close(self) -> None:
        """Close; may be called twice. A ``receive_into`` that waits in another thread ends."""
        with suppress(OSError):  # it may have ended already
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        with self._turn:
            self._socket.close()

    def _received(self, buffer: memoryview) -> int | None:
        """What has come, 0 at the end; None where it has to be waited for."""
        with self._turn:
            try:
                return self._socket.recv_into(buffer)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return None

    def _sent(self, view: memoryview) -> int:
        """How much the socket took."""
        with self._turn:
            try:
                return self._socket.send(view)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return 0


def tls_reason(error: Exception) -> str:
    """Return what went wrong, in OpenSSL's or the system's own words, on one line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        said = getattr(error, "verify_message", "") or str(error)
    elif isinstance(error, ssl.SSLError):
        said = (error.reason or str(error)).replace("_", " ").lower()
    elif isinstance(error, OSError):
        said = (error.strerror or str(error) or type(error).__name__).lower()
    else:
        said = str(error)
    return " ".join(said.split())


def _advice(address: Address, error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the drafter at {address} shows a certificate that is not trusted here"
            f" ({tls_reason(error)}): its authority, or itself, belongs into --tls-ca, and it must"
            " name this host or be given by --tls-fingerprint"
        )
    return (
        f"no TLS with the drafter at {address} ({tls_reason(error)}): it must be started with"
        " --tls-cert, --tls-key and --tls-ca too"
    )
