"""What every implementation refuses alike: a policy that is none, a round that does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.exact import quantise as exact
from draftwire.wire.registry import WITH_SUPPORT, Layout

if TYPE_CHECKING:
    from draftwire.kernels.protocol import Round
    from draftwire.wire.messages import ProposalPolicy


def check_policy(policy: ProposalPolicy) -> None:
    """Refuse a policy that no row can be quantised under (OUT_OF_RANGE)."""
    exact.check_temperature(policy.temperature)
    exact.check_restrictions(policy.top_k, policy.top_p, policy.min_p, policy.support)
    if (policy.layout in WITH_SUPPORT) != (policy.support > 0):
        raise ArithmeticRefusalError(
            RefusalCode.OUT_OF_RANGE, "a sparse layout has a support of 1 or more, others have none"
        )
    if policy.layout is Layout.IDS_ONLY and policy.temperature != 0:
        raise ArithmeticRefusalError(
            RefusalCode.OUT_OF_RANGE, "ids alone, without their q, are for temperature 0"
        )


def fits(this: Round, number: int) -> bool:
    """Whether a round has one q a draft, and its rows are among the ``number`` of the scores."""
    depth = len(this.tokens)
    shaped = len(this.rows) == depth and this.row_count in {max(depth, 1), depth + 1}
    return shaped and 0 <= this.first_row <= number - this.row_count


def draft_counts(this: Round, number: int, width: int) -> list[int] | RefusalCode:
    """The count of each draft under its q, or the first fault of the proposal, by position (A18).

    number, width: rows and columns of the scores. Faults: OUT_OF_RANGE, ZERO_Q.
    """
    if not fits(this, number):
        return RefusalCode.OUT_OF_RANGE
    counts = []
    for token, q in zip(this.tokens, this.rows, strict=True):
        if q.vocab_size > width or not 0 <= token < q.vocab_size:
            return RefusalCode.OUT_OF_RANGE
        counts.append(q.of(token))
        if counts[-1] == 0:
            return RefusalCode.ZERO_Q
    return counts
