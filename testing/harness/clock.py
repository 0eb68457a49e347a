"""The clock of tests in which no real time passes: seconds pass when a wait says so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Clock:
    """Seconds, monotonic, set by hand; each reading adds ``tick`` of them."""

    now: float = 1000.0
    tick: float = 0.0

    def __call__(self) -> float:
        """Return the time."""
        self.now += self.tick
        return self.now
