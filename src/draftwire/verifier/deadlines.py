"""How long a round waits for its proposal: a fixed time, or one derived from earlier rounds.

Times are arguments; there is no clock here.

The derived time is the retransmission timer of RFC 6298 (section 2, with its alpha = 1/8, beta =
1/4, K = 4): a smoothed round trip plus four times its smoothed deviation, doubled after every round
that missed it (5.5) until one arrives in time. So ordinary rounds meet it, a drafter that is gone
costs little, and a link that has become slower for good is learned instead of being lost for ever.
Its bounds are ours: no less than 0.2 s, since TCP itself needs that long to send a lost segment
again, and no more than 10 s.

Why deriving it changes no law. Write H for the history before a round: the committed texts, and
what every *finished* round drew and how long it took, lost or not. :meth:`Deadline.seconds` is a
function of H alone and is called before the STEP is sent, that is before anything of the round is
drawn; the round's words are independent of H. Given H it is a constant, as good as one that the
user named; so what is lost by it is lost as under a fixed deadline (law 4), and the argument of
:mod:`draftwire.verifier.breaker` goes through word by word: with X = P(the target alone writes a
text in A | committed prefix), a round of either kind keeps E[X after | H] = X, X is a martingale,
and the text has the law of the target. Another request's round may be in flight or undecided
meanwhile: given all of that one's words, its text is fixed and the argument holds for this one, so
each text keeps its law whatever the others are, and they stay independent. What this forbids is a
deadline that moves while its round is in flight, or that follows an undecided round of its own
request. What no deadline can repair, fixed or derived, is a drafter whose time for *this* round
depends on what it draws in it (docs/internals/audit.md).

The *text of a seed* does depend on which rounds are lost. A derived deadline lets times decide
that, so where a seed has to repeat its text a generous fixed one is better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from draftwire.errors import ConfigurationError
from draftwire.session.proposal import Dropped, Proposal
from draftwire.session.reasons import DropReason

_ALPHA: Final = 1 / 8  # RFC 6298, 2.3
_BETA: Final = 1 / 4
_DEVIATIONS: Final = 4.0  # K


@dataclass(frozen=True, slots=True)
class DeadlineBounds:
    """Seconds. first: before anything is measured (RFC 6298, 2.1), and the least for a round that
    opens a generation, which reads a whole prefix. least, most: of any derived deadline."""

    first: float = 1.0
    least: float = 0.2
    most: float = 10.0

    def __post_init__(self) -> None:
        """Refuse bounds that contradict each other."""
        if not 0 < self.least <= self.first <= self.most < math.inf:
            raise ConfigurationError("deadline bounds: 0 < least <= first <= most, and finite")


class Deadline:
    """Seconds that the next round may take; rounds that open a generation are measured apart."""

    def __init__(self, fixed: float | None = None, bounds: DeadlineBounds | None = None) -> None:
        """fixed: seconds for every round; None = derive them. Raises ConfigurationError."""
        if fixed is not None and not (math.isfinite(fixed) and fixed > 0):
            raise ConfigurationError(f"deadline must be finite and above 0 seconds, not {fixed}")
        bounds = bounds or DeadlineBounds()
        self.fixed = fixed
        self._following = _Timer(bounds.first, bounds.least, bounds.most)
        self._opening = _Timer(bounds.first, bounds.first, bounds.most)

    def seconds(self, *, opens: bool) -> float:
        """Return the deadline of the next round, from finished rounds alone.

        opens: whether it opens a generation, for one of its requests at least.
        """
        if self.fixed is not None:
            return self.fixed
        following = self._following.seconds
        return max(self._opening.seconds, following) if opens else following

    def finished(
        self,
        results: Sequence[Proposal | Dropped],
        round_trips: Sequence[float | None],
        *,
        opens: bool,
        cut: bool = False,
    ) -> None:
        """Take what became of rounds that were asked together, and when their proposals came.

        A loss for another reason than time says nothing about time, and neither does a miss where
        the caller had less than the deadline to give (cut). A fixed deadline learns nothing.
        """
        if self.fixed is not None:
            return
        slowest: float | None = None
        for result, took in zip(results, round_trips, strict=True):
            if isinstance(result, Dropped):
                if result.reason is DropReason.MISSED_DEADLINE:
                    if not cut:
                        self.missed(opens=opens)
                    return
            elif took is not None and (slowest is None or took > slowest):
                slowest = took
        if slowest is not None:
            self.came(slowest, opens=opens)

    def came(self, seconds: float, *, opens: bool) -> None:
        """Every proposal of a round was there after so many seconds."""
        (self._opening if opens else self._following).came(seconds)

    def missed(self, *, opens: bool) -> None:
        """A round has reached its deadline."""
        (self._opening if opens else self._following).missed()


class _Timer:
    """The timer of RFC 6298 between two bounds."""

    def __init__(self, first: float, least: float, most: float) -> None:
        self.seconds = first
        self._least, self._most = least, most
        self._smoothed: float | None = None
        self._deviation = 0.0

    def came(self, seconds: float) -> None:
        if self._smoothed is None:
            self._smoothed, self._deviation = seconds, seconds / 2
        else:
            difference = abs(self._smoothed - seconds)
            self._deviation += _BETA * (difference - self._deviation)
            self._smoothed += _ALPHA * (seconds - self._smoothed)
        self._set(self._smoothed + _DEVIATIONS * self._deviation)

    def missed(self) -> None:
        self._set(2 * self.seconds)

    def _set(self, seconds: float) -> None:
        self.seconds = min(max(seconds, self._least), self._most)
