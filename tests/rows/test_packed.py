"""Whole replies in one call; that they decode as row by row is asserted in ``test_payload``."""

from __future__ import annotations

import numpy as np
import pytest

from draftwire.errors import ArithmeticRefusalError
from draftwire.exact.counts import TOTAL, Counts
from draftwire.kernels.rows import QRow, SparseRows
from draftwire.rows.packed import checksum_of
from draftwire.rows.payload import encode_reply_rows
from draftwire.wire.checksum import crc32c
from draftwire.wire.registry import Layout

V = 11
HALVES = QRow.of_counts(Counts(V, TOTAL, (2, 4), (TOTAL // 2, TOTAL // 2)), dense=False)
POINT = QRow.of_counts(Counts(V, TOTAL, (7,), (TOTAL,)), dense=False)


def test_the_checksum_of_words_is_that_of_their_bytes() -> None:
    source = np.random.default_rng(5)
    for count in range(130):
        words = source.integers(-(2**31), 2**31, count).astype(np.int32)
        assert checksum_of(words) == crc32c(words.tobytes())
    for bit in range(32):
        word = np.array([1 << bit], np.uint32).view(np.int32)
        assert checksum_of(word) == crc32c(word.tobytes())


def test_rows_are_made_when_they_are_asked_for() -> None:
    rows = SparseRows.room(V, 3, 2)
    for row in (HALVES, POINT):
        rows.append(row)
    assert [row.exact() for row in rows] == [HALVES.exact(), POINT.exact()]
    assert [row.exact() for row in rows[1:]] == [POINT.exact()]
    assert rows[-1].exact() == POINT.exact()
    for outside in (2, -3):
        with pytest.raises(IndexError):
            rows[outside]
    rows.append(POINT)
    dense = QRow.of_counts(HALVES.exact(), dense=True)
    for other in (POINT, dense, QRow(V + 1, POINT.ids, POINT.counts)):
        with pytest.raises(ValueError, match="no room"):
            rows.append(other)
    with pytest.raises(ValueError, match="no room"):
        SparseRows.room(V, 1, 1).append(HALVES)


def test_rows_that_are_no_reply_are_refused() -> None:
    assert len(encode_reply_rows([HALVES, POINT], [4, 7], 9, Layout.SPARSE, 2)) == 2
    short = QRow(V, POINT.ids, POINT.counts - np.int32(1))
    for rows, tokens, support in (
        ([HALVES], [4, 7], 2),
        ([HALVES, POINT], [4], 2),
        ([HALVES, POINT], [4, 6], 2),
        ([HALVES, POINT], [-1, 7], 2),
        ([HALVES, POINT], [4, V], 2),
        ([HALVES, POINT], [4, 7], 1),
        ([HALVES, short], [4, 7], 2),
    ):
        with pytest.raises((ArithmeticRefusalError, ValueError)):
            encode_reply_rows(rows, tokens, 9, Layout.SPARSE, support)
