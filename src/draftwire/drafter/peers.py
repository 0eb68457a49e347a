"""What the drafter's server holds of each accepted connection, and how it closes one."""

from __future__ import annotations

import selectors
import socket
from typing import Generic

from draftwire.drafter.connection import Connection
from draftwire.drafter.engine import Context
from draftwire.drafter.log import name_of
from draftwire.transport.stream import Stream


class Peer(Generic[Context]):
    """One accepted connection, and the program's end of it."""

    def __init__(self, stream: Stream, connection: Connection[Context], deadline: float) -> None:
        self.stream = stream
        self.connection = connection
        self.deadline = deadline  # of everything before HELLO is agreed
        self.resumes = 0.0  # until when nothing is read (P24)
        self.interest = 0  # what the selector waits for
        self.heard_at = connection.heard_at
        self.address = _address(stream.socket)
        self.name = name_of(self.address)
        self.host = self.address[0] if self.address is not None else ""

    def flush(self) -> None:
        """Send what its socket takes; that a connection has ended is found when it is next used."""
        try:
            self.stream.flush(self.connection.outgoing)
        except OSError:
            return

    def watch(self, selector: selectors.BaseSelector, interest: int) -> bool:
        """Let a selector wait for ``interest``, 0 = for nothing; False = it has no place for it."""
        if interest == self.interest:
            return True
        before, self.interest = self.interest, interest
        try:
            if not interest:
                selector.unregister(self.stream.socket)
            elif not before:
                selector.register(self.stream.socket, interest, self)
            else:
                selector.modify(self.stream.socket, interest, self)
        except OSError:
            self.interest = 0
            return False
        return True


def close_gently(peer: socket.socket) -> None:
    """Close so that an ERROR just sent still arrives, though unread bytes wait here.

    Closing a socket with unread input resets the connection, and the peer may then lose what it
    was sent. A bounded part of the input is read away first.
    """
    try:
        peer.shutdown(socket.SHUT_WR)
        for _ in range(16):
            if not peer.recv(1 << 16):
                break
    except OSError:
        pass  # nothing more waits, or the peer is gone already
    peer.close()


def _address(peer: socket.socket) -> tuple[str, int] | None:
    """Return where a connection comes from, for the log."""
    try:
        host, port = peer.getpeername()[:2]
        return host, port
    except OSError:
        return None
