"""Messages are values; the rows of a reply are read where they lie."""

from __future__ import annotations

import struct
from dataclasses import FrozenInstanceError, replace

import pytest

from draftwire.wire.messages import Complete, ReplyRow, ReplyRows
from draftwire.wire.registry import Status

ROWS = tuple(ReplyRow(9 + i, i - 1, 1, 7 * i, bytes([i]) * 8) for i in range(4))
BODY = b"".join(
    struct.pack("<IiII", row.position, row.token, row.entries, row.checksum) + row.q for row in ROWS
)


def test_rows_in_one_piece_are_a_sequence_of_rows() -> None:
    rows = ReplyRows(BODY, 8)
    assert len(rows) == 4
    assert tuple(rows) == ROWS
    assert rows == ReplyRows.of(ROWS) == ReplyRows(memoryview(bytearray(BODY)), 8)
    assert rows != ReplyRows.of(ROWS[:3])
    assert rows != ReplyRows(BODY[:24], 8)
    assert rows != 7
    assert hash(rows) == hash(ReplyRows.of(ROWS))
    assert rows[1] == ROWS[1]
    assert rows[-1] == ROWS[-1]
    assert rows[1:3] == ROWS[1:3]
    assert rows.tokens == (-1, 0, 1, 2)
    for outside in (4, -5):
        with pytest.raises(IndexError):
            rows[outside]


def test_a_body_is_whole_rows() -> None:
    assert len(ReplyRows(b"", 8)) == len(ReplyRows.of([])) == 0
    with pytest.raises(ValueError, match="no rows"):
        ReplyRows(BODY[:-1], 8)
    with pytest.raises(ValueError, match="in one reply"):
        ReplyRows.of([*ROWS, ReplyRow(13, 0, 0, 0, b"")])
    for outside in (replace(ROWS[0], token=1 << 31), replace(ROWS[0], position=-1)):
        with pytest.raises(ValueError, match="outside its type"):
            ReplyRows.of([outside])


def test_messages_are_frozen_hashed_values() -> None:
    one = Complete(1, 2, Status.OK, 3, 4, 5, bytes(16), 6, 7, 8)
    assert hash(one) == hash(replace(one))
    assert {one} == {replace(one)}
    assert one != replace(one, round=5)
    assert not hasattr(one, "__dict__")
    with pytest.raises(FrozenInstanceError):
        one.round = 5  # type: ignore[misc]
