"""Rows of a reply as they lie in its payload (P12), read one by one only when asked for."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, overload

from draftwire.wire.fields import POSITION_TABLE
from draftwire.wire.messages import ReplyRow

ROW_HEAD_BYTES: Final = POSITION_TABLE.bytes


class PackedRows(Sequence[ReplyRow]):
    """The rows of one reply in one piece: the same sequence as a tuple of them, and equal to it.

    body: the rows one after the other, each its fixed fields and then ``q_bytes`` of q.
    """

    __slots__ = ("body", "q_bytes")

    def __init__(self, body: bytes, q_bytes: int) -> None:
        if len(body) % (ROW_HEAD_BYTES + q_bytes):
            raise ValueError(f"{len(body)} bytes are no rows with a q of {q_bytes}")
        self.body = body
        self.q_bytes = q_bytes

    def __len__(self) -> int:
        """Rows."""
        return len(self.body) // (ROW_HEAD_BYTES + self.q_bytes)

    def __iter__(self) -> Iterator[ReplyRow]:
        """Read one row after the other."""
        return (ReplyRow(*row) for row in _row(self.q_bytes).iter_unpack(self.body))

    @overload
    def __getitem__(self, index: int) -> ReplyRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ReplyRow, ...]: ...
    def __getitem__(self, index: int | slice) -> ReplyRow | tuple[ReplyRow, ...]:
        """Read one row, or some as a tuple."""
        return tuple(self)[index]

    @property
    def tokens(self) -> tuple[int, ...]:
        """The sampled ids."""
        return tuple([token for (token,) in _token(self.q_bytes).iter_unpack(self.body)])

    def __eq__(self, other: object) -> bool:
        """Whether the other sequence has equal rows."""
        if isinstance(other, PackedRows):
            return (self.body, self.q_bytes) == (other.body, other.q_bytes)
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        """Return the hash of a tuple of the rows."""
        return hash(tuple(self))

    def __repr__(self) -> str:
        """Return what a tuple of the rows shows."""
        return repr(tuple(self))


def tokens_of(rows: Sequence[ReplyRow]) -> tuple[int, ...]:
    """Return the sampled ids of a reply's rows."""
    return rows.tokens if isinstance(rows, PackedRows) else tuple(row.token for row in rows)


@lru_cache(maxsize=64)
def _token(q_bytes: int) -> struct.Struct:
    """The token of a row and nothing else; it is the second of four fields of four bytes."""
    return struct.Struct(f"<4xi{ROW_HEAD_BYTES - 8 + q_bytes}x")


@lru_cache(maxsize=64)
def _row(q_bytes: int) -> struct.Struct:
    return struct.Struct(f"{POSITION_TABLE.format}{q_bytes}s")
