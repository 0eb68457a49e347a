"""What every benchmark shares: alternating measurement, goals, and one JSON-able result."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Goal:
    """A bound that a measured value is held against: at most ``limit``."""

    name: str
    value: float
    limit: float

    @property
    def met(self) -> bool:
        """Whether the value is at most the limit; NaN never is."""
        return self.value <= self.limit


@dataclass
class Result:
    """What one benchmark measured: figures to print in order, and goals."""

    name: str
    figures: dict[str, Any] = field(default_factory=dict)
    goals: list[Goal] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "name": self.name,
            "figures": self.figures,
            "goals": [{**asdict(goal), "met": goal.met} for goal in self.goals],
        }


def table(result: Result) -> str:
    """Return one result as text: figures in order, then goals."""
    lines = [f"== {result.name}"]
    for name, figure in result.figures.items():
        if isinstance(figure, dict):
            lines.append(f"   {name}")
            lines += [f"      {key:<44} {value}" for key, value in figure.items()]
        else:
            lines.append(f"   {name:<47} {figure}")
    for goal in result.goals:
        verdict = "met" if goal.met else "MISSED"
        lines.append(f"   goal: {goal.name} = {goal.value:.3g}, at most {goal.limit:g}: {verdict}")
    return "\n".join(lines) + "\n"


def alternate(
    ways: Mapping[str, Callable[[], object]], repeats: int, warm_up: int = 3
) -> dict[str, list[float]]:
    """Time each way ``repeats`` times, turn by turn, in seconds.

    A way that returns a float has timed itself, leaving its preparation out.
    Turns make whatever else the machine does meet every way alike; compare by the median of the
    ratios within a turn.
    """
    for way in ways.values():
        for _ in range(warm_up):
            way()
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            began = time.perf_counter()
            measured = way()
            took = time.perf_counter() - began
            times[name].append(measured if isinstance(measured, float) else took)
    return times


def in_blocks(
    ways: Mapping[str, Callable[[], object]], repeats: int, blocks: int = 10
) -> dict[str, list[float]]:
    """Time each way ``repeats`` times in blocks that take turns: each way in its steady state."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(blocks):
        for name, way in ways.items():
            once = alternate({name: way}, repeats // blocks)
            times[name] += once[name]
    return times


def ratio(times: Mapping[str, list[float]], ours: str, peer: str) -> float:
    """Return the median over the turns of our time by the peer's."""
    return statistics.median(a / b for a, b in zip(times[ours], times[peer], strict=True))


def medians(times: Mapping[str, list[float]], scale: float = 1e6) -> dict[str, float]:
    """Return the median time of each way, in microseconds by default."""
    return {name: round(statistics.median(each) * scale, 2) for name, each in times.items()}
