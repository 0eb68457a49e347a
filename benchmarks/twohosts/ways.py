"""One pair of models run several ways in turn over one link: texts, and what they take."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any, Final

from draftwire.verifier.breaker import Breaker, BreakerState, Choice, Gain, Paused, RequestBreaker
from draftwire.verifier.client import DraftClient
from draftwire.verifier.engine import TargetEngine
from draftwire.verifier.generate import generate
from draftwire.verifier.report import Report
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy

TARGET_ONLY: Final = "target-only"
_LEAST_TURNS: Final = 5  # with fewer, no interval of a median has a level of 95%
_LEAST_TOKENS: Final = 16  # of a text that fills up a turn
_TURN_SECONDS: Final = 1.5  # a turn is over then, however few its tokens
_SELDOM: Final = 3  # ways that no breaker watches run in every so manieth turn: they only show why
_MISTAKEN: Final = 0.05  # how often a bound may be on the wrong side
_SETTLED_ROUNDS: Final = 60  # of a breaker that has gone on drafting


@dataclass(frozen=True)
class Pair:
    """A target with its prompts; a turn is ``tokens`` tokens or a few more, however many texts."""

    name: str
    target: TargetEngine[Any]
    prompts: Sequence[Sequence[int]]
    temperature: float
    tokens: int


class Watched(Breaker):
    """Always drafts, and keeps what every round took and brought."""

    def __init__(self) -> None:
        """Begin with no round."""
        super().__init__()
        self.rounds: list[tuple[float, int]] = []

    def admits(self, requests: Sequence[RequestBreaker], size: int | None = None) -> list[Choice]:
        """Draft."""
        return [Choice.DRAFT] * len(requests)

    def finished(
        self,
        requests: Sequence[RequestBreaker],
        choices: Sequence[Choice],
        gains: Sequence[Gain],
        seconds: float,
        *,
        waited: float = 0.0,
        first: bool = False,
    ) -> list[Paused]:
        """Keep the round, unless it read a prompt."""
        if not first:
            self.rounds.append((seconds, gains[0].tokens))
        return []


@dataclass
class Way:
    """How a pair is run, and what came of it in the turns that count.

    client: None = the target alone. rates: tokens/s by the number of the turn. rounds: seconds of
    target-only rounds, where there is no client.
    """

    name: str
    client: DraftClient | None = None
    policy: ProposalPolicy | None = None
    rates: dict[int, float] = field(default_factory=dict)
    report: Report = field(default_factory=Report)
    rounds: list[float] = field(default_factory=list)

    @property
    def breaker(self) -> Breaker | None:
        """The breaker that decides here; None where everything is drafted, or nothing."""
        breaker = None if self.client is None else self.client.breaker
        return None if isinstance(breaker, Watched) else breaker

    def text(
        self, pair: Pair, prompt: Sequence[int], seed: int, tokens: int, until: float
    ) -> Report:
        """Write one text, but not for longer than until then, and return what it took."""
        sampling = Sampling(temperature=pair.temperature, seed=seed, max_tokens=tokens)
        with generate(pair.target, self.client, prompt, sampling, self.policy) as running:
            moments = []
            for _ in running:
                moments.append(time.perf_counter())
                if moments[-1] > until:
                    break
        if self.client is None:
            self.rounds += [after - before for before, after in pairwise(moments)]
        return running.report

    def turn(self, pair: Pair, number: int) -> Report:
        """Write texts until there are enough tokens, or time is up; returns their sum."""
        total, text, until = Report(), 0, time.perf_counter() + _TURN_SECONDS
        while total.tokens < pair.tokens and time.perf_counter() < until:
            prompt = pair.prompts[(number + text) % len(pair.prompts)]
            tokens = max(pair.tokens - total.tokens, _LEAST_TOKENS)
            total.add(self.text(pair, prompt, 1000 * number + text, tokens, until))
            text += 1
        return total


def pauses(breaker: Breaker) -> bool:
    """Whether a text that begins now is not drafted, or is to see whether that pays."""
    return breaker.state is not BreakerState.CLOSED or breaker.pauses_new_requests


def settle(pair: Pair, ways: Sequence[Way], seconds: float) -> None:
    """Let every breaker make up its mind, for so many seconds at most each.

    A pause that follows a probe is a verdict; the first may have been one stall.
    """
    for way in ways:
        breaker, client = way.breaker, way.client
        until, number = time.monotonic() + seconds, 0
        while breaker is not None and client is not None and time.monotonic() < until:
            way.turn(pair, number)
            number += 1
            rounds = client.totals.sum().rounds
            drafting = not pauses(breaker) and rounds >= _SETTLED_ROUNDS
            if sum(breaker.pauses_by_scope.values()) > 1 or drafting:
                break


def take_turns(pair: Pair, ways: Sequence[Way], seconds: float) -> None:
    """Run every way once a turn, each turn beginning with another one, for about ``seconds``.

    Turns make whatever else the machine does meet all ways alike.
    """
    for way in ways:  # whatever a connection or a program does only once
        way.text(pair, pair.prompts[0], 1, _LEAST_TOKENS, math.inf)
        way.rounds.clear()
    began, number = time.monotonic(), 0
    while number < _LEAST_TURNS or time.monotonic() - began < seconds:
        first = number % len(ways)
        for way in (*ways[first:], *ways[:first]):
            always = way.client is not None and way.breaker is None
            if always and number % _SELDOM:
                continue
            report = way.turn(pair, number)
            way.rates[number] = report.tokens_per_second
            way.report.add(report)
        number += 1


@dataclass(frozen=True, slots=True)
class Spread:
    """A median, and the quartiles around it.

    least, most: each bounds the median of the law that the values come from, from its own side at a
    level of at least 95%, whatever that law is; infinite where the values are too few.
    """

    low: float
    middle: float
    high: float
    least: float = -math.inf
    most: float = math.inf

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return it for some values, at least one."""
        ordered = sorted(values)
        half = len(ordered) // 2
        low = ordered[:half] or ordered
        high = ordered[-half:] if half else ordered
        beyond = values_beyond(len(ordered))
        if beyond is None:
            return cls(median(low), median(ordered), median(high))
        return cls(
            median(low), median(ordered), median(high), ordered[beyond], ordered[-1 - beyond]
        )


def values_beyond(count: int) -> int | None:
    """Return how many of ``count`` sorted values may be left out on one side of a bound.

    The k-th smallest of n independent values is above the median with probability
    P(fewer than k of n fair coins show heads), which must not exceed 5%. None = not even the
    smallest bounds it.
    """
    below, beyond = 0, None
    for heads in range(count):
        below += math.comb(count, heads)
        if below > _MISTAKEN * 2**count:
            break
        beyond = heads
    return beyond


def costs(alone: Mapping[int, float], ours: Mapping[int, float]) -> Spread:
    """Return seconds a token as a multiple of the target's alone in the same turn, from rates."""
    return Spread.of([alone[turn] / rate for turn, rate in ours.items()])
