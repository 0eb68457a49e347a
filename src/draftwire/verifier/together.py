"""Several texts of one drafter and one target, a round of all of them at a time.

All proposals are asked for before any is waited for, the target is asked once, and one call
judges. Each text takes the same steps, with the same words, as it does alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from draftwire.kernels.registry import kernels_for
from draftwire.verifier.breaker import Breaker, Choice, RequestBreaker
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

    Which of them a round is drafted for is decided before anything of it is drawn: for all by what
    their rounds cost, for each by what its own drafts have brought. Raises what the target raises,
    and ArithmeticRefusalError for the first text whose p is refused.
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
    waited = _propose(running, drafter, _choices(running, breaker))
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
    gains = []
    for each, judgement in zip(running, judgements, strict=True):
        gains.append(each.gain(len(each.settle(judgement))))
        each.report.seconds.target += scored - asked
        each.report.seconds.verify += judged - scored
    seconds = time.perf_counter() - began
    for each in running:
        each.report.seconds.total += seconds
    if breaker is not None:
        requests = [_request(each) for each in running]
        choices = [each.choice or Choice.SAMPLE for each in running]
        spent = waited if first else seconds  # the prompts are read in any case
        changed = breaker.finished(requests, choices, gains, spent, waited=waited, first=first)
        breaker_changed(changed)
        for each, request in zip(running, requests, strict=True):
            each.breaker_changed([one for one in changed if one in (breaker, request)])
    for each in running:
        each.round_ended()
    for each in running:
        if each.refusal is not None and each.report.finish is None:
            raise each.refusal


def _choices(
    running: Sequence[Generation[Any]], breaker: Breaker | None
) -> dict[RequestBreaker, Choice]:
    """Return what the round is for each text that could be drafted for."""
    wanted = [_request(each) for each in running if each.depth] if breaker is not None else []
    if breaker is None or not wanted:
        return {}
    return dict(zip(wanted, breaker.admits(wanted, len(running)), strict=True))


def _request(text: Generation[Any]) -> RequestBreaker:
    """Return a text's part in the breaker that all of these texts share."""
    assert text.breaker is not None
    return text.breaker


def _propose(
    running: Sequence[Generation[Any]],
    drafter: Drafter | None,
    choices: Mapping[RequestBreaker, Choice],
) -> float:
    """Ask for the proposals of those that are to be drafted; returns the seconds that it took."""
    began = time.perf_counter()
    asked = [
        (each, policy)
        for each in running
        if (policy := each.ask(choices.get(each.breaker) if each.breaker else None)) is not None
    ]
    if isinstance(drafter, AsksTogether):
        drafted = drafter.propose_all([(each.drafting, policy) for each, policy in asked])
    else:
        drafted = [each.drafting.propose(policy) for each, policy in asked]
    waited = time.perf_counter() - began
    for (each, _), answer in zip(asked, drafted, strict=True):
        each.answered(answer, waited)
    return waited
