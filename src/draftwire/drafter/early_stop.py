"""How many drafts of a proposal are admitted, each decided before it is drawn (P36, A23).

A draft is worth its cost where the chance that it is accepted, times the seconds that a token takes
now, is more than the seconds that one more position adds to a round. The chance follows from q, and
from how often drafts of such a q were accepted in finished rounds; the seconds follow from finished
rounds alone. Nothing here sees a token that was drawn at the position it decides, or behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from draftwire.wire.messages import CommitRider
from draftwire.wire.registry import Outcome

_BUCKETS: Final = 10  # of confidences, each with an acceptance rate of its own
_PRIOR: Final = 4.0  # judged drafts that a bucket's own confidence counts for
_MEMORY: Final = 200.0  # judged drafts of a bucket after which half of them are forgotten
_RECENT: Final = 0.05  # weight of the latest round in means of times
_LONGEST: Final = 4.0  # times the mean: a longer round is taken for so long, a pause is no cost
_TRIAL_ROUNDS: Final = 12  # first rounds, in which several depths are tried in turn
_TRIAL_EVERY: Final = 16  # and of the later ones every so many-th is of the full depth


class AcceptanceRates:
    """How often drafts were accepted, by the confidence that they were drawn with."""

    def __init__(self) -> None:
        self._judged = [0.0] * _BUCKETS
        self._accepted = [0.0] * _BUCKETS

    def expected(self, confidence: float) -> float:
        """The chance that a draft of this confidence (0..1) is accepted, if those before it are."""
        at = _bucket(confidence)
        return (self._accepted[at] + _PRIOR * confidence) / (self._judged[at] + _PRIOR)

    def judged(self, confidence: float, accepted: bool) -> None:
        """Book the verdict on a draft."""
        at = _bucket(confidence)
        if self._judged[at] >= _MEMORY:
            self._judged[at] /= 2
            self._accepted[at] /= 2
        self._judged[at] += 1
        self._accepted[at] += accepted


class RoundTimes:
    """What a round costs by its depth, on a line through finished rounds; the old ones fade."""

    def __init__(self) -> None:
        self._rounds = 0.0  # weights of all, and the weighted means
        self._depth = self._seconds = self._tokens = 0.0
        self._square = self._product = 0.0

    def finished(self, depth: int, seconds: float, tokens: int) -> None:
        """Book a round: drafts that were admitted, seconds, and tokens that it committed."""
        if self._rounds:
            seconds = min(seconds, _LONGEST * self._seconds)
        self._rounds += 1
        weight = max(1 / self._rounds, _RECENT)
        self._depth += weight * (depth - self._depth)
        self._seconds += weight * (seconds - self._seconds)
        self._tokens += weight * (tokens - self._tokens)
        self._square += weight * (depth * depth - self._square)
        self._product += weight * (depth * seconds - self._product)

    @property
    def seconds_a_token(self) -> float:
        """What a token takes now; 0 before the first round."""
        return self._seconds / self._tokens if self._tokens else 0.0

    @property
    def seconds_a_draft(self) -> float:
        """What one more position adds to a round: the slope of the line, none below 0."""
        spread = self._square - self._depth * self._depth
        if spread <= 1e-9:
            return 0.0
        slope = (self._product - self._depth * self._seconds) / spread
        return min(max(slope, 0.0), self._seconds / max(self._depth, 1.0))


@dataclass(slots=True)
class EarlyStop:
    """The rule of one session.

    Call ``begin`` with each STEP, then ``admits`` for the second draft and each one behind it, in
    order, before it is drawn, until it is False. clock: seconds.
    """

    clock: Callable[[], float]
    rates: AcceptanceRates = field(default_factory=AcceptanceRates)
    times: RoundTimes = field(default_factory=RoundTimes)
    _begun: float = 0.0
    _round: int = 0
    _trials: int = 0
    _full: int = 0  # drafts that are admitted whatever their confidence: a trial; 0 = no trial
    _least: float = 0.0  # chance that all drafts so far are accepted, at which one more pays
    _confidences: list[float] = field(default_factory=list)  # of the admitted drafts, in order
    _chance: float = 1.0

    def begin(self, number: int, rider: CommitRider, depth: int) -> None:
        """A round of at most ``depth`` drafts begins; the rider says how the one before ended."""
        now = self.clock()
        if self._confidences and rider.round == self._round:
            self._finished(rider, now - self._begun)
        self._begun, self._round = now, number
        self._confidences.clear()
        self._chance = 1.0
        self._full = self._trial(depth)
        cost, token = self.times.seconds_a_draft, self.times.seconds_a_token
        self._least = cost / token if token else 0.0

    def admits(self, confidence: float) -> bool:
        """Whether the next draft is admitted; confidence: of its q, 0..1, before its draw."""
        chance = self._chance * self.rates.expected(confidence)
        drafted = len(self._confidences)
        admitted = not drafted or (drafted < self._full if self._full else chance > self._least)
        if admitted:
            self._confidences.append(confidence)
            self._chance = chance
        return admitted

    def _trial(self, depth: int) -> int:
        """The depth of a trial, from the number of rounds alone; 0 where this round is none."""
        self._trials += 1
        if self._trials <= _TRIAL_ROUNDS:
            return (depth, max(depth // 2, 1), max(depth // 4, 1))[self._trials % 3]
        return 0 if self._trials % _TRIAL_EVERY else depth

    def _finished(self, rider: CommitRider, seconds: float) -> None:
        judged = rider.accepted + (rider.outcome is Outcome.CORRECTION)
        if rider.outcome is Outcome.TARGET_ONLY:
            return  # the proposal was not used, and its time is another round's
        for at, confidence in enumerate(self._confidences[:judged]):
            self.rates.judged(confidence, at < rider.accepted)
        committed = rider.accepted + (rider.outcome is not Outcome.ENDED)
        self.times.finished(len(self._confidences), seconds, committed)


def _bucket(confidence: float) -> int:
    return min(int(confidence * _BUCKETS), _BUCKETS - 1)
