"""The answer to the round in flight, known but for what is drawn, taken in one go (P12-P14).

Made while the drafter is at work: when the answer comes, one compiled call compares every fixed
byte, checks every q and leaves the rows where a proposal wants them. What it does not take goes
message by message to the session, which alone decides why it is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from draftwire.kernels.answers import misdrawn, outline_words, read_answer
from draftwire.kernels.rows import QRow
from draftwire.wire.answer import Outline
from draftwire.wire.messages import Step

if TYPE_CHECKING:
    from numpy.typing import NDArray

MESSAGES: Final = 2  # in a whole answer: REPLY and COMPLETE


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
        policy = step.policy
        self.bytes = frames.bytes
        self._outline = outline_words(frames)
        self._first = step.first_position
        self._vocab_size = vocab_size
        self._support = policy.support
        self._heads = np.empty((2, policy.depth), np.int32)
        self._ids, self._counts = np.empty((2, policy.depth, policy.support), np.int32)
        self._words = words
        pairs = zip(self._ids, self._counts, strict=True)
        self._rows = tuple([QRow(vocab_size, *pair) for pair in pairs])
        self._entries: list[int] = []
        self.tokens: tuple[int, ...] = ()

    def read(self, words: NDArray[np.int32], at: int) -> bool:
        """Whether both frames begin at word ``at`` of ``words``, right in every bit."""
        right = read_answer(
            words,
            at,
            self._outline,
            self._first,
            self._vocab_size,
            self._heads,
            self._ids,
            self._counts,
        )
        if right:
            self._entries, tokens = self._heads.tolist()
            self.tokens = tuple(tokens)
        return right

    def audit(self) -> int:
        """Return how many draws were recomputed, and all are right; -1 = some are not (A22)."""
        if self._words is None:
            return 0
        wrong = misdrawn(self._heads, self._ids, self._counts, self._words)
        return len(self._words) if wrong < 0 else -1

    @property
    def rows(self) -> tuple[QRow, ...]:
        """The q of every position."""
        if min(self._entries) == self._support:  # nearly always: no row has pads
            return self._rows
        each = zip(self._ids, self._counts, self._entries, strict=True)
        return tuple([QRow(self._vocab_size, ids[:n], counts[:n]) for ids, counts, n in each])
