"""Counts that another thread may read at any time: their shape never changes, only their numbers.

Every key there can be stands in them from the beginning, so a reader meets no half-made entry,
and nothing that a peer says becomes a key.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final, TypeVar

Key = TypeVar("Key", bound=Enum)

SECONDS: Final = (
    0.0002,
    0.0005,
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
)
"""Upper edges for times of rounds and batches, in seconds."""

SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128)
"""Upper edges for numbers of things done together."""


def zeros(keys: Iterable[Key]) -> dict[Key, int]:
    """Return a count of 0 for every key there can be."""
    return dict.fromkeys(keys, 0)


class Histogram:
    """How often a value fell below each edge and above the one before; and the sum of all values.

    edges: ascending upper edges, each belonging to its own place; one more place is above them all.
    """

    __slots__ = ("counts", "edges", "sum")

    def __init__(self, edges: Sequence[float]) -> None:
        """Begin with nothing."""
        self.edges = tuple(edges)
        self.counts = [0] * (len(self.edges) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.edges, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """Return how many values were at most each edge, and at last all of them (at infinity)."""
        out, below = [], 0
        for edge, count in zip((*self.edges, float("inf")), tuple(self.counts), strict=True):
            below += count
            out.append((edge, below))
        return out
