"""The answer to the round in flight, known but for what is drawn, taken in one go (P12-P14).

Made while the drafter is at work: when the answer comes, every fixed byte is compared at once, and
one compiled call checks every q and leaves the rows where a proposal wants them. What is not taken
like this goes message by message to the session, which alone decides why it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from draftwire.kernels.answers import misdrawn, read_answer
from draftwire.kernels.rows import QRow, SparseRows
from draftwire.wire.answer import Outline
from draftwire.wire.messages import Step
from draftwire.wire.registry import HEADER_BYTES, TRAILER_BYTES, MessageType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Awaited:
    """The whole sparse answer to one STEP, and memory of its own for what is in it.

    frames: what is known of it. words: int64 (K,), what each position is drawn with, or None = not
    audited. bytes: of both frames. After ``read`` has said True the rest of it means something, and
    not before.
    """

    types: Final = (MessageType.REPLY, MessageType.COMPLETE)

    def __init__(
        self, step: Step, vocab_size: int, frames: Outline, words: NDArray[np.int64] | None
    ) -> None:
        self.session = step.session
        self.generation = step.generation
        self.round = step.round
        self.bytes = frames.bytes
        self.tokens: tuple[int, ...] = ()
        self.rows: Sequence[QRow] = ()
        self._reply, self._complete = frames.reply, frames.complete
        self._complete_at = HEADER_BYTES + frames.payload_bytes + TRAILER_BYTES
        self._first = step.first_position
        self._rows = SparseRows.room(vocab_size, step.policy.depth, step.policy.support)
        self._drawn = self._rows.block[:, 1]
        self._words = words

    def read(self, store: memoryview, words: NDArray[np.int32], begin: int) -> bool:
        """Whether both frames begin at byte ``begin`` of ``store``, right in every bit.

        words: the same memory; begin: a multiple of 4. So many bytes are there.
        """
        reply, complete, last = self._reply, self._complete, begin + self._complete_at
        if store[begin : begin + len(reply)].tobytes() != reply:
            return False
        if store[last : last + len(complete)].tobytes() != complete:
            return False
        rows = self._rows
        if not read_answer(words, begin // 4, self._first, rows.vocab_size, rows.block):
            return False
        rows.length = len(rows.block)
        self.tokens, self.rows = tuple(self._drawn.tolist()), rows
        return True

    def audit(self) -> int:
        """Return how many draws were recomputed, and all are right; -1 = some are not (A22)."""
        if self._words is None:
            return 0
        wrong = misdrawn(self._rows.block, self._words)
        return len(self._words) if wrong < 0 else -1
