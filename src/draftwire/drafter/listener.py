"""The listening socket of the drafter, and what to do when no connection can be accepted."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from typing import Final

from draftwire.transport.stream import READ
from draftwire.transport.tcp import Address, accept, bound_address

SHUT_SECONDS: Final = 1.0  # without accepting, after descriptors have run out


class Listener:
    """A non-blocking listening socket that a selector watches, with None as its data.

    While descriptors or memory have run out, a waiting connection keeps the socket readable, and a
    selector would return at once, again and again; so the socket is not watched for a moment.
    """

    def __init__(
        self,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        exhausted: Callable[[OSError], None],
    ) -> None:
        """Take over the listener. exhausted: called with the error of accept."""
        self.address: Address = bound_address(listener)
        self.opens: float | None = None  # when it is watched again, while it is not
        self._listener = listener
        self._selector = selector
        self._exhausted = exhausted
        self._closed = False
        selector.register(listener, READ, None)

    def accept(self, now: float) -> socket.socket | None:
        """Return the next connection; None = none waits, or no descriptor is left for it."""
        try:
            return accept(self._listener)
        except OSError as error:
            self._exhausted(error)
            self._selector.unregister(self._listener)
            self.opens = now + SHUT_SECONDS
            return None

    def look(self, now: float) -> None:
        """Watch again, if the time has come."""
        if self.opens is not None and self.opens <= now:
            self.opens = None
            self._selector.register(self._listener, READ, None)

    def close(self) -> None:
        """Listen no more, so that another process may listen there; may be called twice."""
        if not self._closed and self.opens is None:
            self._selector.unregister(self._listener)
        self._closed, self.opens = True, None
        self._listener.close()
