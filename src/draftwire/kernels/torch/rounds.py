"""The rule of A17-A21 over rows that a device has measured: which drafts stand, and what is drawn.

It is taken on the host from a few numbers a row, so that it stands once for every device, and each
random word is read where a decision needs it. The rows themselves stay where they lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from draftwire.errors import RefusalCode
from draftwire.exact.words import Domain
from draftwire.kernels.protocol import OK, P_CUTOFF, UNDECIDED, Round, Verdict
from draftwire.kernels.refusals import draft_counts
from draftwire.kernels.rows import QRow
from draftwire.kernels.words import first_bits
from draftwire.wire.registry import TOTAL

SPAN: Final = 1 << 48  # values of the first two words of a U


@dataclass(frozen=True, slots=True)
class Sample:
    """A token to draw from row ``row`` of p, or from max(p - q, 0): first is 48 bits of its U."""

    row: int
    q: QRow | None
    first: int


class Rows(Protocol):
    """The rows of scores of one call, (R, V), wherever they lie."""

    @property
    def number(self) -> int:
        """R."""
        ...

    @property
    def size(self) -> int:
        """V."""
        ...

    def largest(self, row: int) -> float:
        """The largest score of a row; NaN where any is."""
        ...

    def lowest(self, row: int) -> int:
        """The lowest id with the largest score; asked for in greedy rounds alone."""
        ...

    def accepts(self, row: int, token: int, count: int, first: Callable[[], int]) -> bool | None:
        """Whether a draft with that count of q stands (A18), None within the bound of its sums.

        Asked for the draft of the row that the call's round has there. first: reads 48 bits of U.
        """
        ...

    def sample(self, samples: Sequence[Sample]) -> list[int | None]:
        """The token of each sample (A19, A20), None within the bound of its sums."""
        ...


@dataclass(frozen=True, slots=True)
class _Next:
    """``accepted`` drafts stand, and the token after them is drawn from a row."""

    accepted: int
    sample: Sample


def verdicts(rows: Rows, rounds: Sequence[Round]) -> list[Verdict]:
    """Judge rounds; the tokens that follow the drafts are sampled in one call."""
    examined = [_examined(rows, each) for each in rounds]
    samples = [each.sample for each in examined if isinstance(each, _Next)]
    tokens = iter(rows.sample(samples) if samples else ())
    return [each if isinstance(each, Verdict) else _drawn(each, next(tokens)) for each in examined]


def decide(
    difference: float, count: int, mass: float, bound: float, first: Callable[[], int]
) -> bool | None:
    """A18: whether U lies below a_x M / (c_x A), None within the bound.

    difference: score of x less the largest; mass: A, the sum of exp(score - largest); bound: how
    far a_x / A may be from the truth, relatively.
    """
    if difference < P_CUTOFF:
        return False
    threshold = math.exp(difference) * float(TOTAL * SPAN) / (count * mass)
    margin = threshold * bound
    if threshold - margin >= SPAN:
        return True
    u = first()
    if u + 1 <= threshold - margin:
        return True
    # u = 0 never surely rejects: the threshold is above zero, even where it underflows.
    return False if u > 0 and u >= threshold + margin else None


def _drawn(following: _Next, token: int | None) -> Verdict:
    return Verdict(following.accepted, token, UNDECIDED if token is None else OK)


def _examined(rows: Rows, each: Round) -> Verdict | _Next:
    counts = draft_counts(each, rows.number, rows.size)
    if isinstance(counts, RefusalCode):
        return Verdict(0, None, counts)
    accepted = 0
    for token, count in zip(each.tokens, counts, strict=True):
        row = each.first_row + accepted
        status = _row_status(rows.largest(row), each.greedy)
        if status != OK:
            return Verdict(accepted, None, status)
        if each.greedy:
            lowest = rows.lowest(row)
            if lowest != token:
                return Verdict(accepted, lowest)
        else:
            stands = rows.accepts(row, token, count, _Bits(each, Domain.ACCEPTANCE, accepted))
            if stands is None:
                return Verdict(accepted, None, UNDECIDED)
            if not stands:
                first = _Bits(each, Domain.CORRECTION, accepted)()
                return _Next(accepted, Sample(row, each.rows[accepted], first))
        accepted += 1
    if each.row_count == accepted:
        return Verdict(accepted, None)
    return _following(rows, each, accepted)


def _following(rows: Rows, each: Round, accepted: int) -> Verdict | _Next:
    """What comes after drafts that all stand, or in a round without any (A20)."""
    row = each.first_row + accepted
    status = _row_status(rows.largest(row), each.greedy)
    if status != OK:
        return Verdict(accepted, None, status)
    if each.greedy:
        return Verdict(accepted, rows.lowest(row))
    domain = Domain.BONUS if accepted else Domain.TARGET_ONLY
    return _Next(accepted, Sample(row, None, _Bits(each, domain, accepted)()))


@dataclass(frozen=True, slots=True)
class _Bits:
    """Reads the first 48 bits of the U of one decision (A15)."""

    of: Round
    domain: Domain
    index: int

    def __call__(self) -> int:
        each = self.of
        position = each.first_position + self.index
        return first_bits(each.words, each.generation, each.round, position, self.domain)


def _row_status(largest: float, greedy: bool) -> int:
    if largest == -math.inf:
        return RefusalCode.ZERO_MASS
    # For the largest score alone, +infinity is a score like any other (A21).
    if math.isnan(largest) or (largest == math.inf and not greedy):
        return RefusalCode.NON_FINITE
    return OK
