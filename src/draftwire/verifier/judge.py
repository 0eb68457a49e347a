"""What a round commits: the one mapping from verdicts to tokens, outcome and refusal (A18-A21)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.exact import quantise as exact_quantise
from draftwire.exact import verify as exact
from draftwire.exact.words import Address, Domain
from draftwire.kernels.cpu.verify_loops import target_weights
from draftwire.kernels.protocol import OK, UNDECIDED, Kernels, Round, Verdict
from draftwire.kernels.rows import widened
from draftwire.wire.registry import Outcome


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one round commits.

    tokens: the accepted drafts, then the correction, bonus or target-only token where there is one.
    outcome: ENDED where accepted drafts are all that is committed: there was no row behind them, or
    the row behind them is refused. refusal: of that row, or of the proposal (ZERO_Q); where nothing
    was accepted, tokens is empty and the caller decides what stands in its place.
    """

    outcome: Outcome
    accepted: int
    tokens: tuple[int, ...]
    refusal: ArithmeticRefusalError | None = None


def judge(kernels: Kernels[Any], scores: Any, rounds: Sequence[Round]) -> list[Judgement]:
    """Judge the rounds of one call, every decision the exact one; see ``Kernels.verify``.

    What a kernel left undecided is decided here, from exact integers and the same random words.
    Raises nothing for a refused row: its round says so, and touches no other.
    """
    verdicts = decide(kernels, scores, rounds)
    return [judgement(each.tokens, made) for each, made in zip(rounds, verdicts, strict=True)]


def decide(kernels: Kernels[Any], scores: Any, rounds: Sequence[Round]) -> list[Verdict]:
    """``Kernels.verify`` with nothing left undecided."""
    return [
        _settled(kernels, scores, this, verdict.accepted)
        if verdict.status == UNDECIDED
        else verdict
        for this, verdict in zip(rounds, kernels.verify(scores, rounds), strict=True)
    ]


def judgement(tokens: Sequence[int], verdict: Verdict) -> Judgement:
    """What a decided verdict on the drafts ``tokens`` commits."""
    accepted, token = verdict.accepted, verdict.token
    drafts = tuple(tokens[:accepted])
    if token is None:
        refusal = None
        if verdict.status != OK:
            code = RefusalCode(verdict.status)
            refusal = ArithmeticRefusalError(code, f"{_SAID[code]} (draft {accepted} of the round)")
        return Judgement(Outcome.ENDED, accepted, drafts, refusal)
    if not tokens:
        outcome = Outcome.TARGET_ONLY
    else:
        outcome = Outcome.BONUS if accepted == len(tokens) else Outcome.CORRECTION
    return Judgement(outcome, accepted, (*drafts, token))


_SAID = {
    RefusalCode.NON_FINITE: "a score of the target is NaN or infinite",
    RefusalCode.NEGATIVE_WEIGHT: "a weight of the target is negative",
    RefusalCode.ZERO_MASS: "the target forbids every token",
    RefusalCode.ZERO_Q: "a draft has q = 0",
    RefusalCode.ZERO_RESIDUAL: "a draft was rejected although p equals q",
    RefusalCode.OUT_OF_RANGE: "a draft or its q lies outside the vocabulary",
    RefusalCode.INCONSISTENT_ALLOCATION: "the counts of a q do not sum to 2^24",
}


def _settled(kernels: Kernels[Any], scores: Any, this: Round, begin: int) -> Verdict:
    """The verdict of a round whose first ``begin`` drafts stand, from exact integers alone."""
    depth, index = len(this.tokens), begin
    try:
        for index in range(begin, depth):
            row = _exact_row(kernels, scores, this.first_row + index)
            q = widened(this.rows[index], len(row)).exact()
            words = _words(this, index, Domain.ACCEPTANCE)
            if not exact.accept(row, q, this.tokens[index], words):
                words = _words(this, index, Domain.CORRECTION)
                return Verdict(index, exact.correction(row, q, words))
        index = depth
        if this.row_count == depth:
            return Verdict(depth, None)
        row = _exact_row(kernels, scores, this.first_row + depth)
        words = _words(this, depth, Domain.BONUS if depth else Domain.TARGET_ONLY)
        return Verdict(depth, exact.target(row, words))
    except ArithmeticRefusalError as refused:
        return Verdict(index, None, refused.code)


def _words(this: Round, index: int, domain: Domain) -> Any:
    position = this.first_position + index
    return this.words.words(Address(this.generation, this.round, position, domain))


def _exact_row(kernels: Kernels[Any], scores: Any, row: int) -> list[int]:
    """The rational weights of one row, as integers. Errors: ArithmeticRefusalError (A11)."""
    values = kernels.host_row(scores, row)
    if values.dtype != np.float64:
        weights = np.empty(values.size)
        target_weights(values, weights)
        values = weights
    return exact_quantise.integers(values.tolist())
