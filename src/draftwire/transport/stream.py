"""What a server that never blocks needs of an accepted connection, plain or under TLS."""

from __future__ import annotations

import selectors
import socket
from typing import Final, Protocol

from draftwire.transport.queue import OutQueue

READ: Final = selectors.EVENT_READ
WRITE: Final = selectors.EVENT_WRITE


class Stream(Protocol):
    """An accepted connection. Every method raises OSError when the connection has ended.

    handshake_done: whether the transport's own handshake is done; until then call
    ``do_handshake`` whenever the socket is ready for ``wants``, and nothing else.
    """

    socket: socket.socket
    handshake_done: bool
    wants: int

    @property
    def peer_identity(self) -> bytes:
        """Who the peer has proved to be: the SHA-256 of its certificate; empty = nobody."""

    @property
    def pending(self) -> bool:
        """Whether received bytes wait that the selector does not know of."""

    def do_handshake(self) -> None:
        """Go on with the transport's handshake."""

    def receive_into(self, buffer: memoryview) -> int:
        """Return how many bytes came, 0 at the end; BlockingIOError when there are none yet."""

    def flush(self, queue: OutQueue) -> bool:
        """Send what the socket takes; returns whether the queue is empty now."""


class PlainStream:
    """An accepted non-blocking socket as it is."""

    handshake_done = True
    wants = READ
    pending = False
    peer_identity = b""

    def __init__(self, accepted: socket.socket) -> None:
        """Take over the socket."""
        self.socket = accepted
        self.receive_into = accepted.recv_into

    def do_handshake(self) -> None:
        """There is nothing to be done."""

    def flush(self, queue: OutQueue) -> bool:
        """Send what the socket takes; returns whether the queue is empty now."""
        return queue.flush(self.socket)
