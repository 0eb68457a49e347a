"""A quantised distribution: whole tickets on ascending ids (A9, A10)."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from draftwire.errors import ArithmeticRefusalError, RefusalCode

TOTAL: Final = 1 << 24  # M


@dataclass(frozen=True, slots=True)
class Counts:
    """q as integers: id ``ids[i]`` has probability ``counts[i] / total``, every other id zero.

    ids: strictly ascending in [0, vocab_size); counts: at least one each, summing to ``total``.
    Errors: ArithmeticRefusalError OUT_OF_RANGE (ids) or INCONSISTENT_ALLOCATION (counts).
    """

    vocab_size: int
    total: int
    ids: tuple[int, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse a row that is no distribution."""
        if not self.ids or self.ids[0] < 0 or self.ids[-1] >= self.vocab_size:
            raise ArithmeticRefusalError(
                RefusalCode.OUT_OF_RANGE, f"ids must be one or more of 0..{self.vocab_size - 1}"
            )
        if any(low >= high for low, high in pairwise(self.ids)):
            raise ArithmeticRefusalError(RefusalCode.OUT_OF_RANGE, "ids must be strictly ascending")
        if len(self.counts) != len(self.ids) or min(self.counts) < 1:
            raise ArithmeticRefusalError(
                RefusalCode.INCONSISTENT_ALLOCATION, "every id of the support needs a count above 0"
            )
        if sum(self.counts) != self.total:
            raise ArithmeticRefusalError(
                RefusalCode.INCONSISTENT_ALLOCATION,
                f"counts sum to {sum(self.counts)}, not to {self.total}",
            )

    def of(self, token: int) -> int:
        """Count of ``token``; zero outside the support."""
        at = bisect_left(self.ids, token)
        return self.counts[at] if at < len(self.ids) and self.ids[at] == token else 0

    def dense(self) -> list[int]:
        """Counts of all ``vocab_size`` ids, zeros included."""
        row = [0] * self.vocab_size
        for token, count in zip(self.ids, self.counts, strict=True):
            row[token] = count
        return row
