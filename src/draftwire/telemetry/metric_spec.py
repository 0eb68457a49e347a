"""What a metric is: its name, kind, help and label, and where its number is read.

Values of labels are positions and members of enums, never anything that a peer said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeAlias, TypeVar

from draftwire.telemetry.histogram import Histogram

Number: TypeAlias = int | float
Labelled: TypeAlias = Mapping[str, Number]
Source = TypeVar("Source")


class Kind(Enum):
    """What a number does."""

    COUNTER = "counter"  # only grows
    GAUGE = "gauge"  # is what it is now
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricSpec(Generic[Source]):
    """One metric. read: its number, its numbers by the value of ``label``, or its histogram."""

    name: str
    kind: Kind
    help: str
    read: Callable[[Source], Number | Labelled | Histogram]
    label: str = ""

    @property
    def exposed_name(self) -> str:
        """The name as it is scraped."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name


def by_name(counts: Mapping[Any, int]) -> Labelled:
    """Return counts under the lower-case names of their enum's members."""
    return {key.name.lower(): count for key, count in counts.items()}


def by_position(counts: Sequence[int]) -> Labelled:
    """Return counts under their positions, from 0."""
    return {str(position): count for position, count in enumerate(counts)}


def by_reason(counts: Mapping[Any, int], keys: Iterable[Enum]) -> Labelled:
    """Return the count of each key there can be under its value."""
    return {key.value: counts.get(key, 0) for key in keys}


def markdown(specs: Sequence[MetricSpec[Source]]) -> str:
    """Return the table of docs/guides/operations.md."""
    lines = ["| metric | kind | label | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{each.exposed_name}` | {each.kind.value} | {f'`{each.label}`' if each.label else ''} |"
        f" {each.help} |"
        for each in specs
    ]
    return "\n".join(lines)
