"""Rows in one piece are the same sequence as a tuple of rows."""

from __future__ import annotations

import struct

import pytest

from draftwire.wire.messages import ReplyRow
from draftwire.wire.rows import PackedRows, tokens_of

ROWS = tuple(ReplyRow(9 + i, i - 1, 1, 7 * i, bytes([i]) * 8) for i in range(4))
BODY = b"".join(
    struct.pack("<IiII", row.position, row.token, row.entries, row.checksum) + row.q for row in ROWS
)


def test_packed_rows_are_a_tuple_of_rows() -> None:
    packed = PackedRows(BODY, 8)
    assert len(packed) == 4
    assert tuple(packed) == ROWS
    assert packed == ROWS
    assert packed == PackedRows(BODY, 8)
    assert packed != ROWS[:3]
    assert packed != PackedRows(BODY[:24], 8)
    assert packed != 7
    assert hash(packed) == hash(ROWS)
    assert repr(packed) == repr(ROWS)
    assert packed[1] == ROWS[1]
    assert packed[-1] == ROWS[-1]
    assert packed[1:3] == ROWS[1:3]
    assert tokens_of(packed) == tokens_of(ROWS) == (-1, 0, 1, 2)
    with pytest.raises(IndexError):
        packed[4]


def test_a_body_is_whole_rows() -> None:
    assert len(PackedRows(b"", 8)) == 0
    with pytest.raises(ValueError, match="no rows"):
        PackedRows(BODY[:-1], 8)
