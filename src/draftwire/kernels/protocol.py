"""What every device class computes: one protocol, batch first, chosen by where the scores lie.

Rows of one call lie on one device and stay there: what crosses to the host is tokens, statuses,
counts that go on the wire, and the few rows that a kernel left undecided. A status is an integer:
``OK``, ``UNDECIDED`` or a :class:`draftwire.errors.RefusalCode`. A refused row touches no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from draftwire.exact.words import WordSource
    from draftwire.kernels.adjustments import Adjustment
    from draftwire.kernels.rows import QRow
    from draftwire.wire.messages import ProposalPolicy

Array = TypeVar("Array")

OK: Final = 0  # status of a row or a round that is not refused
UNDECIDED: Final = -1  # status of a decision that is left to exact integers
NO_TOKEN: Final = -1  # in place of a token that was not drawn
P_CUTOFF: Final = -700.0  # a target logit further below the largest has p = 0 (A24)


def bound_of(size: int) -> float:
    """How far sums over ``size`` weights may be from the truth, relative to the whole mass.

    With u = 2^-53: weights within 2^-44 of A4's (a library exponential of 4 ulp beside A4's own
    2^-45); a sum or prefix in *any* order adds at most ``1.01 V u``. A prefix of the residual meets
    twice of each (in p's scale M / A and in its own terms) and 4 roundings: ``(2^-43 + 2.02 V u +
    4 u) M``. This returns nearly twice as much, which covers the roundings of comparing with it.
    """
    return 2.0**-42 + 4.0 * size * 2.0**-53


@dataclass(frozen=True, slots=True)
class QRows(Generic[Array]):
    """q of many positions as counts of 2^24 (A10); leading axes are (N,) or (B, K).

    ids: None for dense rows, then counts is int32 (..., V), zeros included; otherwise int32
    (..., S), ascending, then PAD_ID with count 0, beside counts int32 (..., S).
    """

    vocab_size: int
    ids: Array | None
    counts: Array


@dataclass(frozen=True, slots=True)
class Round:
    """One request's round, as one ``verify`` judges it.

    tokens: K drafts; none is a target-only round. rows: the q of each, on the host as they came; a
    q of fewer ids than the scores have columns is 0 on the others. first_row: of the call's scores,
    the row after the committed prefix. row_count: K + 1, or K where the engine has no row behind
    the last draft; then nothing follows K acceptances. words, generation, round, first_position:
    where the random words are (A13). greedy: p is a point mass on the lowest id with the largest
    score (A21); +infinity is a score then, NaN and -infinity alone are refused all the same.
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
    status: OK; the refusal of the row behind the accepted drafts, or of the correction from it; the
    refusal of the proposal (ZERO_Q, OUT_OF_RANGE), then nothing is accepted; UNDECIDED where the
    drafts before ``accepted`` stand and the decision there is left to exact integers.
    """

    accepted: int
    token: int | None
    status: int = 0


class Kernels(Protocol[Array]):
    """The arithmetic of one device class. Array: NumPy's or torch's.

    Scores and logits are binary32, bfloat16 or binary16 (widened exactly), (rows, V), contiguous.
    """

    @property
    def name(self) -> str:
        """``cpu``, ``torch`` or ``triton``."""
        ...

    def prepare(self, policies: Sequence[ProposalPolicy], width: int) -> None:
        """Compile and load what rounds of these policies over ``width`` columns need.

        So that no deadline pays for it; called at a program's start. policies: none, where nothing
        is drafted; their depth does not matter. Errors: those of ``quantise``.
        """
        ...

    def from_host(self, array: NDArray[Any]) -> Array:
        """The values of a NumPy array, where these kernels compute."""
        ...

    def host_row(self, scores: Array, row: int) -> NDArray[Any]:
        """One row of scores on the host, (V,), binary32 or binary64; waits for the device."""
        ...

    def adjust(self, logits: Array, adjustments: Sequence[Sequence[Adjustment]]) -> Array:
        """(N, V) logits after the adjustments of each row, in their order, where they lie (A30).

        Returns new binary32 rows; every operation on a logit is one rounding to binary32. Errors:
        ArithmeticRefusalError OUT_OF_RANGE (types, shapes).
        """
        ...

    def quantise(self, logits: Array, policy: ProposalPolicy) -> tuple[QRows[Array], Array]:
        """q of (N, V) logits under one policy, where the logits lie, and the status (N,) (A1-A10).

        Dense rows for Layout.DENSE, otherwise S = policy.support (ids only: 1) columns. A refused
        row has no counts. Errors: ArithmeticRefusalError OUT_OF_RANGE (policy, shapes).
        """
        ...

    def draw(self, q: QRows[Array], uniform24: NDArray[Any]) -> NDArray[Any]:
        """The token of each row, int64 (N,) on the host (A16); NO_TOKEN where a row is refused.

        uniform24: int64 (N,) on the host, 24 bits. One transfer to the host.
        """
        ...

    def host_rows(self, q: QRows[Array]) -> list[QRow]:
        """The rows as they go on the wire, on the host; rows that own their memory."""
        ...

    def verify(self, scores: Array, rounds: Sequence[Round]) -> list[Verdict]:
        """Judge the rounds of B requests in one call (A17-A21, A24).

        scores: (R, V); binary32 or narrower: logits after every processor; binary64: weights of p.
        A row is looked at only when the drafts before it stand, and a random word is read only for
        a decision that is taken. Domains: ACCEPTANCE, CORRECTION, BONUS; TARGET_ONLY where K = 0.
        """
        ...
