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
from draftwire.wire.answer import HEAD_BYTES
from draftwire.wire.frames import Frame, FrameReader
from draftwire.wire.registry import HEADER_BYTES

Whole: TypeAlias = Awaited | Foreseen
"""Messages of one session that are taken together: all of them are right to the last bit."""

_SESSION: Final = struct.Struct("<Q")  # the first field of every message that names one
_NAMED_BY: Final = HEADER_BYTES + _SESSION.size  # bytes of a frame


class Recognition:
    """The messages that one connection may recognise: whole, or by what they begin with.

    whole: those to take whole, by session; each is taken once.
    """

    def __init__(self) -> None:
        self.whole: dict[int, Whole] = {}
        self._answers: dict[int, Awaited] = {}
        self._store: memoryview | None = None
        self._words = np.empty(0, np.int32)  # the same memory

    def expect(self, answer: Awaited) -> None:
        """Recognise the messages of one more answer."""
        self._answers[answer.session] = answer
        if answer.whole:
            self.whole[answer.session] = answer

    def clear(self) -> None:
        """Recognise nothing any more."""
        self._answers.clear()
        self.whole.clear()

    def take(self, reader: FrameReader, count: int) -> Whole | None:
        """Let the reader take new bytes; return the messages that are next, right in every bit."""
        store, begin, end = reader.received(count)
        if end - begin < _NAMED_BY or begin % 4:
            return None
        (session,) = _SESSION.unpack_from(store, begin + HEADER_BYTES)
        whole = self.whole.get(session)
        if whole is None or end - begin < whole.bytes:
            return None
        if store is not self._store:
            self._store, self._words = store, np.frombuffer(store, np.int32, len(store) // 4)
        if not whole.read(store, self._words, begin):
            return None
        del self.whole[session]
        reader.skip(whole.bytes)
        return whole

    def matched(self, frame: Frame) -> Matched | None:
        """Return a message of an answer that begins as it must."""
        payload, head_bytes = frame.payload, HEAD_BYTES.get(frame.type)
        if head_bytes is None:
            return None
        (session,) = _SESSION.unpack_from(payload)
        answer = self._answers.get(session)
        expected = None if answer is None else answer.expects(frame.type, payload)
        if expected is None:
            return None
        self.whole.pop(session, None)  # it comes in pieces
        return Matched(expected, payload[head_bytes:], expected.bytes, frame.checksum)
