"""Proposals that are stopped early, through the real loop: the law, and what it brings (P35)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import pytest

from draftwire.drafter.early_stop import EarlyStop, FinishedRounds, StopRule
from draftwire.session.proposal import Proposal
from draftwire.verifier.client import DraftClient
from draftwire.verifier.generate import generate
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import CommitRider, ProposalPolicy
from testing.harness.clock import Clock
from testing.harness.paths import PATHS, drafting
from testing.toys.enumeration import WordTree, law_of
from testing.toys.models import ToyDrafter, ToyTarget, constant
from tests.verifier.test_laws import (
    Law,
    Shared,
    dense,
    enumerated,
    sparse,
    tables,
    targets_law,
)


class Depths:
    """What a rule has said over all texts: how often each position was admitted, and refused."""

    def __init__(self) -> None:
        self.admitted: Counter[int] = Counter()
        self.refused: Counter[int] = Counter()

    def say(self, drafted: int, admitted: bool) -> bool:
        """Count an answer about the draft behind so many."""
        (self.admitted if admitted else self.refused)[drafted + 1] += 1
        return admitted


@dataclass
class WhileSure:
    """Admits drafts as long as their q has an id of more than one half: the confidence alone."""

    depths: Depths = field(default_factory=Depths)
    drafted: int = 0

    def begin(self, number: int, rider: CommitRider, depth: int) -> None:
        """Another round."""
        self.drafted = 0

    def admits(self, confidence: float) -> bool:
        """The first, and those that are likely."""
        admitted = self.depths.say(self.drafted, not self.drafted or confidence > 0.5)
        self.drafted += admitted
        return admitted

    def goes_on(self) -> bool:
        """Always: the q tells."""
        return True


@dataclass
class ByTheRoundsBefore(WhileSure):
    """Admits one more than was accepted in the round before; two in the first."""

    most: int = 2

    def begin(self, number: int, rider: CommitRider, depth: int) -> None:
        """Another round."""
        self.drafted, self.most = 0, 2 if number == 1 else 1 + rider.accepted

    def admits(self, confidence: float) -> bool:
        """Every one whose q was computed."""
        self.drafted += self.depths.say(self.drafted, True)
        return True

    def goes_on(self) -> bool:
        """As many as that."""
        return self.drafted < self.most or self.depths.say(self.drafted, False)


RULES = (WhileSure, ByTheRoundsBefore)
CASES = [
    (2, dense(3), 4, 2, 10),
    (2, dense(3), 4, 2, 8),
    (2, sparse(3, 2), 4, 2, 5),
    (2, sparse(3, 2), 4, 2, 10),
]


def law_under(
    rule: type[WhileSure],
    path: str,
    vocab_size: int,
    policy: ProposalPolicy,
    length: int,
    grid: int,
    salt: int,
) -> tuple[Law, Law, Depths]:
    """The law of the real loop, the target's own, and what the rule has said."""
    p, q = tables(vocab_size, salt, grid)
    target, engine = ToyTarget(p, vocab_size), ToyDrafter(q, vocab_size)
    shared, prompt, depths = Shared(), (salt % vocab_size,), Depths()

    def rules(clock: Callable[[], float], finished: FinishedRounds) -> StopRule:
        return rule(depths)

    with drafting(path, engine, target, source=shared, audit=False, stop=rules) as client:

        def attach(tree: WordTree) -> DraftClient:
            shared.tree = tree
            return client

        law = enumerated(attach, target, prompt, policy, length, grid)
    return law, targets_law(p, prompt, length, vocab_size), depths


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("case", CASES)
def test_the_law_is_the_targets_whatever_a_causal_rule_stops(
    case: tuple[int, ProposalPolicy, int, int, int], rule: type[WhileSure]
) -> None:
    law, expected, depths = law_under(rule, "colocated", *case)
    assert law == expected
    assert depths.admitted[1] > depths.admitted[2] > 0  # drafts go on being made
    assert depths.refused.total() > 0


@pytest.mark.parametrize("path", PATHS)
def test_the_law_is_the_same_over_every_path(path: str) -> None:
    law, expected, _ = law_under(WhileSure, path, 2, sparse(2, 2), 3, 2, 6)
    assert law == expected


def test_a_draft_that_is_admitted_has_the_law_of_its_q() -> None:
    """P(x_i = . | i is admitted, what stands before it) = q_i, over all words of all positions."""
    _, q = tables(3, 9, 4)
    target = ToyTarget(constant(1, 1, 1), 3)
    counted: Counter[tuple[tuple[int, ...], int]] = Counter()
    shared = Shared()
    with drafting(
        "colocated",
        ToyDrafter(q, 3),
        target,
        source=shared,
        audit=False,
        stop=lambda clock, finished: WhileSure(),
    ) as client:

        def run(tree: WordTree) -> tuple[int, ...]:
            shared.tree = tree
            request = client.open((0,), 1)
            proposal = request.propose(sparse(3, 3))
            request.close()
            assert isinstance(proposal, Proposal)
            return proposal.tokens

        law = law_of(run, 4)
    assert {len(drafts) for drafts in law} == {1, 2, 3}
    for before in {drafts[:at] for drafts in law for at in range(len(drafts))}:
        admitted = {each: mass for each, mass in law.items() if len(each) > len(before)}
        here = {each: mass for each, mass in admitted.items() if each[: len(before)] == before}
        row = [Fraction(each) for each in q((0, *before))]
        for token in range(3):
            mass = sum(mass for each, mass in here.items() if each[len(before)] == token)
            counted[before, token] += 1
            assert mass == sum(here.values()) * row[token] / sum(row)
    assert len(counted) > 6


# The rule that is shipped ------------------------------------------------------------------------

DRAFT, FIXED, ROW = 1.0, 4.0, 1.0  # seconds of a draft, of a round, of a verified row


class Timed(ToyDrafter):
    """A drafter whose passes take time."""

    clock: Clock

    def forward(self, batch):  # type: ignore[no-untyped-def]
        """As it is, a second a pass."""
        self.clock.now += DRAFT
        return super().forward(batch)


class TimedTarget(ToyTarget):
    """A target whose passes take time, more of it for more rows."""

    clock: Clock

    def score(self, context, committed: Sequence[int], drafts: Sequence[int]):  # type: ignore[no-untyped-def]
        """As it is, four seconds and one for each row."""
        self.clock.now += FIXED + ROW * len(drafts)
        return super().score(context, committed, drafts)


def rate(easy: int, depth: int, *, stop: bool, tokens: int = 2000) -> float:
    """Tokens a second where ``easy`` of ten places are easy: there p and q agree and are sure."""
    clock = Clock()

    def is_easy(context: tuple[int, ...]) -> bool:
        return sum((at + 3) * token for at, token in enumerate(context[-3:])) * 7 % 10 < easy

    def guessed(context: tuple[int, ...]) -> Sequence[float]:
        sure = 0.95 if is_easy(context) else 0.3
        return [sure if each == (context[-1] + 1) % 8 else (1 - sure) / 7 for each in range(8)]

    def meant(context: tuple[int, ...]) -> Sequence[float]:
        if is_easy(context):
            return guessed(context)
        return [0.9 if each == (context[-1] + 3) % 8 else 0.1 / 7 for each in range(8)]

    engine, target = Timed(guessed, 8), TimedTarget(meant, 8)
    engine.clock = target.clock = clock
    rule = EarlyStop if stop else None
    with drafting("memory", engine, target, clock=clock, deadline=1e6, stop=rule) as client:
        sampling = Sampling(seed=3, max_tokens=tokens)
        made = list(generate(target, client, (1,), sampling, sparse(depth, 8)))
    return len(made) / clock.now


@pytest.mark.parametrize("easy", [0, 3, 8, 10])
def test_stopping_early_is_as_fast_as_the_best_fixed_depth(easy: int) -> None:
    """By seconds of a clock of its own: no noise, and nothing that is measured by chance."""
    fixed = {depth: rate(easy, depth, stop=False) for depth in (1, 2, 4, 8)}
    early = rate(easy, 8, stop=True)
    assert early > 0.96 * max(fixed.values()), (early, fixed)
    if easy == 8:  # where places differ, no fixed depth is right
        assert early > 1.02 * max(fixed.values()), (early, fixed)
