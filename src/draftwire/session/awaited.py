"""The answer to the round in flight, known but for what is drawn, taken in one go (P12-P14).

Made while the drafter is at work: when the answer comes, every fixed byte is compared at once, and
one compiled call checks every q and leaves the rows where a proposal wants them. What is not taken
like this goes message by message to the session, which alone decides why it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from draftwire.kernels.answers import misdrawn, read_answer
from draftwire.kernels.rows import QRow, SparseRows
from draftwire.session.proposal import Matched
from draftwire.wire.answer import HEAD_BYTES, Expected, Outline
from draftwire.wire.frames import Frame, FrameReader
from draftwire.wire.messages import Step
from draftwire.wire.registry import HEADER_BYTES, TRAILER_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

MESSAGES: Final = 2  # in a whole answer: REPLY and COMPLETE
_SESSION: Final = slice(HEADER_BYTES, HEADER_BYTES + 8)  # where an answer's first frame names it


class Awaited:
    """The whole sparse answer to one STEP, and memory of its own for what is in it.

    frames: what is known of it. words: int64 (K,), what each position is drawn with, or None = not
    audited. bytes: of both frames. After ``read`` has said True the rest of it means something, and
    not before.
    """

    def __init__(
        self, step: Step, vocab_size: int, frames: Outline, words: NDArray[np.int64] | None
    ) -> None:
        self.session = step.session
        self.generation = step.generation
        self.round = step.round
        self.bytes = frames.bytes
        self.tokens: tuple[int, ...] = ()
        self.rows: Sequence[QRow] = ()
        shape = step.policy.depth, step.policy.support
        self._frames = frames
        self._first = step.first_position
        self._vocab_size = vocab_size
        self._heads = np.empty((2, step.policy.depth), np.int32)
        self._ids = np.empty(shape, np.int32)
        self._counts = np.empty(shape, np.int32)
        self._words = words

    def read(self, store: memoryview, words: NDArray[np.int32], begin: int) -> bool:
        """Whether both frames begin at byte ``begin`` of ``store``, right in every bit.

        words: the same memory; begin: a multiple of 4. So many bytes are there.
        """
        reply, complete, payload, _ = self._frames
        last = begin + HEADER_BYTES + payload + TRAILER_BYTES
        if store[begin : begin + len(reply)] != reply:
            return False
        if store[last : last + len(complete)] != complete:
            return False
        first, heads, ids, counts = self._first, self._heads, self._ids, self._counts
        if not read_answer(words, begin // 4, first, self._vocab_size, heads, ids, counts):
            return False
        entries, tokens = heads.tolist()
        self.tokens = tuple(tokens)
        self.rows = SparseRows(self._vocab_size, ids, counts, entries)
        return True

    def audit(self) -> int:
        """Return how many draws were recomputed, and all are right; -1 = some are not (A22)."""
        if self._words is None:
            return 0
        wrong = misdrawn(self._heads, self._ids, self._counts, self._words)
        return len(self._words) if wrong < 0 else -1


class Recognition:
    """The answers that one connection may recognise: whole, or by what their messages begin with.

    awaited: those to take whole, by session; each is taken once.
    """

    def __init__(self) -> None:
        self.awaited: dict[int, Awaited] = {}
        self._expected: dict[bytes, Expected] = {}
        self._store: memoryview | None = None
        self._words = np.empty(0, np.int32)  # the same memory

    def add(self, expected: dict[bytes, Expected], awaited: Awaited | None) -> None:
        """Recognise one more."""
        self._expected.update(expected)
        if awaited is not None:
            self.awaited[awaited.session] = awaited

    def clear(self) -> None:
        """Recognise none any more."""
        self._expected.clear()
        self.awaited.clear()

    def whole(self, reader: FrameReader, count: int) -> Awaited | None:
        """Let the reader take new bytes; return the answer that is next, right in every bit."""
        store, begin, end = reader.received(count)
        if end - begin < _SESSION.stop or begin % 4:
            return None
        named = store[begin + _SESSION.start : begin + _SESSION.stop]
        awaited = self.awaited.get(int.from_bytes(named, "little"))
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
