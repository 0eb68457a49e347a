"""What was measured, as values: a link, its pairs, their ways; and which of it is too slow."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from benchmarks.twohosts.longrun import LongRun
from benchmarks.twohosts.ways import Spread
from benchmarks.twohosts.wide import DEPTH, SUPPORT, VOCABULARY
from draftwire.cli.options import LayoutChoice
from draftwire.cli.sizes import framed_bytes, link_ms
from draftwire.verifier.report import Report
from draftwire.wire.registry import Layout

SPARSE, DENSE = f"sparse {SUPPORT}", "dense"
LIMIT: Final = 1.03  # seconds a token with a breaker, as a multiple of the target's alone
CHOICES: Final = {
    SPARSE: LayoutChoice(Layout.SPARSE, SUPPORT),
    DENSE: LayoutChoice(Layout.DENSE, 0),
}


@dataclass(frozen=True)
class BreakerFound:
    """Where a breaker stood at the end, how often it had paused, and where that leads."""

    state: str
    pauses: int
    long_run: LongRun


@dataclass(frozen=True)
class WayFound:
    """One way: tokens/s over the turns, seconds a token beside target-only, and all its rounds."""

    name: str
    rate: Spread
    cost: Spread
    report: Report
    breaker: BreakerFound | None

    @property
    def acceptance(self) -> float | None:
        """Share of the verified drafts that were accepted; None = there were none."""
        return self.report.accepted / self.report.verified if self.report.verified else None

    @property
    def lost(self) -> int:
        """Rounds that asked for a proposal, or could not, and got none; the breaker's aside."""
        chosen = ("breaker_open", "baseline")
        return sum(n for reason, n in self.report.misses.items() if reason.value not in chosen)

    @property
    def drafted(self) -> float:
        """Share of the rounds that had a proposal."""
        return self.report.drafted_rounds / self.report.rounds if self.report.rounds else 0.0


@dataclass(frozen=True)
class PairFound:
    """One pair over one link."""

    name: str
    turns: int
    ways: Sequence[WayFound]


@dataclass(frozen=True)
class WideTimes:
    """Seconds from asking for a proposal of the large vocabulary until it is whole and audited."""

    sparse: float
    dense: float

    @property
    def megabits(self) -> float:
        """10^6 bits a second, from what the larger reply takes longer; unpacking included."""
        sizes = {name: framed_bytes(each, VOCABULARY, DEPTH) for name, each in CHOICES.items()}
        return (sizes[DENSE] - sizes[SPARSE]) * 8 / (self.dense - self.sparse) / 1e6


@dataclass(frozen=True)
class LinkFound:
    """One link. delay: added to a round trip, in seconds. round_trip: of a PING, measured."""

    megabits: int
    delay: float
    round_trip: float
    wide: WideTimes
    pairs: Sequence[PairFound]

    @property
    def name(self) -> str:
        """What it is called in tables."""
        rate = (
            f"{self.megabits / 1000:g} Gb/s" if self.megabits >= 1000 else f"{self.megabits} Mb/s"
        )
        return f"{rate}, {self.delay * 1e3:g} ms"

    def serialisation(self, layout: str) -> tuple[int, float]:
        """Return bytes of a round's answer for the large vocabulary, and ms at the link's rate."""
        size = framed_bytes(CHOICES[layout], VOCABULARY, DEPTH)
        return size, link_ms(size, self.megabits / 1e3)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A pair with a breaker beside its target alone. least, most: bounds of its cost, each 95%."""

    name: str
    cost: float
    least: float
    most: float

    @property
    def missed(self) -> bool:
        """Whether it is too slow: the bound says so, not one measured number."""
        return self.least > LIMIT

    @property
    def kept(self) -> bool:
        """Whether it is fast enough, likewise."""
        return self.most <= LIMIT

    def __str__(self) -> str:
        """Say it in a line."""
        most = "" if math.isinf(self.most) else f" to {self.most:.3f}"
        between = "" if math.isinf(self.least) else f" ({self.least:.3f}{most})"
        return f"{self.name}: {self.cost:.3f}x{between}"


def comparisons(links: Sequence[LinkFound]) -> list[Comparison]:
    """Return every comparison of a breaker with the target alone, in the turns and over an hour."""
    return [each for link in links for each in _comparisons(link)]


def missed(links: Sequence[LinkFound]) -> list[str]:
    """Return a line for each breaker that leaves a pair slower than its target alone, by 3%.

    That is: whose cost is above 1.03 at a level of 95%. A machine that others use as well scatters
    by more than that, and half of all medians of a cost of exactly 1.03 are above it.
    """
    return [f"MISSED: {each}" for each in comparisons(links) if each.missed]


def verdict(links: Sequence[LinkFound]) -> str:
    """Return what was found in how many comparisons, and name those that decide nothing."""
    found = comparisons(links)
    undecided = [each for each in found if not each.missed and not each.kept]
    above = [each for each in undecided if each.cost > LIMIT]
    lines = missed(links)
    lines += [f"above 3%, but not beyond doubt: {each}" for each in above]
    lines.append(
        f"{len(found)} comparisons with the breaker: {sum(each.kept for each in found)} at most 3%"
        f" slower than target-only, {sum(each.missed for each in found)} slower than that,"
        f" {len(undecided)} too scattered to say (of these {len(above)} with a median above 3%)"
    )
    return "\n".join(lines)


def _comparisons(link: LinkFound) -> Iterator[Comparison]:
    for pair in link.pairs:
        for way in pair.ways:
            if way.breaker is None:
                continue
            name = f"{link.name}; {pair.name}; {way.name}"
            cost, played = way.cost, way.breaker.long_run
            yield Comparison(f"{name}, in the turns", cost.middle, cost.least, cost.most)
            most = played.cost if played.cost <= LIMIT else math.inf
            yield Comparison(f"{name}, over an hour", played.cost, played.least, most)


def document(command: str, links: Sequence[LinkFound], seconds: float) -> dict[str, Any]:
    """Return everything as plain values for JSON."""
    return {
        "command": command,
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "seconds": seconds,
        "limit": LIMIT,
        "links": [_link(link) for link in links],
        "missed": missed(links),
        "verdict": verdict(links).splitlines(),
    }


def _link(link: LinkFound) -> dict[str, Any]:
    large = {
        "vocab": VOCABULARY,
        "depth": DEPTH,
        **{
            name: {
                "bytes": link.serialisation(name)[0],
                "serialisation_ms": link.serialisation(name)[1],
                "proposal_ms": measured * 1e3,
            }
            for name, measured in ((SPARSE, link.wide.sparse), (DENSE, link.wide.dense))
        },
        "megabits_per_second": link.wide.megabits,
    }
    return {
        "megabits": link.megabits,
        "delay_ms": link.delay * 1e3,
        "round_trip_ms": link.round_trip * 1e3,
        "large_vocabulary": large,
        "pairs": [
            {
                "pair": pair.name,
                "turns": pair.turns,
                "ways": [
                    {
                        "way": way.name,
                        "tokens_per_second": _finite(asdict(way.rate)),
                        "cost_beside_target_only": _finite(asdict(way.cost)),
                        "acceptance": way.acceptance,
                        "drafted_share_of_rounds": way.drafted,
                        "breaker": None if way.breaker is None else _breaker(way.breaker),
                        "report": way.report.as_dict(),
                    }
                    for way in pair.ways
                ],
            }
            for pair in link.pairs
        ],
    }


def _breaker(found: BreakerFound) -> dict[str, Any]:
    return asdict(found) | {"long_run": _finite(asdict(found.long_run))}


def _finite(values: dict[str, float]) -> dict[str, float | None]:
    """Return numbers as JSON has them: a bound that there is not is null."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
