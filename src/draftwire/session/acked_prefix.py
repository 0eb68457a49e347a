"""What a verifier knows of the state that its drafter holds of one session (P9)."""

from __future__ import annotations

from typing import Final

_MOST_ALIVE: Final = 16  # openings in a row that were lost, and are still cancelled by name


class AckedPrefix:
    """Only a whole proposal shows what a drafter holds: the prefix that it was made for.

    length: tokens that it surely holds, None = it may hold nothing, so that a generation must be
    opened. round: the round whose proposal showed it. generations: those that it may hold open.
    """

    def __init__(self) -> None:
        self.length: int | None = None
        self.round = 0
        self.generations: list[int] = []

    def opening(self, generation: int) -> None:
        """A generation is asked for; whether that arrives is not known yet."""
        if generation not in self.generations:
            self.generations = [*self.generations[1 - _MOST_ALIVE :], generation]

    def shown(self, generation: int, round: int, length: int) -> None:
        """A proposal has come for a prefix of ``length`` tokens."""
        self.length, self.round, self.generations = length, round, [generation]

    def lose(self) -> None:
        """Nothing is sure any more, but what is open there may still be."""
        self.length, self.round = None, 0

    def end(self) -> list[int]:
        """Nothing is open there any more; returns the generations that were."""
        ended, self.generations = self.generations, []
        self.lose()
        return ended
