"""The law of a text under a fault, enumerated over every word that a draw reads: no sample.

The text is certain but around two places: where the fault strikes, and where drafting goes on after
it. A first run finds them; then every run must be struck and end as the watched request of the cell
did, so that what is enumerated is what the table says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from draftwire.exact.words import Address, Domain, WordSource
from draftwire.session import pending_round as flight
from draftwire.verifier.miss import MissReason
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import WireVersion
from testing.faults.play import play
from testing.faults.requests import PROMPTS, Open, Size, tiny_request
from testing.faults.scene import Aimed, Moment, Places, Scene, Strike, Told
from testing.toys.enumeration import WordTree

Text = tuple[int, ...]
Law = dict[tuple[Text, ...], Fraction]

GRID: Final = 2
ROUND: Final = 3
"""The round that is struck, as in the request that is watched."""
MOST_RUNS: Final = 3000


class OtherCaseError(Exception):
    """A tiny run was not struck, or ended in another way than the cell that it stands for."""


class OtherRequestError(OtherCaseError):
    """The tiny request as such is another case: its frames hold other values."""


@dataclass(frozen=True)
class Case:
    """What is enumerated. wanted: the outcome that every run must have, None = any."""

    moment: Moment
    strike: Strike
    policy: ProposalPolicy
    tokens: int = 40  # of the watched request
    again: bool = False
    pinned: bool = False
    together: int = 1
    wanted: tuple[str, ...] | None = None


@dataclass
class Enumerated:
    """A law, and how it was come by. seeds: of the texts."""

    law: Law = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    size: Size | None = None
    runs: int = 0

    def is_the_targets(self) -> bool:
        """Say whether it is the target's own, of independent texts."""
        assert self.size is not None
        return self.law == expected(self.size, self.seeds)


def shape(told: Told) -> tuple[str, ...]:
    """Return how a run ended, as far as a text of another length can end so too.

    Rounds without a drafter to ask are not counted (their number follows from the
    length and from time), nor, where drafting does not go on, any round that was not asked.
    """
    free = {MissReason.NO_CONNECTION.value}
    if not told.resumed:
        free |= {reason.value for reason in MissReason}
    lost = [name if name in free else f"{name} {n}" for name, n in sorted(told.misses.items())]
    ignored = [f"ignored {name} {n}" for name, n in sorted(told.ignored.items())]
    rest = [f"strays {told.strays}", f"connections {told.connections}", f"resumed {told.resumed}"]
    apart = [
        f"{name} {n} of {at}" for at, lost in enumerate(told.apart, 1) for name, n in lost.items()
    ]
    return (*lost, *ignored, *rest, *apart)


def expected(size: Size, seeds: Sequence[int]) -> Law:
    """The target's own law of independent texts of these requests."""
    law: Law = {(): Fraction(1)}
    for seed in seeds:
        texts = dict(_texts(size, PROMPTS[seed], size.tokens))
        law = {(*a, b): x * y for a, x in law.items() for b, y in texts.items()}
    return law


def _texts(size: Size, context: Text, left: int) -> Iterator[tuple[Text, Fraction]]:
    if not left:
        yield (), Fraction(1)
        return
    row = size.p(context)
    for token, weight in enumerate(row):
        if weight:
            for text, mass in _texts(size, (*context, token), left - 1):
                yield (token, *text), mass * Fraction(int(weight), int(sum(row)))


def enumerated(case: Case) -> Enumerated:
    """The law of the whole texts of a case; OtherCaseError if a run of it is another case."""
    open_, tokens = _places(case)
    return _enumerated(case, _size(case, tokens, open_), open_)


def enumerations(case: Case) -> Iterator[Enumerated]:
    """The laws of a case; where requests are asked together of the struck one and its neighbour.

    First of each with all others certain, then of both at once, around the struck round.
    """
    if case.together == 1:
        yield enumerated(case)
        return
    aimed = case.strike.which if isinstance(case.strike, Aimed) else 1
    places, depth = _places_of(case, {}), case.policy.depth
    struck: Open = {
        seed: frozenset(range(places[seed][0], places[seed][0] + depth))
        for seed in (aimed, aimed % case.together + 1)
    }
    for seed in struck:
        open_, tokens = _open_around(case, seed, struck)
        yield _enumerated(case, _size(case, tokens, open_), open_)
    tokens = max(map(max, struck.values())) + 4 * depth + 4
    yield _enumerated(case, _size(case, tokens, struck), struck)


def _enumerated(case: Case, size: Size, open_: Open) -> Enumerated:
    words = _Words(open_)
    found = Enumerated(size=size)
    while True:
        told = _run(case, size, words)
        texts, seeds = tuple(told.texts), tuple(told.seeds)
        if found.runs and seeds != found.seeds:
            raise OtherCaseError(f"texts of {seeds}, not of {found.seeds}")
        found.law[texts] = found.law.get(texts, Fraction(0)) + words.tree.weight
        found.seeds = seeds
        found.runs += 1
        if found.runs > MOST_RUNS:
            raise OtherCaseError(f"more than {MOST_RUNS} runs")
        if not words.tree.next_leaf():
            return found


def _run(case: Case, size: Size, words: _Words | None) -> Told:
    scene = Scene(case.moment, WireVersion.V2, size, case.strike, together=case.together)
    scene.again, scene.pinned = case.again, case.pinned
    if words is None:
        told = play(scene)
    else:
        scene.use_words(words.of_request, words.of_proposals)
        with patch.object(flight, "proposal_words", words.audited):
            told = play(scene)
    if told.wrong:
        raise OtherCaseError(told.wrong[0])
    if not told.struck:
        raise OtherCaseError("the fault did not strike")
    if case.wanted is not None and shape(told) != case.wanted:
        raise OtherCaseError(f"ended as {shape(told)}, not as {case.wanted}")
    return told


def _places(case: Case) -> tuple[Open, int]:
    """Return the places to open and the tokens of a text.

    Where the fault strikes is seen with nothing open; where drafting goes on, with the struck round
    open and the word 0 everywhere, which accepts all that p allows.
    """
    depth, second = case.policy.depth, case.moment is Moment.ENDING or case.pinned
    blind = replace(case, wanted=None)
    try:
        first = _run(blind, _size(case, case.tokens, {}), None).struck_at
    except KeyError as error:  # its frames have no such field
        raise OtherRequestError(str(error)) from error
    struck = frozenset() if case.moment is Moment.ENDING else frozenset(range(first, first + depth))
    open_: Open = {1: struck}
    try:
        told = _run(case, _size(case, case.tokens, open_), _Words(open_))
    except OtherCaseError as error:
        raise OtherRequestError(str(error)) from error
    last = told.resumed_at if told.resumed else first + depth + 2
    if second:  # struck in (or at the end of) the first request, drafted again in the second
        opened = frozenset(range(last, last + 2 * depth + 1))
        return {1: struck, 2: opened}, max(opened | struck) + 1 + depth
    opened = struck | frozenset(range(max(last - depth, first), last + depth + 1))
    return {1: opened}, max(opened) + 1


def _places_of(case: Case, open_: Open) -> Places:
    """Where requests that are asked together are struck, and drafted again."""
    blind = replace(case, wanted=None)
    words = _Words(open_) if open_ else None
    try:
        return _run(blind, _size(case, case.tokens, open_), words).places
    except (KeyError, OtherCaseError) as error:
        raise OtherRequestError(str(error)) from error


def _open_around(case: Case, seed: int, struck: Open) -> tuple[Open, int]:
    """Return the places of one of them that are open, and the tokens of a text."""
    depth = case.policy.depth
    places = _places_of(case, {seed: struck[seed]})
    first, last = places[seed]
    if last is None:
        raise OtherRequestError("drafting does not go on")
    opened = struck[seed] | frozenset(range(max(last - depth, first), last + depth + 1))
    ends = [again or 0 for _, again in places.values()]
    return {seed: opened}, max(*opened, *ends) + 1 + depth


def _size(case: Case, tokens: int, open_: Open) -> Size:
    return tiny_request(case.policy, tokens, ROUND, open_)


class _Words:
    """The words of both sides: a branch for each cell where a place is open, one word elsewhere.

    Where p and q are certain every edge that a word is held against is 0 or 1, so one word stands
    for all, as two do where they are halves.
    """

    def __init__(self, open_: Open) -> None:
        self.tree = WordTree(GRID)
        self._open = open_
        self._proposals = {_proposal_key(seed): seed for seed in PROMPTS}

    def of_request(self, seed: int) -> WordSource:
        """The words of the target's side of a request."""
        return _View(self, seed)

    def of_proposals(self, key: int) -> WordSource:
        """The words of proposals under a key; an unknown key has one word an address."""
        return _View(self, self._proposals.get(key, 0))

    def at(self, address: Address, seed: int) -> Iterator[int]:
        """The words of a request at an address."""
        place = address.position - len(PROMPTS.get(seed, ()))
        if place in self._open.get(seed, frozenset()):
            yield from self.tree.words(address, seed)
        while True:
            yield 0

    def audited(
        self, key: int, generation: int, round_: int, first: int, depth: int
    ) -> NDArray[np.int64]:
        """The words that the audit recomputes."""
        source = self.of_proposals(key)
        places = range(first, first + depth)
        addresses = [Address(generation, round_, at, Domain.PROPOSAL) for at in places]
        return np.array([next(source.words(address)) for address in addresses], np.int64)


@dataclass(frozen=True)
class _View:
    words_of: _Words
    seed: int

    def words(self, address: Address) -> Iterator[int]:
        """The words of ``address``."""
        return self.words_of.at(address, self.seed)


def _proposal_key(seed: int) -> int:
    return Sampling(temperature=1.0, seed=seed, max_tokens=1).request_key().proposal_key
