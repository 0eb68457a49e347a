"""What rounds of one size cost over a link: the target alone, with drafts, and whether that pays.

Times are arguments; there is no clock here.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

from draftwire.verifier.circuit import BreakerConfig, Circuit

_FIRST_SAMPLES: Final = 3


class LinkEstimate:
    """Costs that all requests of a drafter share, of rounds of about as many requests each.

    circuit: opens for all of them. alone: seconds for a token of the target alone; None before
    there are enough samples. usual: a request's own seconds of a drafted round, whatever it brings;
    None before there was one. Both are medians of the last ones.
    """

    def __init__(self, config: BreakerConfig) -> None:
        """Begin with nothing measured."""
        self.circuit = Circuit(config, block=config.block, probe=1)
        self.alone: float | None = None
        self.usual: float | None = None
        self._needed = min(_FIRST_SAMPLES, config.samples)
        self._alone: deque[float] = deque(maxlen=config.samples)
        self._usual: deque[float] = deque(maxlen=config.samples)
        self._spent: deque[tuple[float, float]] = deque(maxlen=config.window * config.block)

    @property
    def drafted(self) -> float | None:
        """Seconds for a token of all requests with drafting, when that was last measured."""
        if not self._spent:
            return None
        seconds, tokens = map(sum, zip(*self._spent, strict=True))
        return seconds / tokens

    def took_alone(self, seconds: float) -> None:
        """Take the time of a round without drafts."""
        self._alone.append(seconds)
        if len(self._alone) >= self._needed:
            self.alone = median(self._alone)

    def took_usual(self, seconds: float) -> None:
        """Take a request's own time of a round whose proposal came."""
        self._usual.append(seconds)
        self.usual = median(self._usual)

    def spent(self, seconds: float, tokens: float) -> None:
        """Take the time and the tokens of a round that was to be drafted, lost ones included."""
        self._spent.append((seconds, tokens))
