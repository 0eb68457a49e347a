"""What every device class computes: one protocol, batch first, chosen by where the logits lie.

Rows of one call lie on one device and stay there: what crosses to the host is tokens, statuses,
counts that go on the wire, and the few rows that a kernel left undecided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from draftwire.kernels.backend import QRows, RowStatus

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from draftwire.exact.words import WordSource
    from draftwire.kernels.rows import QRow
    from draftwire.wire.messages import ProposalPolicy

Array = TypeVar("Array")


@dataclass(frozen=True, slots=True)
class Round:
    """One request's round, as one ``verify`` judges it.

    tokens: K drafts, 0 for a round without any. rows: the q of each, on the host as they came.
    first_row: of the call's scores, the row after the committed prefix. row_count: K + 1, or K
    where the engine has no row behind the last draft; then nothing follows K acceptances. words,
    generation, round, first_position: where the random words are (A13). greedy: p is a point mass
    on the lowest id with the largest score (A21).
    """

    tokens: Sequence[int]
    rows: Sequence[QRow]
    first_row: int
    row_count: int
    words: WordSource
    generation: int
    round: int
    first_position: int
    greedy: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a round ended: ``accepted`` drafts, and the token after them.

    token: the correction where accepted < K, the bonus or target-only token where accepted = K;
    None where K of K are accepted and there is no row behind them, or where status is not OK.
    status: OK; the refusal of the row behind the accepted drafts, or of the proposal (ZERO_Q);
    UNDECIDED where the decision at ``accepted`` is left to exact integers.
    """

    accepted: int
    token: int | None
    status: RowStatus = RowStatus.OK


class Kernels(Protocol[Array]):
    """The arithmetic of one device class. Array: NumPy's or torch's."""

    @property
    def name(self) -> str:
        """``cpu``, ``torch`` or ``triton``."""
        ...

    def quantise(
        self, logits: Array, policies: Sequence[ProposalPolicy]
    ) -> tuple[QRows[Array], NDArray[Any]]:
        """q of (N, V) logits under a policy a row (A1-A10), where the logits lie; status (N,)."""
        ...

    def draw(self, rows: QRows[Array], uniform24: NDArray[Any]) -> NDArray[Any]:
        """The token of each 24-bit word, int64 (N,) on the host (A16)."""
        ...

    def host_rows(self, rows: QRows[Array]) -> list[QRow]:
        """The rows as they go on the wire: ids and counts, on the host."""
        ...

    def verify(self, scores: Array, rounds: Sequence[Round]) -> list[Verdict]:
        """Judge the rounds of B requests in one call (A17-A21, A24).

        scores: (R, V), binary32 or narrower: logits after every processor; binary64: weights of p.
        A row is looked at only when the drafts before it stand.
        """
        ...
