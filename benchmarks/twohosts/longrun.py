"""What a breaker comes to in the long run: the real one, played over rounds that were measured.

A probe of drafting that does not pay may take seconds on a slow link, and minutes without drafting
pay for it; no benchmark waits for that often enough. So measured rounds are played against the
breaker in order, over and over, with their own times as the clock.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Final

from draftwire.verifier.breaker import Breaker, Choice, Gain

_PLAYS: Final = 19  # of resampled rounds; the least of so many is a bound at a level of 95%


@dataclass(frozen=True, slots=True)
class LongRun:
    """cost: seconds a token as a multiple of the target's alone. drafted: share of the rounds.

    least: what the cost is at a level of 95% at least, see :func:`least_cost`; where that was not
    asked for, there is no such bound.
    """

    cost: float
    drafted: float
    seconds: float
    least: float = -math.inf


def long_run(
    alone: Sequence[float], drafted: Sequence[tuple[float, int]], seconds: float
) -> LongRun:
    """Play rounds for ``seconds`` of their own time, the start of the breaker included.

    alone: seconds of target-only rounds. drafted: seconds and tokens of rounds that asked for a
    proposal, lost ones included. Both in the order they were measured in, neither empty.
    """
    if not alone or not drafted:
        raise ValueError("nothing was measured")
    plain, asked = cycle(alone), cycle(drafted)
    request = Breaker().open()
    most = max(emitted for _, emitted in drafted)
    spent, tokens, rounds, drafts = 0.0, 0, 0, 0
    while spent < seconds:
        choice = request.admits()
        took, emitted = next(asked) if choice is Choice.DRAFT else (next(plain), 1)
        gain = Gain(emitted, most, came=choice is Choice.DRAFT)
        request.finished(choice, took, gain, first=False)
        spent += took
        tokens += emitted
        rounds += 1
        drafts += choice is Choice.DRAFT
    mean = sum(alone) / len(alone)
    return LongRun(spent / (tokens * mean), drafts / rounds, spent)


def least_cost(
    alone: Sequence[float], drafted: Sequence[tuple[float, int]], seconds: float
) -> float:
    """Return the least cost among plays of rounds drawn anew from those that were measured.

    A few dozen rounds are played over and over in an hour, so that one stall among them counts a
    hundred times; drawn with replacement (a bootstrap, seeded) it is there more often or not at
    all, and what is left of the cost in nearly all plays does not hang on it.
    """
    drawn = random.Random(1)
    return min(
        long_run(
            drawn.choices(alone, k=len(alone)), drawn.choices(drafted, k=len(drafted)), seconds
        ).cost
        for _ in range(_PLAYS)
    )
