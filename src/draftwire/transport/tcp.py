"""TCP: a blocking channel with deadlines for the verifier, and queued sockets for the drafter.

Deadlines are seconds of ``time.monotonic``. Nothing here knows what the bytes mean.
"""

from __future__ import annotations

import errno
import ipaddress
import select
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from draftwire.errors import ConfigurationError, TransportError
from draftwire.transport.channel import Part
from draftwire.transport.connect import dial
from draftwire.transport.queue import OutQueue, joined
from draftwire.transport.times import seconds_until, wait_until

BACKLOG: Final = 64
KEEP_ALIVE: Final = {  # option: seconds, or a number of probes; a peer without power is noticed
    "TCP_KEEPIDLE": 30,  # in a minute, where the system's own defaults take two hours
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 60_000,  # milliseconds: the same for bytes without acknowledgement
}


EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Address(NamedTuple):
    """Where a drafter listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read HOST:PORT, an IPv6 host in brackets; ConfigurationError says what to write."""
        host, colon, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ConfigurationError(f"write an IPv6 address in brackets: [{host}]:{port}")
        if not (colon and host and port.isascii() and port.isdigit() and int(port) < 1 << 16):
            raise ConfigurationError(f"'{text}' is no HOST:PORT, for example 127.0.0.1:7711")
        return cls(host, int(port))

    def __str__(self) -> str:
        """Return HOST:PORT, an IPv6 host in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address; of names, only localhost counts."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class TcpChannel:
    """One connected socket, blocking up to a deadline.

    Every method raises TimeoutError past the deadline and ConnectionError when the connection has
    ended, and nothing else; after either of them the channel is of no more use.
    """

    def __init__(self, connected: socket.socket) -> None:
        """Take over a connected socket."""
        connected.setblocking(False)
        self._socket = connected
        self._readable = select.poll()
        self._readable.register(connected, select.POLLIN)
        self._writable = select.poll()
        self._writable.register(connected, select.POLLOUT)

    @classmethod
    def connect(cls, address: Address, deadline: float) -> TcpChannel:
        """Connect; as :func:`connected_to`."""
        return cls(connected_to(address, deadline))

    @property
    def raw_socket(self) -> socket.socket:
        """The socket, for its options."""
        return self._socket

    def send(self, parts: Sequence[Part], deadline: float) -> None:
        """Send all parts, in one call where the system takes them at once."""
        if seconds_until(deadline) <= 0:
            raise TimeoutError("the deadline has passed")
        try:
            left = self._send_now(joined(parts))
            if not left:
                return
            pending = OutQueue()
            pending.push(left)
            while not pending.flush(self._socket):
                wait_until(self._writable, deadline)
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionError(_reason(error)) from error

    def receive_into(self, buffer: memoryview, deadline: float) -> int:
        """Wait for bytes and put them into ``buffer``; returns how many, at least one."""
        try:
            while True:
                wait_until(self._readable, deadline)
                try:
                    count = self._socket.recv_into(buffer)
                    break
                except BlockingIOError:  # what was there failed the system's own checksum
                    continue
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionError(_reason(error)) from error
        if not count:
            raise ConnectionResetError("the peer closed the connection")
        return count

    def close(self) -> None:
        """Close; may be called twice. A ``receive_into`` that waits in another thread ends."""
        with suppress(OSError):  # it may have ended already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send_now(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Send what is one part, as all small messages are; returns what the system left."""
        if len(parts) != 1 or type(parts[0]) is not bytes:
            return parts
        try:
            sent = self._socket.send(parts[0])
        except BlockingIOError:
            return parts
        return () if sent == len(parts[0]) else (memoryview(parts[0])[sent:],)


def connected_to(address: Address, deadline: float) -> socket.socket:
    """Return a socket connected to one of the host's addresses, all of them before the deadline.

    Raises TransportError that names the address, TimeoutError included.
    """
    try:
        connected = dial(*address, deadline)
        prepare(connected)
        return connected
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that no host can have
        raise TransportError(
            f"no drafter can be reached at {address} ({_reason(error)}): start one there with"
            " draftwire serve, or correct the address"
        ) from error


def listen(host: str, port: int, *, guarded: bool = False) -> socket.socket:
    """Return a non-blocking listening socket; port 0 takes any free one.

    guarded: every peer has to authenticate itself. Raises TransportError: an address that others
    could reach without that (P20), a port in use, an address that is not this machine's.
    """
    if not host:
        raise TransportError("the host to listen on is empty: name an address, such as 127.0.0.1")
    if not guarded and not is_loopback(host):
        raise TransportError(
            f"{host} can be reached from other machines and this port authenticates no peer:"
            " give --psk-file FILE (draftwire keygen makes one), or --tls-cert, --tls-key and"
            " --tls-ca, or keep 127.0.0.1 and let ssh carry the port"
        )
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise TransportError(f"cannot listen on {host}: {_reason(error)}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise TransportError(
                f"port {port} on {host} is in use: stop what listens there, or choose another port"
                " (0 takes any free one)"
            ) from error
        raise TransportError(f"cannot listen on {host}:{port}: {_reason(error)}") from error
    return listener


def accept(listener: socket.socket) -> socket.socket | None:
    """Return the next waiting connection, non-blocking and without delay, or None.

    Raises OSError when the process or the system has nothing left to accept with (EXHAUSTED): who
    waits goes on waiting, so the listener stays readable.
    """
    while True:
        try:
            peer, _ = listener.accept()
        except OSError as error:  # none waits, or it went away again
            if error.errno in EXHAUSTED:
                raise
            return None
        try:
            peer.setblocking(False)
            prepare(peer)
        except OSError:  # it went away in between; the next one may be there still
            peer.close()
        else:
            return peer


def prepare(connected: socket.socket) -> None:
    """Let a connected socket send at once, and notice by itself that its peer is gone.

    The connection of a machine that lost power or its cable ends with an error after a minute of
    silence (RFC 9293, section 3.8.4), where the system lets that be chosen (KEEP_ALIVE).
    """
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        option = getattr(socket, name, None)  # not every system has them all
        if option is not None:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)


def bound_address(listener: socket.socket) -> Address:
    """Return where a socket listens."""
    name = listener.getsockname()
    return Address(str(name[0]), int(name[1]))


def free_address() -> Address:
    """Return a loopback address that is free now; it may be taken a moment later."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return bound_address(probe)


def _reason(error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError):
        return "no name that a host can have"
    return (error.strerror or str(error) or type(error).__name__).lower()
