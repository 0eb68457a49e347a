"""Rates of one peer, held by waiting: what was spent too early is waited for."""

from __future__ import annotations


class TokenBucket:
    """Lets ``rate`` units a second through, and ``burst`` at once after a pause.

    What has happened is spent even where the bucket does not hold it; the debt is then waited for.
    """

    def __init__(self, rate: float, burst: float, now: float) -> None:
        """Begin full; rate and burst are above 0, now in seconds."""
        self._rate = rate
        self._burst = burst
        self._level = burst
        self._at = now

    def spend(self, amount: float, now: float) -> float:
        """Take ``amount`` out; returns the seconds to wait until there is no debt, mostly 0."""
        self._level = min(self._level + self._rate * (now - self._at), self._burst) - amount
        self._at = now
        return max(-self._level / self._rate, 0.0)
