"""What a verifier knows of the states that its drafter holds of one session (P37)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from draftwire.wire.messages import Step


@dataclass(frozen=True, slots=True)
class StateRows:
    """Rows for a STEP: of the committed tokens at ``first``, ``first`` + 1, ...; as they travel."""

    first: int
    count: int
    data: bytes


NO_STATES: Final = StateRows(0, 0, b"")


class SentStates:
    """Only a whole proposal shows which rows a drafter has: those up to the end of its STEP's.

    end: one past the last of them. share: most rows of the next STEP; fewer after a round that was
    lost, since a STEP that is too large for the deadline would be lost for ever.
    """

    def __init__(self) -> None:
        self.end = 0
        self._share: int | None = None  # None = as many as were agreed

    def share(self, agreed: int) -> int:
        """Return the most rows of the next STEP where HELLO agreed on so many."""
        return agreed if self._share is None else min(self._share, agreed)

    def shown(self, step: Step) -> None:
        """A whole proposal has come for this STEP."""
        if step.hidden_rows:
            self.end = step.base + step.hidden_rows
        if self._share is not None:
            self._share *= 2

    def lost(self, step: Step) -> None:
        """The round of this STEP has no proposal."""
        if step.hidden_rows:
            self._share = max(step.hidden_rows // 2, 1)

    def lose(self) -> None:
        """The drafter may hold none any more."""
        self.end = 0
