"""What a round commits: the one mapping from verdicts to tokens, outcome and refusal (A18-A21)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftwire.errors import ArithmeticRefusalError
from draftwire.kernels.protocol import Kernels, Round
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
    """Judge the rounds of one call, every decision the exact one; see ``Kernels.verify``."""
    raise NotImplementedError
