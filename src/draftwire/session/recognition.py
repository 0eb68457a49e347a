"""What one connection may take in one go, or by the bytes that it begins with (P3).

A message has one encoding, and a peer in step with this side sends what is known here but for a few
fields. Whatever else comes is decoded and checked field by field, so this changes no outcome.
"""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

import numpy as np

from draftwire.session.awaited import Awaited
from draftwire.session.foreseen import Foreseen
from draftwire.session.proposal import Matched
from draftwire.wire.answer import HEAD_BYTES, Expected
from draftwire.wire.frames import Frame, FrameReader
from draftwire.wire.registry import HEADER_BYTES

Whole: TypeAlias = Awaited | Foreseen
"""Messages of one session that are taken together: all of them are right to the last bit."""

_SESSION: Final = struct.Struct("<Q")  # the first field of every message that names one
_NAMED_BY: Final = HEADER_BYTES + _SESSION.size  # bytes of a frame


class Recognition:
    """The messages that one connection may recognise: whole, or by what they begin with.

    awaited: those to take whole, by session; each is taken once.
    """

    def __init__(self) -> None:
        self.awaited: dict[int, Whole] = {}
        self._expected: dict[bytes, Expected] = {}
        self._store: memoryview | None = None
        self._words = np.empty(0, np.int32)  # the same memory

    def add(self, expected: dict[bytes, Expected], awaited: Whole | None) -> None:
        """Recognise one more answer, or what else may come whole."""
        self._expected.update(expected)
        if awaited is not None:
            self.awaited[awaited.session] = awaited

    def clear(self) -> None:
        """Recognise none any more."""
        self._expected.clear()
        self.awaited.clear()

    def forget(self, session: int) -> None:
        """Take nothing of this session whole any more."""
        self.awaited.pop(session, None)

    def whole(self, reader: FrameReader, count: int) -> Whole | None:
        """Let the reader take new bytes; return the messages that are next, right in every bit."""
        store, begin, end = reader.received(count)
        if end - begin < _NAMED_BY or begin % 4:
            return None
        (session,) = _SESSION.unpack_from(store, begin + HEADER_BYTES)
        awaited = self.awaited.get(session)
        if awaited is None or end - begin < awaited.bytes:
            return None
        if store is not self._store:
            self._store, self._words = store, np.frombuffer(store, np.int32, len(store) // 4)
        if not awaited.read(store, self._words, begin):
            return None
        del self.awaited[awaited.session]
        reader.skip(awaited.bytes)
        return awaited

    def matched(self, frame: Frame) -> Matched | None:
        """Return a message of an answer that begins as it must."""
        head_bytes = HEAD_BYTES.get(frame.type)
        if head_bytes is None:
            return None
        payload = frame.payload
        expected = self._expected.get(payload[:head_bytes].tobytes())
        if expected is None or expected.bytes != payload.nbytes:
            return None
        self.awaited.pop(expected.session, None)  # it comes in pieces
        return Matched(expected, payload[head_bytes:], expected.bytes, frame.checksum)
