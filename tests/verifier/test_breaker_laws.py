"""No decision of the breaker changes the law of a text: over all words, through the real loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

from draftwire.exact.words import Address, Domain
from draftwire.verifier.breaker import (
    Breaker,
    BreakerConfig,
    Choice,
    Gain,
    Paused,
    RequestBreaker,
)
from draftwire.verifier.emission import Kind
from draftwire.verifier.generate import generate
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.sampling import Sampling
from draftwire.verifier.together import Question, run_together
from testing.harness.paths import drafting
from testing.toys.enumeration import WordTree, law_of
from testing.toys.models import ToyDrafter, ToyTarget
from tests.engines.enumerated_laws import KeyedTree
from tests.verifier.test_laws import Shared, dense, tables, targets_law


class Toggling(Breaker):
    """Chooses by what the rounds before have emitted: history, of which tokens are a part."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[int] = []

    def admits(self, requests: Sequence[RequestBreaker], size: int | None = None) -> list[Choice]:
        choice = Choice.PAUSE if sum(self.history) % 2 else Choice.DRAFT
        return [choice] * len(requests)

    def finished(
        self,
        requests: Sequence[RequestBreaker],
        choices: Sequence[Choice],
        gains: Sequence[Gain],
        *arguments: Any,
        **named: Any,
    ) -> list[Paused]:
        for choice, gain in zip(choices, gains, strict=True):
            self.history.append(gain.tokens + (choice is Choice.DRAFT))
        return []


@pytest.mark.parametrize("salt", [3, 6])
def test_a_breaker_that_follows_the_history_keeps_the_law(salt: int) -> None:
    """Over all words, through the real loop: rounds are drafted or not by what came before."""
    p, q = tables(2, salt, 2)
    target, engine = ToyTarget(p, 2), ToyDrafter(q, 2)
    shared, seen = Shared(), set()
    with drafting("colocated", engine, target, source=shared, audit=False) as client:

        def text(tree: WordTree) -> tuple[int, ...]:
            shared.tree = tree
            client.breaker = Toggling()
            sampling = Sampling(seed=0, max_tokens=4)
            emissions = list(generate(target, client, (0,), sampling, dense(2), words=tree))
            seen.update((e.index, e.kind) for e in emissions)
            return tuple(e.token for e in emissions)

        law = law_of(text, 2)
    assert law == targets_law(p, (0,), 4, 2)
    assert {Kind.TARGET_ONLY, Kind.ACCEPTED} <= {kind for index, kind in seen if index in (1, 2)}


def test_a_breaker_that_sees_the_draw_does_not() -> None:
    """The same, told by the word that is about to be used: (1/4, 3/4) in place of (1/2, 1/2)."""
    target = ToyTarget(lambda context: (2, 2), 2)
    engine = ToyDrafter(lambda context: (2, 2), 2)
    shared = Shared()

    class Peeking(Breaker):
        def admits(self, requests: Any, size: int | None = None) -> list[Choice]:
            assert shared.tree is not None
            word = next(shared.tree.words(Address(1, 1, 1, Domain.PROPOSAL)))
            return [Choice.DRAFT if word else Choice.PAUSE]  # a word of 0 draws the token 0

    with drafting("colocated", engine, target, source=shared, audit=False) as client:
        client.breaker = Peeking()

        def text(tree: WordTree) -> int:
            shared.tree = tree
            sampling = Sampling(seed=0, max_tokens=2)
            emissions = list(generate(target, client, (0,), sampling, dense(1), words=tree))
            return emissions[0].token

        law = law_of(text, 2)
    assert law == {0: Fraction(1, 4), 1: Fraction(3, 4)}


LENGTH = 4
P, Q = (1, 1), (1, 0)  # a draft is always 0, whatever its word, and accepted half of the time


class Quick(Breaker):
    """The real one, that judges after a single round: one of two tokens pays, of one does not.

    It takes 1 s without drafts and 1.5 s with them, whatever the clock says.
    """

    def __init__(self) -> None:
        super().__init__(
            BreakerConfig(block=1, window=1, least=1, samples=1, first_pause=1, longest_pause=1)
        )
        self.decided: list[tuple[Choice, ...]] = []
        for size in (1, 2):
            requests = [self.open() for _ in range(size)]
            super().finished(requests, [Choice.SAMPLE] * size, [Gain(1)] * size, 1.0)
            for each in requests:
                each.close()

    def admits(self, requests: Sequence[RequestBreaker], size: int | None = None) -> list[Choice]:
        choices = super().admits(requests, size)
        self.decided.append(tuple(choices))
        return choices

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
        for each in requests:
            each.cold = False
        seconds = 1.5 if Choice.DRAFT in choices else 1.0
        return super().finished(requests, choices, gains, seconds)


def scored(target: ToyTarget) -> Any:
    def score_all(questions: Sequence[Question[Any]]) -> Any:
        return np.concatenate([target.score(*each) for each in questions])

    return score_all


@contextmanager
def two_texts(breaker: type[Breaker]) -> Iterator[tuple[Any, list[Breaker]]]:
    """Yield what runs two texts of one pass to their ends, with a new breaker each time."""
    target, engine = ToyTarget(lambda context: P, 2), ToyDrafter(lambda context: Q, 2)
    used = list[Breaker]()
    with drafting("colocated", engine, target) as client:
        assert isinstance(client, LocalDrafter)

        def run(tree: WordTree) -> tuple[tuple[int, ...], ...]:
            client.breaker = breaker()
            used.append(client.breaker)
            running = [
                generate(
                    target,
                    client,
                    (0,),
                    Sampling(seed=0, stream=text, max_tokens=LENGTH),
                    dense(1),
                    words=KeyedTree(tree, text),
                )
                for text in range(2)
            ]
            run_together(running, scored(target), client)
            return tuple(tuple(each.tokens) for each in running)

        yield run, used


def test_texts_that_pause_one_by_one_have_the_product_of_their_laws() -> None:
    """The real breaker, for two texts of one pass: acceptance of one round decides on the next."""
    with two_texts(Quick) as (run, used):
        law = law_of(run, 2)
    alone = targets_law(lambda context: P, (0,), LENGTH, 2)
    assert law == {
        (one, other): alone[one] * alone[other] for one, other in product(alone, repeat=2)
    }
    decided = {choices for each in used for choices in each.decided}  # type: ignore[attr-defined]
    draft, pause = Choice.DRAFT, Choice.PAUSE_REQUEST
    assert {(draft, draft), (draft, pause), (pause, draft), (pause, pause)} <= decided


def test_a_text_keeps_its_law_where_finished_rounds_of_it_pause_it() -> None:
    """The same for one text alone, four tokens of tables with a memory."""
    p, q = tables(2, 6, 2)
    target, engine = ToyTarget(p, 2), ToyDrafter(q, 2)
    shared, decided = Shared(), set[tuple[Choice, ...]]()
    with drafting("colocated", engine, target, source=shared, audit=False) as client:

        def text(tree: WordTree) -> tuple[int, ...]:
            shared.tree = tree
            client.breaker = breaker = Quick()
            sampling = Sampling(seed=0, max_tokens=5)
            made = tuple(
                e.token for e in generate(target, client, (0,), sampling, dense(2), words=tree)
            )
            decided.update(breaker.decided)
            return made

        law = law_of(text, 2)
    assert law == targets_law(p, (0,), 5, 2)
    assert {(Choice.DRAFT,), (Choice.PAUSE_REQUEST,)} <= decided


def test_a_breaker_that_sees_whether_this_rounds_draft_is_accepted_does_not() -> None:
    """It leaves out the rounds that would lose: p = (1/4, 3/4) comes out as (5/16, 11/16)."""
    target = ToyTarget(lambda context: (1, 3), 2)
    engine = ToyDrafter(lambda context: (2, 2), 2)
    shared = Shared()

    class Retrospective(Breaker):
        def admits(self, requests: Any, size: int | None = None) -> list[Choice]:
            assert shared.tree is not None
            drawn = next(shared.tree.words(Address(1, 1, 1, Domain.PROPOSAL)))
            judged = next(shared.tree.words(Address(1, 1, 1, Domain.ACCEPTANCE)))
            rejected = drawn < 1 << 23 <= judged  # a draft of 0 is accepted half of the time
            return [Choice.PAUSE_REQUEST if rejected else Choice.DRAFT]

    with drafting("colocated", engine, target, source=shared, audit=False) as client:
        client.breaker = Retrospective()

        def text(tree: WordTree) -> int:
            shared.tree = tree
            sampling = Sampling(seed=0, max_tokens=2)
            emissions = list(generate(target, client, (0,), sampling, dense(1), words=tree))
            return emissions[0].token

        law = law_of(text, 4)
    assert law == {0: Fraction(5, 16), 1: Fraction(11, 16)}
