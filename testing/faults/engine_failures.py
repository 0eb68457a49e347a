"""A way to the drafter that can lose every byte without a word: a half-open connection."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from draftwire.transport.tcp import Address


class Swallowing:
    """Forwards connections to an address until told to swallow those that are there."""

    def __init__(self, address: Address) -> None:
        """address: where to."""
        self._to = address
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self.accepted = 0
        self._silent: set[int] = set()
        self._open: list[socket.socket] = []

    def __enter__(self) -> Swallowing:
        """Begin to accept."""
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Close everything."""
        for each in (self._listener, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def swallow(self) -> None:
        """From now on the connections that there are lose every byte, and stay open."""
        self._silent = set(range(1, self.accepted + 1))

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._to)
                self.accepted += 1
                self._open += [near, far]
                for one, other in ((near, far), (far, near)):
                    arguments = (one, other, self.accepted)
                    threading.Thread(target=self._carry, args=arguments, daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket, number: int) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                if number not in self._silent:
                    other.sendall(data)
            other.shutdown(socket.SHUT_WR)
