"""Ends the wait of a server's loop from another thread or a signal handler."""

from __future__ import annotations

import selectors
import socket

from draftwire.transport.stream import READ


class Waker:
    """A pair of sockets, one of which a selector watches, with None as its data."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        """Begin silent."""
        self._near, self.far = socket.socketpair()
        self._near.setblocking(False)
        self.far.setblocking(False)
        selector.register(self.far, READ, None)

    def fileno(self) -> int:
        """Return a descriptor; a byte written to it wakes the loop."""
        return self._near.fileno()

    def wake(self) -> None:
        """Wake the loop, from anywhere."""
        try:
            self._near.send(b"\0")
        except OSError:  # full, so it wakes anyway; or closed, so nothing waits
            return

    def drain(self) -> None:
        """Take note of every wake so far."""
        try:
            while self.far.recv(4096):
                continue
        except BlockingIOError:
            return

    def close(self) -> None:
        """Close both ends; may be called twice."""
        self._near.close()
        self.far.close()
