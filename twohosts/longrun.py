"""What a breaker comes to in the long run: the real one, played over rounds that were measured.

A probe of drafting that does not pay may take seconds on a slow link, and minutes without drafting
pay for it; no benchmark waits for that often enough. So measured rounds are played against the
breaker in order, over and over, with their own times as the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

from draftwire.verifier.breaker import Breaker, Choice


@dataclass(frozen=True, slots=True)
class LongRun:
    """cost: seconds a token as a multiple of the target's alone. drafted: share of the rounds."""

    cost: float
    drafted: float
    seconds: float


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
    breaker = Breaker()
    spent, tokens, rounds, drafts = 0.0, 0, 0, 0
    while spent < seconds:
        choice = breaker.admits()
        took, emitted = next(asked) if choice is Choice.DRAFT else (next(plain), 1)
        breaker.finished(choice, took, emitted, first=False)
        spent += took
        tokens += emitted
        rounds += 1
        drafts += choice is Choice.DRAFT
    mean = sum(alone) / len(alone)
    return LongRun(spent / (tokens * mean), drafts / rounds, spent)
