"""Bytes that each arrive a fixed time later, in order and at the rate they came: no clock here."""

from __future__ import annotations

from collections import deque
from typing import Final

MOST_BYTES: Final = 16 << 20  # on their way in one direction; a link holds rate x delay, far less


class DelayLine:
    """One direction of a long cable: what is put in at ``t`` comes out from ``t + seconds`` on.

    Many pieces are on their way at once, so the delay takes nothing from the rate. Times are
    arguments, in seconds of any monotonic clock. The end of the stream travels like a byte.
    """

    def __init__(self, seconds: float, most: int = MOST_BYTES) -> None:
        """seconds: of delay, 0 or more. most: bytes on their way, after which it is full."""
        if not seconds >= 0:
            raise ValueError(f"a delay is 0 seconds or more, not {seconds}")
        self._seconds = seconds
        self._most = most
        self._pieces: deque[tuple[float, memoryview]] = deque()
        self._held = 0
        self._ends: float | None = None

    @property
    def full(self) -> bool:
        """Whether nothing more should be put in for now."""
        return self._held >= self._most

    @property
    def due(self) -> float | None:
        """When the next piece, or the end, comes out; None = nothing is on its way."""
        return self._pieces[0][0] if self._pieces else self._ends

    def put(self, data: bytes, now: float) -> None:
        """Bytes have come in."""
        if self._ends is not None:
            raise ValueError("the stream has ended")
        if data:
            self._pieces.append((now + self._seconds, memoryview(data)))
            self._held += len(data)

    def end(self, now: float) -> None:
        """The stream has ended at the near side."""
        if self._ends is None:
            self._ends = now + self._seconds

    def head(self, now: float) -> memoryview | None:
        """Return the oldest piece if it is due: what may be delivered now."""
        if self._pieces and self._pieces[0][0] <= now:
            return self._pieces[0][1]
        return None

    def delivered(self, count: int) -> None:
        """So many bytes of ``head`` have been delivered."""
        due, piece = self._pieces[0]
        self._held -= count
        if count < len(piece):
            self._pieces[0] = (due, piece[count:])
        else:
            self._pieces.popleft()

    def ended(self, now: float) -> bool:
        """Whether everything has been delivered and the end is due too."""
        return not self._pieces and self._ends is not None and self._ends <= now
