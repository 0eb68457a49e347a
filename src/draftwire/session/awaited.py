"""The answer to the round in flight, known but for what is drawn, taken in one go (P12-P14).

Made while the drafter is at work: when the answer comes, every fixed byte is compared at once, and
one compiled call checks every q and leaves the rows where a proposal wants them. What is not taken
like this goes message by message to the session, which alone decides why it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from draftwire.kernels.rows import QRow, SparseRows
from draftwire.rows.answers import first_audit_failure, read_answer
from draftwire.wire.answer import COMPLETE_BYTES, Expected, Outline
from draftwire.wire.messages import Step
from draftwire.wire.registry import HEADER_BYTES, TRAILER_BYTES, MessageType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Awaited:
    """The answer to one STEP, known but for what is drawn.

    frames: what is known of it. rows: room for the q's of a sparse answer, which may be taken
    ``whole`` then; None = only its messages are recognised. words: int64 (K,), what each position
    is drawn with, or None = not audited. bytes: of both frames. After ``read`` has said True,
    tokens and rows mean something, and not before.
    """

    types: Final = (MessageType.REPLY, MessageType.COMPLETE)

    def __init__(
        self, step: Step, frames: Outline, rows: SparseRows | None, words: NDArray[np.int64] | None
    ) -> None:
        self.session = step.session
        self.generation = step.generation
        self.round = step.round
        self.bytes = frames.bytes
        self.tokens: tuple[int, ...] = ()
        self.rows: Sequence[QRow] = ()
        self._reply, self._complete = frames.reply, frames.complete
        self._reply_bytes = frames.payload_bytes
        self._first = step.anchor + 1
        self._rows = rows
        self._words = words

    @property
    def whole(self) -> bool:
        """Whether ``read`` may take it."""
        return self._rows is not None

    def expects(self, type: MessageType, payload: memoryview) -> Expected | None:
        """Return which message of the answer this payload is, None if it begins otherwise."""
        if type is MessageType.REPLY:
            known, size = self._reply[HEADER_BYTES:], self._reply_bytes
        else:
            known, size = self._complete[HEADER_BYTES:], COMPLETE_BYTES
        if payload.nbytes != size or payload[: len(known)] != known:
            return None
        return Expected(self.session, self.generation, self.round, type, size)

    def read(self, store: memoryview, words: NDArray[np.int32], begin: int) -> bool:
        """Whether both frames begin at byte ``begin`` of ``store``, right in every bit.

        words: the same memory; begin: a multiple of 4. So many bytes are there.
        """
        reply, complete, rows = self._reply, self._complete, self._rows
        last = begin + HEADER_BYTES + self._reply_bytes + TRAILER_BYTES
        if rows is None:
            return False
        if store[begin : begin + len(reply)].tobytes() != reply:
            return False
        if store[last : last + len(complete)].tobytes() != complete:
            return False
        if not read_answer(words, begin // 4, self._first, rows.vocab_size, rows.block):
            return False
        rows.length = len(rows.block)
        self.tokens, self.rows = tuple(rows.block[:, 1].tolist()), rows
        return True

    def audit(self) -> int:
        """Return how many draws were recomputed, and all are right; -1 = some are not (A22)."""
        if self._words is None or self._rows is None:
            return 0
        wrong = first_audit_failure(self._rows.block, self._words)
        return len(self._words) if wrong < 0 else -1
