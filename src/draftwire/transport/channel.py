"""What a blocking client needs of a connection, whatever carries it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

Part: TypeAlias = bytes | bytearray | memoryview


class UntrustedError(ConnectionError):
    """The peer has ended the connection because it does not know who this side is."""


class Channel(Protocol):
    """A byte stream both ways, blocking up to a deadline (seconds of the caller's clock).

    Raises TimeoutError past the deadline and ConnectionError when the connection has ended, and
    nothing else. A stream whose ``send`` has failed is of no more use. One thread may wait in
    ``receive_into`` while another one sends, or closes.
    """

    def send(self, parts: Sequence[Part], deadline: float) -> None:
        """Send all parts in order."""

    def receive_into(self, buffer: memoryview, deadline: float) -> int:
        """Wait for bytes and put them into ``buffer``; returns how many, at least one."""

    def close(self) -> None:
        """End the connection, and with it what waits for bytes; may be called twice."""
