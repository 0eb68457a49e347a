"""TCP: a blocking channel with deadlines for the verifier, and queued sockets for the drafter.

Deadlines are seconds of ``time.monotonic``. Nothing here knows what the bytes mean.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from draftwire.errors import TransportError
from draftwire.transport.channel import Part

PARTS_A_CALL: Final = 512  # under every system's IOV_MAX
BACKLOG: Final = 64


class Address(NamedTuple):
    """Where a drafter listens."""

    host: str
    port: int

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
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected

    @classmethod
    def connect(cls, address: Address, deadline: float) -> TcpChannel:
        """Connect; raises TransportError that names the address, TimeoutError included."""
        try:
            left = max(deadline - time.monotonic(), 0.001)
            return cls(socket.create_connection(address, timeout=left))
        except OSError as error:
            raise TransportError(
                f"no drafter can be reached at {address} ({_reason(error)}): start one there with"
                " draftwire serve, or correct the address"
            ) from error

    def send(self, parts: Sequence[Part], deadline: float) -> None:
        """Send all parts, in one call where the system takes them at once."""
        try:
            self._until(deadline)
            sent = self._socket.sendmsg(parts[:PARTS_A_CALL])
            if sent == sum(map(_size, parts)):
                return
            pending = OutQueue()
            pending.push(parts)
            pending.drop(sent)
            while pending:
                self._until(deadline)
                pending.drop(self._socket.sendmsg(pending.head()))
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionError(_reason(error)) from error

    def receive_into(self, buffer: memoryview, deadline: float) -> int:
        """Wait for bytes and put them into ``buffer``; returns how many, at least one."""
        try:
            self._until(deadline)
            count = self._socket.recv_into(buffer)
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionError(_reason(error)) from error
        if not count:
            raise ConnectionResetError("the peer closed the connection")
        return count

    def close(self) -> None:
        """Close; may be called twice."""
        self._socket.close()

    def _until(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline has passed")
        self._socket.settimeout(left)


class OutQueue:
    """Parts that wait to be sent, in order, kept as they are until the system took them."""

    def __init__(self) -> None:
        """Begin empty."""
        self._parts: deque[memoryview] = deque()
        self.size = 0

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._parts)

    def push(self, parts: Sequence[Part]) -> None:
        """Queue parts; the caller must not change their bytes any more."""
        for part in parts:
            view = memoryview(part).cast("B")
            if view.nbytes:
                self._parts.append(view)
                self.size += view.nbytes

    def head(self) -> list[memoryview]:
        """Return the parts that go next into one ``sendmsg``."""
        if len(self._parts) <= PARTS_A_CALL:
            return list(self._parts)
        return [self._parts[index] for index in range(PARTS_A_CALL)]

    def drop(self, sent: int) -> None:
        """Forget the first ``sent`` bytes; they are the system's now."""
        self.size -= sent
        while sent:
            part = self._parts.popleft()
            if sent < part.nbytes:
                self._parts.appendleft(part[sent:])
                return
            sent -= part.nbytes

    def flush(self, peer: socket.socket) -> bool:
        """Send what a non-blocking socket takes; returns whether the queue is empty now.

        Raises OSError when the connection has ended.
        """
        while self._parts:
            try:
                self.drop(peer.sendmsg(self.head()))
            except BlockingIOError:
                return False
        return True


def listen(host: str, port: int) -> socket.socket:
    """Return a non-blocking listening socket on a loopback address; port 0 takes any free one.

    Raises TransportError: an address that others could reach (there is no authentication yet), a
    port in use, an address that is not this machine's.
    """
    if not is_loopback(host):
        raise TransportError(
            f"{host} can be reached from other machines and this port asks nobody who they are:"
            " listen on 127.0.0.1 and let ssh carry the port"
        )
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
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
    """Return the next waiting connection, non-blocking and without delay, or None."""
    try:
        peer, _ = listener.accept()
    except OSError:  # none waits, it went away again, or this process is out of descriptors
        return None
    peer.setblocking(False)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


def bound_address(listener: socket.socket) -> Address:
    """Return where a socket listens."""
    name = listener.getsockname()
    return Address(str(name[0]), int(name[1]))


def _size(part: Part) -> int:
    return part.nbytes if isinstance(part, memoryview) else len(part)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).lower()
