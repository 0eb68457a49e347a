"""How many drafts of a proposal are admitted, each decided before it is drawn (P35, A23).

A draft is worth a row of the target where the chance that it is accepted, times the seconds that a
token takes now, is more than the seconds of that row. To know its q, and so its chance, costs a
pass of the drafter, which is worth it where what may be won is more than its seconds. The chance
follows from q, and from how often drafts of such a q were accepted in finished rounds; the seconds
follow from finished rounds and passes. Nothing here sees a token that is drawn at the position it
decides, or behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from draftwire.wire.messages import CommitRider
from draftwire.wire.registry import Outcome

_BUCKETS: Final = 10  # of confidences, each with an acceptance rate of its own
_PRIOR: Final = 4.0  # judged drafts that a bucket's own confidence counts for
_MEMORY: Final = 200.0  # judged drafts of a bucket after which half of them are forgotten
_RECENT: Final = 0.05  # weight of the latest round in means of times
_LONGEST: Final = 4.0  # times the mean: a longer round is taken for so long, a pause is no cost
_TRIALS: Final = 8  # first rounds of a verifier, in which several depths are tried in turn
_ONE_MORE_EVERY: Final = 32  # of the later rounds so many-th admits one draft more than pays


class StopRule(Protocol):
    """What decides how many drafts of a session's proposals are admitted, round by round.

    ``begin`` comes with each STEP; then ``admits`` for the first draft, before it is drawn, and if
    it is, ``goes_on``, and so on in order until one is False. The first is always admitted.
    """

    def begin(self, number: int, rider: CommitRider, depth: int) -> None:
        """Round ``number`` of at most ``depth`` drafts begins; rider: how one before it ended."""

    def admits(self, confidence: float) -> bool:
        """Whether the next draft is admitted; confidence: of its q, 0..1, before its draw."""

    def goes_on(self) -> bool:
        """Whether the q behind the draft that was admitted is to be computed."""


class AcceptanceRates:
    """How often drafts were accepted, by the confidence that they were drawn with."""

    def __init__(self) -> None:
        self._judged = [0.0] * _BUCKETS
        self._accepted = [0.0] * _BUCKETS
        self._seen = [1.0] * _BUCKETS  # how often a confidence came up behind a draft

    def expected(self, confidence: float) -> float:
        """The chance that a draft of this confidence (0..1) is accepted, if those before it are."""
        return self._rate(_bucket(confidence), confidence)

    def seen(self, confidence: float) -> None:
        """Book the confidence of a q that came behind a draft, admitted or not."""
        at = _bucket(confidence)
        if self._seen[at] >= _MEMORY:
            self._seen = [each / 2 for each in self._seen]
        self._seen[at] += 1

    def gain(self, chance: float, token: float, row: float) -> float:
        """Expected seconds that a further draft is worth, its q not known yet.

        chance: that all before it are accepted. token, row: seconds of a token, and of a row.
        """
        won = 0.0
        for at, seen in enumerate(self._seen):
            won += seen * max(chance * self._rate(at, (at + 0.5) / _BUCKETS) * token - row, 0.0)
        return won / sum(self._seen)

    def _rate(self, at: int, confidence: float) -> float:
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
class FinishedRounds:
    """What all sessions of a verifier have shown; a new one begins from it.

    look: seconds from one q to the next, of the latest passes.
    """

    rates: AcceptanceRates = field(default_factory=AcceptanceRates)
    times: RoundTimes = field(default_factory=RoundTimes)
    begun: int = 0
    look: float = 0.0

    def looked(self, seconds: float) -> None:
        """Book the time from one q to the next."""
        self.look += _RECENT * (seconds - self.look) if self.look else seconds


class EarlyStop:
    """The rule of one session: see :class:`StopRule`."""

    def __init__(self, clock: Callable[[], float], finished: FinishedRounds | None = None) -> None:
        """Begin a session. clock: in seconds; finished: shared by the sessions of a verifier."""
        self._clock = clock
        self._finished = finished or FinishedRounds()
        self._begun = self._admitted_at = 0.0
        self._round = 0
        self._trial = 0  # drafts that are admitted whatever they are worth; 0 = this is no trial
        self._more = 0  # drafts that are admitted beyond those that pay
        self._token = self._row = self._look = 0.0  # seconds of each, as finished rounds tell
        self._chance = 1.0  # that all drafts so far are accepted
        self._confidences: list[float] = []  # of the admitted drafts, in order

    def begin(self, number: int, rider: CommitRider, depth: int) -> None:
        """See :class:`StopRule`; takes the verdict on this session's round before."""
        now, finished = self._clock(), self._finished
        if self._confidences and rider.round == self._round:
            self._learn(rider, now - self._begun)
        self._begun, self._round = now, number
        self._confidences.clear()
        self._chance = 1.0
        trials = (depth, 1, max(depth // 2, 1), 2)
        self._trial = trials[finished.begun % 4] if finished.begun < _TRIALS else 0
        finished.begun += 1
        self._more = int(finished.begun % _ONE_MORE_EVERY == 0)
        self._token, self._look = finished.times.seconds_a_token, finished.look
        self._row = max(finished.times.seconds_a_draft - self._look, 0.0)

    def admits(self, confidence: float) -> bool:
        """See :class:`StopRule`."""
        now, drafted = self._clock(), len(self._confidences)
        if drafted:
            self._finished.rates.seen(confidence)
            self._finished.looked(now - self._admitted_at)
        chance = self._chance * self._finished.rates.expected(confidence)
        admitted = not drafted or self._once_more(chance * self._token > self._row)
        if admitted:
            self._confidences.append(confidence)
            self._chance, self._admitted_at = chance, now
        return admitted

    def goes_on(self) -> bool:
        """See :class:`StopRule`."""
        gain = self._finished.rates.gain(self._chance, self._token, self._row)
        return self._once_more(gain > self._look)

    def _once_more(self, pays: bool) -> bool:
        """Whether a draft behind others is to be, where it pays or not."""
        if self._trial:
            return len(self._confidences) < self._trial
        if not pays and self._more:
            self._more -= 1
            return True
        return pays

    def _learn(self, rider: CommitRider, seconds: float) -> None:
        if rider.outcome is Outcome.TARGET_ONLY:
            return  # the proposal was not used, and its time is another round's
        judged = rider.accepted + (rider.outcome is Outcome.CORRECTION)
        for at, confidence in enumerate(self._confidences[:judged]):
            self._finished.rates.judged(confidence, at < rider.accepted)
        committed = rider.accepted + (rider.outcome is not Outcome.ENDED)
        self._finished.times.finished(len(self._confidences), seconds, committed)


StopMaker: TypeAlias = Callable[[Callable[[], float], FinishedRounds], StopRule]
"""From a clock in seconds, and what a verifier's sessions have shown, to the rule of another."""


def _bucket(confidence: float) -> int:
    return min(int(confidence * _BUCKETS), _BUCKETS - 1)
