"""Several texts of one drafter and one target, a round of all of them at a time.

All proposals are asked for before any is waited for, the target is asked once, and one call
judges. Each text takes the same steps, with the same words, as it does alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from draftwire.kernels.registry import kernels_for
from draftwire.verifier.breaker import Breaker, Choice
from draftwire.verifier.drafter import Drafter
from draftwire.verifier.engine import Context
from draftwire.verifier.generate import Generation
from draftwire.verifier.judge import judge
from draftwire.verifier.log import breaker_changed
from draftwire.verifier.miss import Drafted

Question: TypeAlias = tuple[Context, Sequence[int], Sequence[int]]
"""A context of the target, the committed ids and the drafts, as ``TargetEngine.score`` has them."""

ScoreAll: TypeAlias = Callable[[Sequence[Question[Any]]], Any]
"""Returns (R, V): the K+1 rows of each question, one behind another, as one array."""


@runtime_checkable
class AsksTogether(Protocol):
    """A drafter that can be asked for the proposals of several requests in one go."""

    def propose_all(self, asked: Sequence[tuple[Any, Any]]) -> list[Drafted]:
        """Begin the next round of each request; see ``DraftClient.propose_all``."""


def run_together(
    generations: Sequence[Generation[Any]],
    score_all: ScoreAll,
    drafter: Drafter | None,
    *,
    kernels: str = "auto",
) -> None:
    """Run texts that were begun with this drafter to their ends; all are closed then.

    The breaker decides once for the round of all, before anything of it is drawn. Raises what the
    target raises, and ArithmeticRefusalError for the first text whose p is refused.
    """
    breaker = None if drafter is None else drafter.breaker
    try:
        for each in generations:
            each.follow()
        while True:
            running = [each for each in generations if each.report.finish is None]
            if not running:
                return
            _round(running, score_all, drafter, breaker, kernels)
    finally:
        for each in generations:
            each.close()


def _round(
    running: Sequence[Generation[Any]],
    score_all: ScoreAll,
    drafter: Drafter | None,
    breaker: Breaker | None,
    kernels: str,
) -> None:
    began = time.perf_counter()
    first = running[0].report.rounds == 0
    choice = None if breaker is None else breaker.admits()
    waited = _propose(running, drafter, choice)
    asked = time.perf_counter()
    questions = [each.question() for each in running]
    scores = score_all(questions)
    scored = time.perf_counter()
    places, row = [], 0
    for _, _, drafts in questions:
        places.append(row)
        row += len(drafts) + 1
    rounds = [each.round_at(place) for each, place in zip(running, places, strict=True)]
    judgements = judge(kernels_for(kernels, scores), scores, rounds)
    judged = time.perf_counter()
    tokens = 0
    for each, judgement in zip(running, judgements, strict=True):
        tokens += len(each.settle(judgement))
        each.report.seconds.target += scored - asked
        each.report.seconds.verify += judged - scored
    seconds = time.perf_counter() - began
    for each in running:
        each.report.seconds.total += seconds
    if breaker is not None and choice is not None:
        spent = waited if first else seconds  # the prompts are read in any case
        if breaker.finished(choice, spent, tokens / len(running), first=first):
            breaker_changed(breaker)
            for each in running:
                each.breaker_changed(breaker)
    for each in running:
        if each.refusal is not None and each.report.finish is None:
            raise each.refusal


def _propose(
    running: Sequence[Generation[Any]], drafter: Drafter | None, choice: Choice | None
) -> float:
    """Ask for the proposals of all; returns the seconds that it took."""
    began = time.perf_counter()
    asked = [(each, policy) for each in running if (policy := each.ask(choice)) is not None]
    if isinstance(drafter, AsksTogether):
        drafted = drafter.propose_all([(each.drafting, policy) for each, policy in asked])
    else:
        drafted = [each.drafting.propose(policy) for each, policy in asked]
    waited = time.perf_counter() - began
    for (each, _), answer in zip(asked, drafted, strict=True):
        each.answered(answer, waited)
    return waited
