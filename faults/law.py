"""The law of a text under a fault, enumerated over every word that a draw reads: no sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from typing import Final
from unittest.mock import patch

from draftwire.exact.words import Address, Domain
from draftwire.session import flight
from draftwire.wire.registry import WireVersion
from faults.requests import TINY
from faults.scene import PROMPT, Moment, Scene, Strike
from toys.enumeration import WordTree, law_of

Law = dict[tuple[tuple[int, ...], ...], Fraction]
GRID: Final = 2


def expected(texts: int) -> Law:
    """The target's own law of so many independent texts."""
    one: dict[tuple[int, ...], Fraction] = {}
    for text in product(range(TINY.vocab_size), repeat=TINY.tokens):
        mass = Fraction(1)
        for place, token in enumerate(text):
            row = TINY.p((*PROMPT, *text[:place]))
            mass *= Fraction(int(row[token]), int(sum(row)))
        if mass:
            one[text] = mass
    law: Law = {(): Fraction(1)}
    for _ in range(texts):
        law = {(*a, b): x * y for a, x in law.items() for b, y in one.items()}
    return law


def enumerated(moment: Moment, strike: Strike, *, pinned: bool) -> Law:
    """The law of the whole texts of a scene with this fault."""

    def run(tree: WordTree) -> tuple[tuple[int, ...], ...]:
        # A second text would double the words of every first one: the first is the one that counts.
        scene = Scene(
            moment, WireVersion.V2, TINY, strike, source=lambda key: tree, words=tree, pinned=pinned
        )
        scene.single = not pinned
        told = scene.run()
        if told.wrong:
            raise ValueError(f"{told.wrong[0]} in an enumerated run")
        return tuple(told.texts)

    walked: list[WordTree] = []

    def noted(tree: WordTree) -> tuple[tuple[int, ...], ...]:
        walked[:] = [tree]
        return run(tree)

    with patch.object(flight, "first_words", _audited_with(walked)):
        return law_of(noted, GRID)


def _audited_with(tree_of: list[WordTree]) -> Callable[..., Sequence[int]]:
    """The audit's words, from the tree that is walked, so that it finds what it has to find."""

    def first_words(key: int, generation: int, round_: int, first: int, depth: int) -> list[int]:
        tree = tree_of[0]
        places = range(first, first + depth)
        addresses = [Address(generation, round_, at, Domain.PROPOSAL) for at in places]
        return [next(tree.words(address)) for address in addresses]

    return first_words
