"""When to ask again after something was lost: at once after one loss, then ever more seldom."""

from __future__ import annotations

from typing import Final

MOST_ROUNDS: Final = 64
FIRST_SECONDS: Final = 0.1
MOST_SECONDS: Final = 5.0


class RoundPacing:
    """Rounds to leave out for one request: none after the first loss in a row, then 1, 2, 4 ... 64.

    One proposal between two losses begins anew, so a single loss costs a single round.
    """

    def __init__(self) -> None:
        """Begin without losses."""
        self._losses = 0
        self._left_out = 0

    def may_ask(self) -> bool:
        """Say whether this round asks; call it once a round."""
        if self._left_out:
            self._left_out -= 1
            return False
        return True

    def lost(self) -> None:
        """A proposal that was asked for was lost."""
        self._losses += 1
        if self._losses > 1:
            self._left_out = min(1 << (self._losses - 2), MOST_ROUNDS)

    def won(self) -> None:
        """A proposal came."""
        self._losses = 0


class ConnectPacing:
    """Seconds between attempts to connect: 0.1 after the first failure, doubled up to 5."""

    def __init__(self) -> None:
        """Begin without failures."""
        self._wait = 0.0
        self._not_before = 0.0

    def may_try(self, now: float) -> bool:
        """Say whether to try to connect now."""
        return now >= self._not_before

    def failed(self, now: float) -> None:
        """An attempt has failed, or a connection has ended."""
        self._wait = min(max(2 * self._wait, FIRST_SECONDS), MOST_SECONDS)
        self._not_before = now + self._wait

    def succeeded(self) -> None:
        """A connection is there, and both HELLOs."""
        self._wait = 0.0
        self._not_before = 0.0
