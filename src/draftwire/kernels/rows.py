"""One quantised row as arrays: what the kernels make, draw from and verify against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn, overload

import numpy as np

from draftwire.errors import ArithmeticRefusalError, RefusalCode, ReleasedError
from draftwire.exact.counts import TOTAL, Counts
from draftwire.wire.values import quickly_made

if TYPE_CHECKING:
    from numpy.typing import NDArray


LINE_HEAD: Final = 2
"""Words of a line of :class:`SparseRows` before its ids."""


@quickly_made
@dataclass(frozen=True, slots=True, eq=False)
class QRow:
    """q of one position as counts of 2^24 tickets (A10).

    ids: None for a dense row, then counts is int32 (vocab_size,), zeros included; otherwise int32
    (n,) strictly ascending in [0, vocab_size) beside counts int32 (n,), one at least each. The
    counts sum to 2^24. Whoever makes a row answers for that: a quantiser by construction, a decoder
    by checking (P14).
    Errors: ArithmeticRefusalError OUT_OF_RANGE where the shapes do not fit; ReleasedError where
    counts are read of a row that was withdrawn.
    """

    vocab_size: int
    ids: NDArray[np.int32] | None
    counts: NDArray[np.int32]

    def __post_init__(self) -> None:
        """Refuse arrays that are not the shapes of a row."""
        width = self.vocab_size if self.ids is None else len(self.ids)
        if self.counts.shape != (width,) or not 1 <= width <= self.vocab_size:
            raise ArithmeticRefusalError(
                RefusalCode.OUT_OF_RANGE,
                f"{self.counts.shape} counts do not fit {width} of {self.vocab_size} ids",
            )

    def withdraw(self) -> None:
        """Let nobody read the counts any more: their memory is about to be another row's.

        An array that was taken out of the row before is not withdrawn.
        """
        object.__delattr__(self, "counts")

    if not TYPE_CHECKING:  # a type checker would take any name for an attribute

        def __getattr__(self, name: str) -> NoReturn:
            """Say why there are no counts; called for what is not there, and so at no cost."""
            if name == "counts":
                raise ReleasedError("this q lay in the slot of a round that is over")
            raise AttributeError(name)

    @classmethod
    def of_counts(cls, counts: Counts, *, dense: bool) -> QRow:
        """The same distribution as arrays; ``counts.total`` must be 2^24 (OUT_OF_RANGE)."""
        if counts.total != TOTAL:
            raise ArithmeticRefusalError(
                RefusalCode.OUT_OF_RANGE, f"a row has {TOTAL} tickets, not {counts.total}"
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


class SparseRows(Sequence[QRow]):
    """Sparse q's of several positions in one piece, each made a row when it is asked for.

    block: int32 (K, 2 + 2 * support), a position a line: how many entries it has, its token where
    there is one, ids, counts. length: positions that are filled, from the first on.
    """

    __slots__ = ("block", "length", "vocab_size")

    def __init__(self, vocab_size: int, block: NDArray[np.int32], length: int) -> None:
        self.vocab_size = vocab_size
        self.block = block
        self.length = length

    @classmethod
    def room(cls, vocab_size: int, depth: int, support: int) -> SparseRows:
        """Return room for ``depth`` rows of at most ``support`` entries, and none yet."""
        return cls(vocab_size, np.empty((depth, LINE_HEAD + 2 * support), np.int32), 0)

    def append(self, row: QRow) -> None:
        """Copy a row in. Errors: ValueError for one that is dense or does not fit."""
        at, ids = self.length, row.ids
        support = self.block.shape[1] - LINE_HEAD >> 1
        fits = ids is not None and len(ids) <= support and at < len(self.block)
        if ids is None or not fits or row.vocab_size != self.vocab_size:
            raise ValueError(f"no room for a row of {row.vocab_size} ids, or it is dense")
        line, used = self.block[at], len(ids)
        line[0] = used
        line[LINE_HEAD : LINE_HEAD + used] = ids
        line[LINE_HEAD + support : LINE_HEAD + support + used] = row.counts
        self.length += 1

    def __len__(self) -> int:
        """Rows."""
        return self.length

    @overload
    def __getitem__(self, index: int) -> QRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[QRow, ...]: ...
    def __getitem__(self, index: int | slice) -> QRow | tuple[QRow, ...]:
        """Return one row, or some as a tuple."""
        if isinstance(index, slice):
            return tuple([self[at] for at in range(*index.indices(self.length))])
        if not -self.length <= index < self.length:
            raise IndexError(f"there are {self.length} rows")
        line = self.block[index if index >= 0 else index + self.length]
        ids, counts = line[LINE_HEAD:].reshape(2, -1)[:, : line[0]]
        return QRow(self.vocab_size, ids, counts)


def widened(row: QRow, width: int) -> QRow:
    """The row over ``width`` ids, for a target with padded logits: ids from V on have q = 0."""
    if row.vocab_size >= width:
        return row
    if row.ids is not None:
        return QRow(width, row.ids, row.counts)
    counts = np.zeros(width, np.int32)
    counts[: row.vocab_size] = row.counts
    return QRow(width, None, counts)
