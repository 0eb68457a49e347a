"""Exact laws of programs that make random choices: every path is run, with its exact probability.

Two kinds of randomness are enumerated. :class:`AllWords` hands out words, each of all its values:
what a program does over *all words*, with nothing assumed about how it uses them.
:class:`Points` answers the two primitives ``below`` and ``locate`` themselves, each result with
its exact probability, so that no bound has to be a power of two; that the primitives have that law
over words is proved in ``tests/exact``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import cache
from itertools import accumulate, pairwise
from typing import TypeVar
from unittest.mock import patch

import draftwire.exact.verify as real
from draftwire.exact.counts import Counts
from draftwire.exact.words import Address

Result = TypeVar("Result", bound=Hashable)

ZERO, ONE = Fraction(0), Fraction(1)


class Choices:
    """One path: follows a script of earlier choices and takes the first branch after it."""

    def __init__(self, script: Sequence[int]) -> None:
        self._script = script
        self.taken: list[int] = []
        self.widths: list[int] = []
        self.probability = Fraction(1)

    def choose(self, shares: Sequence[Fraction]) -> int:
        """The index of one share; shares sum to one and none is zero."""
        depth = len(self.taken)
        index = self._script[depth] if depth < len(self._script) else 0
        self.taken.append(index)
        self.widths.append(len(shares))
        self.probability *= shares[index]
        return index


def explore(program: Callable[[Choices], Result]) -> dict[Result, Fraction]:
    """The law of a program's result: all of its paths, none twice."""
    law: dict[Result, Fraction] = {}
    script: list[int] = []
    while True:
        choices = Choices(script)
        result = program(choices)
        law[result] = law.get(result, Fraction(0)) + choices.probability
        script = choices.taken
        while script and script[-1] == choices.widths[len(script) - 1] - 1:
            script.pop()
        if not script:
            break
        script[-1] += 1
    assert sum(law.values()) == 1
    return law


class AllWords:
    """A word source in which every word takes all 2^bits values; an address read twice is equal.

    ``read`` holds the words of this path by (address, number). More than ``limit`` words at one
    address are an error of the test: its numbers were to make every decision terminate.
    """

    def __init__(self, choices: Choices, bits: int, limit: int = 6) -> None:
        self._choices = choices
        self._shares = [Fraction(1, 1 << bits)] * (1 << bits)
        self._limit = limit
        self.read: dict[tuple[Address, int], int] = {}

    def words(self, address: Address) -> Iterator[int]:
        """The words of an address; only those that are read are chosen."""
        for number in range(self._limit):
            if (address, number) not in self.read:
                self.read[address, number] = self._choices.choose(self._shares)
            yield self.read[address, number]
        raise AssertionError(f"{address} does not decide within {self._limit} words")


class Point:
    """The randomness of one address: a real number U of which an interval is known so far."""

    def __init__(self, source: Points, address: Address) -> None:
        self._source = source
        self._address = address

    def __iter__(self) -> Point:
        return self

    def __next__(self) -> int:
        raise AssertionError("a word was read outside of below and locate")

    def locate(self, edges: Sequence[Fraction]) -> int:
        """The number of edges at most U; U is narrowed to what that number says of it."""
        return self._source.locate(self._address, edges)


class Points:
    """A word source whose addresses hold exact real numbers.

    ``shared``: allow a second decision at an address, on the U that the first one left; otherwise
    it is an error, since no draw may be used twice (law 5).
    """

    def __init__(self, choices: Choices, *, shared: bool = False) -> None:
        self._choices = choices
        self._shared = shared
        self._known: dict[Address, tuple[Fraction, Fraction]] = {}

    def words(self, address: Address) -> Iterator[int]:
        """The point of an address."""
        return Point(self, address)

    def locate(self, address: Address, edges: Sequence[Fraction]) -> int:
        """See :meth:`Point.locate`."""
        assert self._shared or address not in self._known, f"two decisions at {address}"
        low, high = self._known.get(address, (ZERO, ONE))
        inside = sorted({edge for edge in edges if low < edge < high})
        cuts = [low, *inside, high]
        sizes = [b - a for a, b in pairwise(cuts)]
        index = self._choices.choose([size / (high - low) for size in sizes])
        self._known[address] = (cuts[index], cuts[index + 1])
        return sum(edge <= cuts[index] for edge in edges)


@cache
def _tickets(bound: int) -> tuple[Fraction, ...]:
    return tuple(Fraction(i, bound) for i in range(1, bound))


def words_under(bound: int, words: Point, bits: int = 0) -> int:
    return words.locate(_tickets(bound))


def place_of(edges: Sequence[int], denominator: int, words: Point, bits: int = 0) -> int:
    assert list(edges) == sorted(edges)
    assert not edges or 0 <= edges[0] <= edges[-1] <= denominator
    return words.locate([Fraction(edge, denominator) for edge in edges])


def _draw(counts: Counts, words: Point, bits: int = 0) -> int:
    edges = [Fraction(edge, counts.total) for edge in accumulate(counts.counts)]
    return counts.ids[words.locate(edges[:-1])]


@contextmanager
def primitives_by_law(*, draws: bool = False) -> Iterator[None]:
    """Let the real code's ``below`` and ``locate`` ask a :class:`Point` for their results.

    ``draws``: also its ``draw``, by tokens instead of by tickets, where M is too large to branch
    on; ``test_exhaustive.py`` proves that ``draw`` has that law.
    """
    with patch.object(real, "below", words_under), patch.object(real, "locate", place_of):
        if draws:
            with patch.object(real, "draw", _draw):
                yield
        else:
            yield
