"""Never slower than plain: drafting that measurably costs more than it brings pauses by itself.

Times are arguments; there is no clock, model or socket here.

Why this changes no law. Write H for the history before a round: the committed texts, what every
finished round drew and how long it took. :meth:`Breaker.admits` is a function of H alone, called
before anything of the round is drawn, and its words (A13: the address of every word names its
round) are independent of H. For a set A of whole texts let X = P(target alone writes a text in A |
committed prefix). A target-only round draws one token from p, so E[X after | H] = X; a drafted
round has the law of p over what it emits (A18 to A20), so the same holds. X is a martingale
whichever kind H chooses, its first value is the target's own probability of A and its last is 1 or
0: did the text fall into A. So the text has the law of the target. What this forbids is a decision
that sees anything of the round it decides on, or of another round that is still in flight (law 4).

What it may cost. Let a be the seconds of a token from the target alone. A drafted round of t
seconds and n tokens has lost t - n a (1 + margin), or gained as much where that is below 0.
Losses are a debt that gains pay back, and pauses, a round of which is worth budget x a. A pause
that follows another without the debt having come to nothing in between lasts until it is paid, but
for what is left of its worst round: that may have been one stop of the machine. So beside the debt
that is still open drafting never costs more than the larger of margin and budget, as a share of
what the target alone would have taken, however short the texts are and however rare the long
rounds. The debt that is open before anything is known is that of two rounds where one is
dearer than any proposal is worth, of three to five where tokens cost twice as much, of thirteen
where it is less, and as much again after the short first pause.

The *text of a seed* does depend on which rounds are drafted, since drafts and target-only tokens
are drawn with different words: with a breaker, times decide, so a seed does not repeat its text.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import Final

from draftwire.errors import ConfigurationError

_FIRST_SAMPLES: Final = 3
_HOPELESS: Final = 2.0  # so many times as dear, and one cost is enough to pause
_SOON: Final = 3  # rounds, and without the worst of them
_LEAST_BUDGET: Final = 1e-6
_ABSURD: Final = 32.0  # tokens of the target alone, whose time may decide after one round
_STOPPED: Final = 4096.0  # likewise; the rest of a longer round was a stop of this machine


class BreakerState(Enum):
    """What the breaker does now."""

    CLOSED = "closed"  # drafting
    OPEN = "open"  # paused: every round is target-only
    HALF_OPEN = "half_open"  # drafting again, for a few rounds, to see what it costs now


class Choice(Enum):
    """What a round is, as far as the breaker has a say."""

    DRAFT = "draft"
    SAMPLE = "sample"  # target-only, to know what that costs
    PAUSE = "pause"  # target-only, since drafting does not pay


@dataclass(frozen=True, slots=True)
class BreakerConfig:
    """When to pause and when to try again; rounds are those of all requests together.

    block: drafted rounds whose times and tokens are summed, which is one cost. window: costs that
    are looked at; their median is compared. least: costs before the first verdict; also those of a
    probe. samples: target-only times that are looked at. sample_every: rounds between two samples
    while drafting. margin: how much dearer drafting may be, as a share. first_pause, longest_pause:
    rounds; doubled from one failed probe to the next. budget: share of the time that drafting may
    lose; pauses after the first are as long as that needs, whatever longest_pause says.
    """

    block: int = 4
    window: int = 8
    least: int = 3
    samples: int = 9
    sample_every: int = 64
    margin: float = 0.02
    first_pause: int = 32
    longest_pause: int = 1024
    budget: float = 0.02

    def __post_init__(self) -> None:
        """Refuse what could not decide anything."""
        for name in ("block", "window", "least", "samples", "sample_every", "first_pause"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"the breaker's {name} must be 1 or more")
        if not self.least <= self.window or not self.first_pause <= self.longest_pause:
            raise ConfigurationError("least must not exceed window, nor first_pause longest_pause")
        for name in ("margin", "budget"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 <= value < 1):
                raise ConfigurationError(f"the breaker's {name} must be at least 0 and below 1")
        if self.budget < _LEAST_BUDGET:  # a pause has to be a number of rounds
            raise ConfigurationError(f"the breaker's budget must be {_LEAST_BUDGET} or more")


@dataclass(slots=True)
class _Spell:
    """Drafted rounds since drafting began anew, or since they had last gained more than lost."""

    rounds: int = 0
    tokens: float = 0.0
    seconds: float = 0.0
    lost: float = 0.0  # of them
    worst: float = 0.0  # of them in one round

    def add(self, tokens: float, seconds: float, lost: float) -> None:
        """Add a round."""
        self.rounds += 1
        self.tokens += tokens
        self.seconds += seconds
        self.lost += lost
        self.worst = max(self.worst, lost)
        if self.lost <= 0:
            self.rounds, self.tokens, self.seconds, self.lost, self.worst = 0, 0.0, 0.0, 0.0, 0.0


class Breaker:
    """Decides between rounds whether the next one is drafted; shared by requests of one drafter.

    Call :meth:`admits` once before a round and :meth:`finished` once after it, from any thread.
    Costs are seconds
    for each emitted token: sums over ``block`` rounds, so that rare long rounds count, and medians
    of those, so that one stall of the machine does not decide. What medians do not see, long rounds
    that are rare but not alone, is seen in the sum of the losses without the worst of them.
    """

    def __init__(self, config: BreakerConfig | None = None) -> None:
        """Begin drafting, with nothing measured."""
        self.config = config or BreakerConfig()
        self._lock = threading.Lock()
        self.state = BreakerState.CLOSED
        self.pauses = 0  # how often it has paused
        self._alone: deque[float] = deque(maxlen=self.config.samples)
        self._costs: deque[float] = deque(maxlen=self.config.window)
        self._seconds = 0.0  # of the block that is being filled
        self._tokens = 0.0
        self._rounds = 0
        self._since_sample = 0
        self.paused_rounds = 0  # rounds of the pause still to come
        self._failures = 0  # pauses in a row
        self._debt = 0.0  # seconds that drafting has lost and nothing has paid back
        self._worst = 0.0  # of the debt, what the worst round has left; no pause is for that alone
        self._spell = _Spell()
        self._cold = True  # the next drafted round also pays for what was committed meanwhile

    @property
    def alone(self) -> float | None:
        """Seconds for a token of the target alone; None before there are enough samples."""
        return median(self._alone) if len(self._alone) >= self._needed else None

    @property
    def drafted(self) -> float | None:
        """Seconds for a token with drafting, when it was last measured; None before that."""
        return median(self._costs) if self._costs else None

    @property
    def sentence(self) -> str:
        """What to tell the user about the present state."""
        if self.drafted is None or self.alone is None:
            return "drafting is being measured"
        times = f"{self.drafted * 1e3:.2f} ms a token, {self.alone * 1e3:.2f} ms without"
        if self.state is BreakerState.OPEN:
            pause = f"paused for {self.paused_rounds} rounds"
            return f"drafting costs more than it brings ({times}): {pause}"
        return f"drafting pays ({times})"

    def admits(self) -> Choice:
        """Return what the next round is, from finished rounds alone."""
        with self._lock:
            return self._choose()

    def _choose(self) -> Choice:
        if self.state is BreakerState.OPEN:
            if self.paused_rounds:
                self.paused_rounds -= 1
                return Choice.PAUSE
            self._probe()
        elif len(self._alone) < self._needed:
            return Choice.SAMPLE  # first, so that the first drafted round can be weighed
        elif self.state is BreakerState.CLOSED:
            self._since_sample += 1
            if self._since_sample >= self.config.sample_every:
                self._since_sample = 0
                return Choice.SAMPLE
        return Choice.DRAFT

    def finished(self, choice: Choice, seconds: float, tokens: float, *, first: bool) -> bool:
        """Book a finished round; returns whether the state has changed.

        choice: what ``admits`` said. seconds: of the whole round. tokens: emitted, for several
        requests their mean; a round that asked in vain emitted one, and its time counts in full.
        first: of a request; it reads the prompt, which no other round does, and ``seconds`` are
        then those of its proposal alone. They are weighed, but not compared.
        """
        with self._lock:
            return self._book(choice, seconds, tokens, first)

    def _book(self, choice: Choice, seconds: float, tokens: float, first: bool) -> bool:
        if tokens < 1:
            return False
        if choice is not Choice.DRAFT:
            if not first:
                self._alone.append(seconds)
            return False
        alone = self.alone
        if alone is None:
            return False
        before, cold, self._cold = self.state, self._cold and not first, False
        seconds += alone if first else 0.0
        lost = min(seconds, alone * _STOPPED) - tokens * alone * (1 + self.config.margin)
        self._debt = max(self._debt + lost, 0.0)
        self._worst = min(max(self._worst, lost), self._debt)
        self._spell.add(tokens, seconds, lost)
        if before is BreakerState.OPEN:  # another request's round has ended drafting meanwhile
            return False
        if not first and not cold:
            self._compare(seconds, tokens, alone)
        if self.state is not BreakerState.OPEN and self._loses(alone):
            self._pause(alone, self._spell.seconds / self._spell.tokens)
        return self.state is not before

    def _compare(self, seconds: float, tokens: float, alone: float) -> None:
        """Add a round that is like others to its block, and judge when that is full."""
        self._seconds += seconds
        self._tokens += tokens
        self._rounds += 1
        absurd = alone * (_ABSURD + _HOPELESS * tokens)
        if len(self._costs) < self.config.least and seconds > absurd:
            self._pause(alone, seconds / tokens)
        elif self._rounds >= self.config.block:
            self._costs.append(self._seconds / self._tokens)
            self._seconds, self._tokens, self._rounds = 0.0, 0.0, 0
            self._judge(alone)

    def _loses(self, alone: float) -> bool:
        """Whether the rounds of this spell, but for the worst, have lost too much."""
        spell, lost = self._spell, self._spell.lost - self._spell.worst
        if spell.rounds >= self.config.window * self.config.block:
            return lost > 0
        return spell.rounds >= _SOON and lost > (_HOPELESS - 1) * alone * spell.tokens

    @property
    def _needed(self) -> int:
        return min(_FIRST_SAMPLES, self.config.samples)

    def _judge(self, alone: float) -> None:
        costs = self._costs
        if len(costs) < self.config.least:
            if min(costs) > alone * _HOPELESS:
                self._pause(alone, median(costs))
        elif median(costs) > alone * (1 + self.config.margin):
            self._pause(alone, median(costs))
        else:
            self.state = BreakerState.CLOSED
            if len(costs) == self.config.window and not self._debt:
                self._failures = 0

    def _pause(self, alone: float, cost: float) -> None:
        """Pause since a token costs so much, long enough to stay within the budget.

        The first pause in a row is short whatever was lost, since it may have been one stall of the
        machine; what it leaves unpaid, the worst round aside, is owed by the next.
        """
        self._costs.clear()
        self._costs.append(cost)
        config = self.config
        doubled = min(config.first_pause << min(self._failures, 32), config.longest_pause)
        worth = config.budget * alone  # what one round of a pause pays back
        owed = math.ceil((self._debt - self._worst) / worth) if worth and self._failures else 0
        self.state = BreakerState.OPEN
        self.pauses += 1
        self._failures += 1
        self.paused_rounds = max(doubled, owed)
        self._debt = max(self._debt - worth * self.paused_rounds, 0.0)
        self._worst = min(self._worst, self._debt)

    def _probe(self) -> None:
        self.state = BreakerState.HALF_OPEN
        self._costs.clear()
        self._seconds, self._tokens, self._rounds = 0.0, 0.0, 0
        self._since_sample = 0
        self._spell = _Spell()
        self._cold = True
