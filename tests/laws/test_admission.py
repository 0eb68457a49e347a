"""Which positions are verified is fixed before they are drawn (law 4), failure included.

Both published traps with their numbers, what a drafter may and may not die of, and the rules that
are allowed: everything that is known before the draw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction as F

from draftwire.drafter.early_stop import EarlyStop, FinishedRounds
from draftwire.exact.counts import Counts
from draftwire.session.proposal import NO_RIDER
from draftwire.wire.messages import CommitRider
from draftwire.wire.registry import Outcome
from spec.oracle.laws import Ending, Tokens, target_law
from tests.laws.decoding import (
    Pair,
    Proposal,
    Round,
    Rules,
    first_token,
    fixed,
    law_by_rounds,
    law_of_whole_texts,
)
from tests.laws.enumeration import Choices, Points, explore, primitives_by_law
from tests.laws.mutants import Retrospective
from tests.laws.pairs import FAMILIES, constant

HALF = constant((1, 1), (1, 1))
DSPARK = constant((7, 3), (1, 1))
A, B = 0, 1
LEARNED = 1000  # rounds behind which none is a trial


def marginal(rules: Rules, pair: Pair, depth: int) -> list[F]:
    return first_token(law_by_rounds(rules, pair, fixed(depth), Ending(1)), 2)


# The first trap: admit the first draw only when it is token 0 ------------------------------------


def only_token_zero(proposal: Proposal) -> int:
    return int(proposal[0][0] == A)


def test_admitting_a_draw_by_its_value_gives_three_quarters() -> None:
    assert marginal(Rules(), HALF, 1) == [F(1, 2), F(1, 2)]
    assert marginal(Retrospective(only_token_zero), HALF, 1) == [F(3, 4), F(1, 4)]


# The second: a global search over depths with confidences that know the draw ---------------------

THROUGHPUT = (F(1), F(1, 2), F(45, 100))  # of 1, 2, 3 verified positions
FIRST_ACCEPTANCE = F(8, 10)  # min(0.7, 0.5) + min(0.3, 0.5)


def scores(first: int) -> list[F]:
    """Expected tokens times throughput at depths 0, 1, 2; the second confidence knows the draw."""
    second = F(9, 10) if first == A else F(0)
    expected = (F(1), 1 + FIRST_ACCEPTANCE, 1 + FIRST_ACCEPTANCE + FIRST_ACCEPTANCE * second)
    return [tokens * rate for tokens, rate in zip(expected, THROUGHPUT, strict=True)]


def global_best(proposal: Proposal) -> int:
    values = scores(proposal[0][0])
    return values.index(max(values))


def first_that_does_not_improve(proposal: Proposal) -> int:
    """Stop at the first depth that is no better than the one before; it never looks further."""
    values = scores(proposal[0][0])
    return next((d for d in range(2) if values[d + 1] <= values[d]), 2)


def test_scores_of_the_published_counterexample() -> None:
    assert scores(A) == [1, F(9, 10), F(1134, 1000)]
    assert scores(B) == [1, F(9, 10), F(81, 100)]
    assert [global_best([(x, DSPARK.q(()))]) for x in (A, B)] == [2, 0]
    assert [first_that_does_not_improve([(x, DSPARK.q(()))]) for x in (A, B)] == [0, 0]


def test_global_search_over_depths_gives_85_15_and_stopping_gives_70_30() -> None:
    assert marginal(Retrospective(global_best), DSPARK, 2) == [F(85, 100), F(15, 100)]
    sequential = Retrospective(first_that_does_not_improve)
    assert marginal(sequential, DSPARK, 2) == [F(7, 10), F(3, 10)]
    assert marginal(Rules(), DSPARK, 2) == [F(7, 10), F(3, 10)]


# Failure is a selection too ----------------------------------------------------------------------


class DrafterThatDies(Rules):
    """A target-only round takes the place of a proposal that was drawn and never arrived."""

    def __init__(self, dies: Callable[[Choices, Proposal], bool], choices: Choices) -> None:
        self.dies = dies
        self.choices = choices

    def emit(self, this: Round) -> Tokens:
        """One round, with the fault after the draw."""
        proposal = self.propose(this)
        return self.alone(this) if self.dies(self.choices, proposal) else self.judge(this, proposal)


def law_with_faults(dies: Callable[[Choices, Proposal], bool], pair: Pair, depth: int) -> list[F]:
    def program(choices: Choices) -> Tokens:
        this = Round(pair, 1, (), depth, Points(choices), 24)
        return DrafterThatDies(dies, choices).emit(this)

    with primitives_by_law():
        return first_token(explore(program), 2)


def test_fault_independent_of_the_draws_leaves_the_law() -> None:
    def one_in_three(choices: Choices, proposal: Proposal) -> bool:
        return choices.choose([F(1, 3), F(2, 3)]) == 0

    assert law_with_faults(one_in_three, HALF, 1) == [F(1, 2), F(1, 2)]
    assert law_with_faults(one_in_three, DSPARK, 2) == [F(7, 10), F(3, 10)]
    assert law_with_faults(lambda choices, proposal: True, DSPARK, 2) == [F(7, 10), F(3, 10)]


def test_fault_that_depends_on_the_draw_gives_a_quarter() -> None:
    assert law_with_faults(lambda _, proposal: proposal[0][0] == A, HALF, 1) == [F(1, 4), F(3, 4)]


def test_late_reply_may_be_used_or_not_by_its_time_alone() -> None:
    # Whether it arrives before the target-only round has begun is a matter of the clock ...
    def late(choices: Choices, proposal: Proposal) -> bool:
        return choices.choose([F(1, 10), F(9, 10)]) == 0

    assert law_with_faults(late, HALF, 2) == [F(1, 2), F(1, 2)]

    # ... and not of its size, were it to depend on what was drawn: A packs into fewer bytes.
    def late_when_large(choices: Choices, proposal: Proposal) -> bool:
        slow = F(9, 10) if proposal[0][0] == B else F(1, 10)
        return choices.choose([slow, 1 - slow]) == 0

    assert law_with_faults(late_when_large, HALF, 1) != [F(1, 2), F(1, 2)]


# What is allowed ---------------------------------------------------------------------------------


class StopsBeforeTheDraw(Rules):
    """Admits position i + 1 by x_1..x_i, before it is drawn, and never takes an admission back."""

    def propose(self, this: Round) -> Proposal:
        """Go on while the last draft was even."""
        proposal: Proposal = []
        while len(proposal) < this.depth and (not proposal or proposal[-1][0] % 2 == 0):
            drafts = tuple(token for token, _ in proposal)
            counts: Counts = this.pair.q((*this.text, *drafts))
            proposal.append((self.draw(this, len(drafts), counts, drafts), counts))
        return proposal


def test_stopping_before_a_draw_by_earlier_draws_leaves_the_law() -> None:
    for family, make in FAMILIES.items():
        pair, ending = make(3, 8), Ending(3)
        law = law_by_rounds(StopsBeforeTheDraw(), pair, fixed(3), ending, draws=True)
        assert law == target_law(pair.target, ending), family


def test_depth_from_the_rounds_before_leaves_the_law() -> None:
    # A controller that goes deeper after every accepted text: it looks at committed tokens alone.
    def deeper(number: int, text: Tokens) -> int:
        return min(3, len(text) - number + 1 if text else 1)

    for family, make in FAMILIES.items():
        pair, ending = make(2, 8), Ending(4)
        law = law_by_rounds(Rules(), pair, deeper, ending, draws=True)
        assert law == target_law(pair.target, ending), family


class StopsByTheShippedRule(Rules):
    """The drafter's own rule, over a whole text: it learns from the rounds before."""

    def __init__(self) -> None:
        self.depths: Counter[int] = Counter()

    def propose(self, this: Round) -> Proposal:
        """As the drafter's program does: the rule is asked before each draw, and behind it."""
        if this.number == 1:  # another text
            self.now, self.rider = 0.0, NO_RIDER
            self.stop = EarlyStop(lambda: self.now, FinishedRounds(begun=LEARNED, look=3.0))
            self.stop.begin(0, NO_RIDER, this.depth)
            self.stop.admits(0.5)  # a round before this text, of one draft and ten seconds
            self.now, self.rider = 10.0, CommitRider(0, 1, Outcome.BONUS)
        self.stop.begin(this.number, self.rider, this.depth)
        self.now += 8
        proposal: Proposal = []
        while len(proposal) < this.depth:
            drafts = tuple(token for token, _ in proposal)
            counts: Counts = this.pair.q((*this.text, *drafts))
            self.now += 3
            if not self.stop.admits(max(counts.counts) / counts.total):
                break
            proposal.append((self.draw(this, len(drafts), counts, drafts), counts))
            if not self.stop.goes_on():
                break
        self.depths[len(proposal)] += 1
        return proposal

    def judge(self, this: Round, proposal: Proposal) -> Tokens:
        """As it is; the verdict is what the next round's rule learns."""
        tokens = super().judge(this, proposal)
        accepted = len(tokens) - 1
        outcome = Outcome.BONUS if accepted == len(proposal) else Outcome.CORRECTION
        self.rider = CommitRider(this.number, accepted, outcome)
        return tokens


def test_the_shipped_rule_leaves_the_law_while_it_learns() -> None:
    depths: Counter[int] = Counter()
    for family, make in FAMILIES.items():
        pair, ending, rules = make(2, 8), Ending(4), StopsByTheShippedRule()
        law = law_of_whole_texts(rules, pair, fixed(3), ending, draws=True)
        assert law == target_law(pair.target, ending), family
        depths += rules.depths
    assert set(depths) == {1, 2, 3}


# And what is not: each looks at the draw that it decides -----------------------------------------


def first_below(least: F) -> Callable[[Proposal], int]:
    """Verify up to the first draft whose own q is small: a threshold on what was drawn."""

    def depth(proposal: Proposal) -> int:
        small = (
            at
            for at, (token, counts) in enumerate(proposal)
            if F(counts.of(token), counts.total) < least
        )
        return next(small, len(proposal))

    return depth


SKEWED = constant((1, 1), (3, 1))


def test_dropping_a_draft_since_its_own_q_is_small_changes_the_law() -> None:
    assert marginal(Rules(), SKEWED, 1) == [F(1, 2), F(1, 2)]
    # 0 (3/4): accepted with 2/3, else 1. 1 (1/4): dropped, and drawn from p.
    assert marginal(Retrospective(first_below(F(1, 2))), SKEWED, 1) == [F(5, 8), F(3, 8)]


def test_a_confidence_that_knows_the_draw_changes_the_law() -> None:
    def sure_of(proposal: Proposal) -> int:
        """A head that is fed with the token just drawn, and stops before it."""
        return next((at for at, (token, _) in enumerate(proposal) if token == B), len(proposal))

    assert marginal(Retrospective(sure_of), HALF, 1) == [F(3, 4), F(1, 4)]


def test_a_batch_that_is_cut_by_the_values_of_its_drafts_changes_the_law() -> None:
    """Two requests, one row to verify: it goes to the one whose draft has the larger q."""
    law = [F(0), F(0)]
    q = [F(3, 4), F(1, 4)]
    for mine, other in ((x, y) for x in (A, B) for y in (A, B)):
        mass = q[mine] * q[other]
        wins = F(1) if q[mine] > q[other] else F(1, 2) if q[mine] == q[other] else F(0)
        judged = [F(2, 3), F(1, 3)] if mine == A else [F(0), F(1)]
        for token in (A, B):
            law[token] += mass * (wins * judged[token] + (1 - wins) * F(1, 2))
    assert sum(law) == 1
    assert law != [F(1, 2), F(1, 2)]
