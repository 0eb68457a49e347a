"""No error about a reply holds a token id: errors are logged, and ids are the text (P14, A16)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from draftwire.errors import ProtocolError
from draftwire.exact.payload import decode_reply_rows
from draftwire.rows.reply import decode_rows
from draftwire.wire.checksum import crc32c
from draftwire.wire.messages import Reply, ReplyRow, ReplyRows
from draftwire.wire.registry import PAD_ID, Layout

V = 900_000
ONE, OTHER = 777_771, 777_772  # ids that stand in no text by chance
HALF = 0.5


def sparse(ids: list[int], values: list[float]) -> bytes:
    return struct.pack("<4i4f", *ids, *[PAD_ID] * (4 - len(ids)), *values, *[0.0] * (4 - len(ids)))


REFUSED = {
    "id over the vocabulary": (sparse([ONE, V + ONE], [HALF, HALF]), 2, ONE),
    "id twice": (sparse([ONE, ONE], [HALF, HALF]), 2, ONE),
    "ids that fall": (sparse([OTHER, ONE], [HALF, HALF]), 2, ONE),
    "mass": (sparse([ONE, OTHER], [HALF, 0.25]), 2, ONE),
    "no ticket for the token": (sparse([ONE], [1.0]), 1, OTHER),
    "no such token": (sparse([ONE], [1.0]), 1, V + ONE),
    "a used pad": (sparse([ONE, OTHER], [1.0, 0.0]), 1, ONE),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("decode", [decode_reply_rows, decode_rows])
def test_a_refused_row_names_no_id(decode: Callable[..., Any], name: str) -> None:
    q, entries, token = REFUSED[name]
    rows = ReplyRows.of([ReplyRow(9, token, entries, crc32c(q), q)])
    reply = Reply(1, 0, Layout.SPARSE, 1, 1, 9, bytes(16), 0, 0, 1, 0, V, 4, rows)
    with pytest.raises(ProtocolError) as raised:
        decode(reply, V)
    for each in (ONE, OTHER, V + ONE):
        assert str(each) not in str(raised.value)
