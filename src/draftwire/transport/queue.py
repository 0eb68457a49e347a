"""Parts of messages on their way out, for ``sendmsg`` without copying them together."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence
from typing import Final

from draftwire.transport.channel import Part

PARTS_A_CALL: Final = 512  # under every system's IOV_MAX
JOIN_BELOW: Final = 1 << 14  # bytes; so few are copied together faster than many parts are handled


class OutQueue:
    """Parts that wait to be sent, in order, kept as they are until the system took them."""

    def __init__(self) -> None:
        """Begin empty."""
        self._parts: deque[memoryview] = deque()
        self.size = 0
        self.pushed = 0  # bytes ever queued

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._parts)

    def push(self, parts: Sequence[Part]) -> None:
        """Queue parts; the caller must not change their bytes any more."""
        for part in joined(parts):
            view = memoryview(part).cast("B")
            if view.nbytes:
                self._parts.append(view)
                self.size += view.nbytes
                self.pushed += view.nbytes

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

    def take(self, buffer: memoryview) -> int:
        """Move the first bytes into ``buffer``; returns how many."""
        taken = 0
        while self._parts and taken < len(buffer):
            count = min(self._parts[0].nbytes, len(buffer) - taken)
            buffer[taken : taken + count] = self._parts[0][:count]
            self.drop(count)
            taken += count
        return taken

    def drain(self) -> bytes:
        """Return everything that waits, copied together."""
        data = b"".join(self._parts)
        self._parts.clear()
        self.size = 0
        return data

    def flush(self, peer: socket.socket) -> bool:
        """Send what a non-blocking socket takes; returns whether the queue is empty now.

        Raises OSError when the connection has ended.
        """
        parts = self._parts
        while parts:
            try:
                sent = peer.send(parts[0]) if len(parts) == 1 else peer.sendmsg(self.head())
            except BlockingIOError:
                return False
            if sent == self.size:
                parts.clear()
                self.size = 0
            else:
                self.drop(sent)
        return True


def size_of(part: Part) -> int:
    """Return the bytes of a part."""
    return len(part) if type(part) is bytes else memoryview(part).nbytes


def joined(parts: Sequence[Part]) -> Sequence[Part]:
    """Return the parts of small messages as one, those of large ones as they are."""
    if len(parts) < 2:
        return parts
    size = 0
    for part in parts:
        size += size_of(part)
        if size > JOIN_BELOW:
            return parts
    return (b"".join(parts),)
