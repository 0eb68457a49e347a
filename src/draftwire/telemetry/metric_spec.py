"""What a metric is, and what its numbers are read from.

Values of labels are positions and members of enums, never anything that a peer said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeAlias, TypeVar

from draftwire.drafter.counters import DrafterCounters
from draftwire.drafter.program import DrafterProgram
from draftwire.telemetry.histogram import Histogram
from draftwire.verifier.breaker import BreakerState
from draftwire.verifier.client import DraftClient
from draftwire.verifier.report import Report

Number: TypeAlias = int | float
Labelled: TypeAlias = Mapping[str, Number]
Source = TypeVar("Source")


class Kind(Enum):
    """What a number does."""

    COUNTER = "counter"  # only grows
    GAUGE = "gauge"  # is what it is now
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family(Generic[Source]):
    """One metric. read: its number, its numbers by the value of ``label``, or its histogram."""

    name: str
    kind: Kind
    help: str
    read: Callable[[Source], Number | Labelled | Histogram]
    label: str = ""

    @property
    def shown(self) -> str:
        """The name as it is scraped."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name


@dataclass(frozen=True, slots=True)
class DrafterView:
    """What the metrics of a drafter are read from, all at one moment."""

    counters: DrafterCounters
    connections: int
    sessions: int
    slots_in_use: int
    queued: int
    reply_bytes: int
    reply_limit: int
    draining: bool

    @classmethod
    def of(cls, program: DrafterProgram[Any]) -> DrafterView:
        """Look at a program that another thread runs."""
        return cls(
            program.counters,
            len(program.connections),
            program.open_sessions,
            program.slots_in_use,
            program.queued,
            program.memory.held,
            program.memory.most,
            program.draining,
        )


@dataclass(frozen=True, slots=True)
class VerifierView:
    """What the metrics of a verifier are read from, all at one moment."""

    client: DraftClient
    report: Report
    texts: int
    running: int

    @classmethod
    def of(cls, client: DraftClient) -> VerifierView:
        """Look at a client that another thread runs."""
        totals = client.totals
        return cls(client, totals.sum(), totals.texts, totals.running)


def by_name(counts: Mapping[Any, int]) -> Labelled:
    """Return counts under the lower-case names of their enum's members."""
    return {key.name.lower(): count for key, count in counts.items()}


def by_position(counts: Sequence[int]) -> Labelled:
    """Return counts under their positions, from 0."""
    return {str(position): count for position, count in enumerate(counts)}


def by_reason(counts: Mapping[Any, int], keys: Iterable[Enum]) -> Labelled:
    """Return the count of each key there can be under its value."""
    return {key.value: counts.get(key, 0) for key in keys}


def breaker_state(client: DraftClient) -> Labelled:
    """Return 1 for the state of a client's breaker, 0 for the others."""
    breaker = client.breaker
    return {
        state.value: int(breaker is not None and breaker.state is state) for state in BreakerState
    }


def breaker_costs(client: DraftClient) -> Labelled:
    """Return what a token costs with drafts and without, where that is measured."""
    breaker = client.breaker
    if breaker is None:
        return {}
    costs = {"drafted": breaker.drafted, "target_only": breaker.alone}
    return {way: cost for way, cost in costs.items() if cost is not None}
