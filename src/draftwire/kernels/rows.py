"""One quantised row as arrays: what the kernels make, draw from and verify against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, overload

import numpy as np

from draftwire.errors import ArithmeticRefusalError, RefusalCode, ReleasedError
from draftwire.exact.counts import TOTAL, Counts

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Lease:
    """The use of memory that is given to one reply after another; it ends before the next."""

    __slots__ = ("over",)

    def __init__(self) -> None:
        self.over = False

    def end(self) -> None:
        """Let no row that lies there be read any more."""
        self.over = True


class QRow:
    """q of one position as counts of 2^24 (A10).

    ids: None for a dense row, then counts is int32 (vocab_size,), zeros included; otherwise int32
    (n,) strictly ascending in [0, vocab_size) beside counts int32 (n,), one at least each. The
    counts sum to 2^24: a quantiser sees to that by construction, a decoder by checking (P14).
    lease: until when the counts may be read, where their memory is lent; None = always. An array
    that was taken out of the row before is not withdrawn.
    Errors: ArithmeticRefusalError OUT_OF_RANGE where the shapes do not fit; ReleasedError where
    counts are read after the lease.
    """

    __slots__ = ("_counts", "_lease", "ids", "vocab_size")

    def __init__(
        self,
        vocab_size: int,
        ids: NDArray[np.int32] | None,
        counts: NDArray[np.int32],
        lease: Lease | None = None,
    ) -> None:
        """Refuse arrays that are not the shapes of a row."""
        width = vocab_size if ids is None else len(ids)
        if counts.shape != (width,) or not 1 <= width <= vocab_size:
            raise ArithmeticRefusalError(
                RefusalCode.OUT_OF_RANGE,
                f"{counts.shape} counts do not fit {width} of {vocab_size} ids",
            )
        self.vocab_size: Final = vocab_size
        self.ids: Final = ids
        self._counts: Final = counts
        self._lease: Final = lease

    @property
    def counts(self) -> NDArray[np.int32]:
        """The counts, as long as they may be read."""
        if self._lease is not None and self._lease.over:
            raise ReleasedError("this q lay in the slot of a round that is over")
        return self._counts

    @classmethod
    def of_counts(cls, counts: Counts, *, dense: bool) -> QRow:
        """The same distribution as arrays; ``counts.total`` must be 2^24 (OUT_OF_RANGE)."""
        if counts.total != TOTAL:
            raise ArithmeticRefusalError(
                RefusalCode.OUT_OF_RANGE, f"a row sums to {TOTAL}, not to {counts.total}"
            )
        if dense:
            return cls(counts.vocab_size, None, np.array(counts.dense(), np.int32))
        ids = np.array(counts.ids, np.int32)
        return cls(counts.vocab_size, ids, np.array(counts.counts, np.int32))

    def of(self, token: int) -> int:
        """Count of ``token`` in [0, vocab_size); zero outside the support."""
        if self.ids is None:
            return int(self.counts[token])
        at = int(np.searchsorted(self.ids, token))
        return int(self.counts[at]) if at < len(self.ids) and self.ids[at] == token else 0

    def exact(self) -> Counts:
        """The same distribution in plain integers."""
        ids = np.flatnonzero(self.counts) if self.ids is None else self.ids
        used = self.counts[ids] if self.ids is None else self.counts
        return Counts(self.vocab_size, TOTAL, tuple(ids.tolist()), tuple(used.tolist()))


@dataclass(frozen=True, slots=True, eq=False)
class RowBlock(Sequence[QRow]):
    """q of the K positions of a reply in one piece, each made a row when it is asked for.

    ids: None for dense rows, then counts is int32 (K, V); otherwise both are int32 (K, support),
    and only the first ``used[row]`` of a line mean something. used: int32 (K,), entries in use.
    lease: as of :class:`QRow`.
    """

    vocab_size: int
    ids: NDArray[np.int32] | None
    counts: NDArray[np.int32]
    used: NDArray[np.int32]
    lease: Lease | None = None

    def __len__(self) -> int:
        """Rows."""
        return len(self.counts)

    @overload
    def __getitem__(self, index: int) -> QRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[QRow, ...]: ...
    def __getitem__(self, index: int | slice) -> QRow | tuple[QRow, ...]:
        """Return one row, or some as a tuple."""
        if isinstance(index, slice):
            return tuple(self[at] for at in range(*index.indices(len(self))))
        counts = self.counts[index]
        if self.ids is None:
            return QRow(self.vocab_size, None, counts, self.lease)
        used = int(self.used[index])
        return QRow(self.vocab_size, self.ids[index, :used], counts[:used], self.lease)


def widened(row: QRow, width: int) -> QRow:
    """The row over ``width`` ids, for a target with padded logits: ids from V on have q = 0."""
    if row.vocab_size >= width:
        return row
    if row.ids is not None:
        return QRow(width, row.ids, row.counts)
    counts = np.zeros(width, np.int32)
    counts[: row.vocab_size] = row.counts
    return QRow(width, None, counts)
