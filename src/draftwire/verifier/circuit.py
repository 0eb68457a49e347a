"""One circuit of the breaker: closed while drafting pays, open for a pause, half open for a probe.

Everything is counted in tokens of the target alone: a loss of 1 is the time that one of them takes.
There is no clock, model or socket here.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import Final

from draftwire.errors import ConfigurationError

_HOPELESS: Final = 2.0  # so many times as dear, and one cost is enough to pause
_SOON: Final = 3  # rounds, and without the worst of them
_LEAST_BUDGET: Final = 1e-6
_ABSURD: Final = 32.0  # tokens of the target alone, whose time may decide after one round


class BreakerState(Enum):
    """What a circuit does now."""

    CLOSED = "closed"  # drafting
    OPEN = "open"  # paused: every round is target-only
    HALF_OPEN = "half_open"  # drafting again, for a few rounds, to see what it costs now


@dataclass(frozen=True, slots=True)
class BreakerConfig:
    """When to pause and when to try again.

    block: drafted rounds whose times and tokens are summed, which is one cost. window: costs that
    are looked at; their median is compared. least: costs before the first verdict; also those of a
    request's probe. samples: times of rounds that are looked at. sample_every: drafted rounds of a
    request between two samples of the target alone. margin: how much dearer drafting may be, as a
    share. first_pause, longest_pause: rounds; doubled from one failed probe to the next. budget:
    share of the time that drafting may lose; pauses after the first are as long as that needs,
    whatever longest_pause says.
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
    lost: float = 0.0  # of them
    worst: float = 0.0  # of them in one round

    def add(self, tokens: float, lost: float) -> None:
        """Add a round."""
        self.rounds += 1
        self.tokens += tokens
        self.lost += lost
        self.worst = max(self.worst, lost)
        if self.lost <= 0:
            self.rounds, self.tokens, self.lost, self.worst = 0, 0.0, 0.0, 0.0


class Circuit:
    """Weighs rounds, and says between them whether the next one is drafted; not locked.

    A loss is what a round took beyond the time of its tokens from the target alone, the margin
    included; a gain is a loss below 0. Sums over ``block`` rounds count, so that rare long rounds
    do, and medians of those, so that one stall of the machine does not decide. What medians do not
    see, long rounds that are rare but not alone, is seen in the sum of the losses without the worst
    of them. Losses are a debt that gains and pauses pay back.

    block: rounds of one cost. probe: costs that decide a probe. hasty: whether fewer than ``least``
    costs may pause where they are hopeless.
    """

    def __init__(
        self, config: BreakerConfig, *, block: int, probe: int, hasty: bool = True
    ) -> None:
        """Begin closed, with nothing weighed."""
        self.state = BreakerState.CLOSED
        self.pauses = 0  # how often it has opened
        self.paused_rounds = 0  # rounds of the pause still to come
        self.debt = 0.0  # what is lost and nothing has paid back; a pause pays when it begins
        self.judged = False  # whether there were costs enough for a verdict, once
        self._config = config
        self._block = block
        self._probe_costs = probe
        self._hasty = hasty
        self._losses: deque[float] = deque(maxlen=config.window)  # a token, of each cost
        self._lost = 0.0  # of the block that is being filled
        self._tokens = 0.0
        self._rounds = 0
        self._failures = 0  # pauses in a row
        self._worst = 0.0  # of the debt, what the worst round has left; no pause is for that alone
        self._spell = _Spell()

    @property
    def paused(self) -> bool:
        """Whether it is open."""
        return self.state is BreakerState.OPEN

    @property
    def unpaid(self) -> float:
        """The debt, and what the rest of the pause was to pay."""
        return self.debt + self._config.budget * self.paused_rounds

    def leaves_out(self) -> bool:
        """Return whether the next round is one of a pause; call it once a round."""
        if not self.paused:
            return False
        if self.paused_rounds:
            self.paused_rounds -= 1
            return True
        self.state = BreakerState.HALF_OPEN
        self._losses.clear()
        self._lost, self._tokens, self._rounds = 0.0, 0.0, 0
        self._spell = _Spell()
        return False

    def owe(self, lost: float) -> float:
        """Add a loss to the debt, or let a gain pay of it; returns what is left of the gain."""
        owed = self.debt + lost
        self.debt = max(owed, 0.0)
        self._worst = min(max(self._worst, lost), self.debt)
        return max(-owed, 0.0)

    def weigh(self, tokens: float, lost: float, *, compared: bool) -> None:
        """Take a finished round; compared: it is like others, so that its cost is one of theirs."""
        self._spell.add(tokens, lost)
        if self.paused:  # a round that was in flight when it opened
            return
        if compared:
            self._compare(tokens, lost)
        if not self.paused and self._loses():
            self._pause()

    def _compare(self, tokens: float, lost: float) -> None:
        """Add a round to its block, and judge when that is full."""
        self._tokens += tokens
        self._lost += lost
        self._rounds += 1
        took = lost + tokens * (1 + self._config.margin)
        young = self._hasty and len(self._losses) < self._config.least
        if young and took > _ABSURD + _HOPELESS * tokens:
            self._pause()
        elif self._rounds >= self._block:
            self._losses.append(self._lost / self._tokens)
            self._lost, self._tokens, self._rounds = 0.0, 0.0, 0
            self._judge()

    def _judge(self) -> None:
        config, losses = self._config, self._losses
        half_open = self.state is BreakerState.HALF_OPEN
        if len(losses) < (self._probe_costs if half_open else config.least):
            if self._hasty and min(losses) > _HOPELESS - 1 - config.margin:
                self._pause()
        elif median(losses) > 0:
            self._pause()
        else:
            self.judged = True
            self.state = BreakerState.CLOSED
            if len(losses) == config.window and not self.debt:
                self._failures = 0

    def _loses(self) -> bool:
        """Whether the rounds of this spell, but for the worst, have lost too much."""
        spell, lost = self._spell, self._spell.lost - self._spell.worst
        if spell.rounds >= self._config.window * self._block:
            return lost > 0
        return spell.rounds >= _SOON and lost > (_HOPELESS - 1) * spell.tokens

    def _pause(self) -> None:
        """Pause, long enough to stay within the budget.

        The first pause in a row is short whatever was lost, since it may have been one stall of the
        machine; what it leaves unpaid, the worst round aside, is owed by the next.
        """
        config = self._config
        doubled = min(config.first_pause << min(self._failures, 32), config.longest_pause)
        owed = math.ceil((self.debt - self._worst) / config.budget) if self._failures else 0
        self.judged = True
        self.state = BreakerState.OPEN
        self.pauses += 1
        self._failures += 1
        self.paused_rounds = max(doubled, owed)
        self.debt = max(self.debt - config.budget * self.paused_rounds, 0.0)
        self._worst = min(self._worst, self.debt)
