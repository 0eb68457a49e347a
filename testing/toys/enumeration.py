"""Enumerate a law through real code: run it once for every answer its words can give.

Where every edge that a word is held against is a multiple of 1/grid, the grid's first words stand
for all the words of their cell, and the law that comes out is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from fractions import Fraction
from typing import TypeVar

from draftwire.exact.words import Address, Domain
from draftwire.wire.registry import TOTAL

Outcome = TypeVar("Outcome", bound=Hashable)


class WordTree:
    """A WordSource that branches: a depth-first walk over all words, one leaf a run.

    The same address gives the same word within a run, on either side. With edges on the grid the
    first word decides; the ones after it, which fast paths read ahead, are the middle of the range.
    middle: a cell's word is its middle, for edges that are on the grid up to rounding.
    """

    def __init__(self, grid: int, *, middle: bool = False) -> None:
        self.grid = grid
        self._into = TOTAL // grid // 2 if middle else 0
        self._path: list[int] = []
        self._given: dict[tuple[int, Address], int] = {}

    def words(self, address: Address, key: int = 0) -> Iterator[int]:
        """Return the words at an address under a key: the branch, and middles after it."""
        at = key, address
        if at not in self._given:
            self._given[at] = len(self._given)
            if len(self._given) > len(self._path):
                self._path.append(0)
        yield self._path[self._given[at]] * (TOTAL // self.grid) + self._into
        while True:
            yield TOTAL // 2

    @property
    def domains(self) -> list[Domain]:
        """The domains of the addresses asked in this run, in order."""
        return [address.domain for _, address in self._given]

    def next_leaf(self) -> bool:
        """Go to the next leaf; False when all have been visited."""
        self._given.clear()
        while self._path and self._path[-1] == self.grid - 1:
            self._path.pop()
        if not self._path:
            return False
        self._path[-1] += 1
        return True

    @property
    def weight(self) -> Fraction:
        """The probability of the leaf just visited."""
        return Fraction(1, self.grid ** len(self._given))


def law_of(
    run: Callable[[WordTree], Outcome], grid: int, *, middle: bool = False
) -> dict[Outcome, Fraction]:
    """Return the exact law of what ``run`` returns, over all words it reads from the tree."""
    tree = WordTree(grid, middle=middle)
    law: dict[Outcome, Fraction] = {}
    while True:
        outcome = run(tree)
        law[outcome] = law.get(outcome, Fraction(0)) + tree.weight
        if not tree.next_leaf():
            return law
