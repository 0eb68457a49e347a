"""The q bytes of a reply in plain integers: P12 and P14 of spec/protocol.md, word for word.

Normative for :mod:`draftwire.rows.reply`, which gives the same rows and the same error codes.
Layouts are told apart by name (``IDS_ONLY``, ``DENSE``, ``SPARSE``); their numbers belong to the
wire. Everything received that is not canonical raises ProtocolError, everything of our own that
cannot be sent ArithmeticRefusalError.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple, NoReturn, Protocol

from draftwire.errors import (
    ArithmeticRefusalError,
    ProtocolError,
    ProtocolErrorCode,
    RefusalCode,
)
from draftwire.exact.counts import TOTAL, Counts

PAD_ID: Final = -1
_SIGN: Final = 1 << 31
_CODE: Final = ProtocolErrorCode


class Row(Protocol):
    """What is read of a row of a reply (``draftwire.wire.messages.ReplyRow`` is one)."""

    @property
    def position(self) -> int: ...  # noqa: D102
    @property
    def token(self) -> int: ...  # noqa: D102
    @property
    def entries(self) -> int: ...  # noqa: D102
    @property
    def checksum(self) -> int: ...  # noqa: D102
    @property
    def q(self) -> bytes | memoryview: ...  # noqa: D102


class Rows(Protocol):
    """What is read of a reply (``draftwire.wire.messages.Reply`` is one)."""

    @property
    def layout(self) -> Enum: ...  # noqa: D102
    @property
    def first_position(self) -> int: ...  # noqa: D102
    @property
    def shard_begin(self) -> int: ...  # noqa: D102
    @property
    def shard_end(self) -> int: ...  # noqa: D102
    @property
    def support(self) -> int: ...  # noqa: D102
    @property
    def rows(self) -> Sequence[Row]: ...  # noqa: D102


class EncodedRow(NamedTuple):
    """A row as it is sent, field by field."""

    position: int
    token: int
    entries: int
    checksum: int
    q: bytes


def crc32c(data: bytes | memoryview) -> int:
    """Return the CRC32C of ``data`` (RFC 3720: 0x1EDC6F41 reflected, ones before and after)."""
    remainder = 0xFFFFFFFF
    for byte in bytes(data):
        remainder ^= byte
        for _ in range(8):
            remainder = remainder >> 1 ^ (0x82F63B78 if remainder & 1 else 0)
    return remainder ^ 0xFFFFFFFF


def decode_reply_rows(reply: Rows, vocab_size: int) -> tuple[Counts, ...]:
    """Return the q of every row of a whole reply: the heads are checked first, then the q's.

    Of an ``IDS_ONLY`` reply each q is the point mass on its token (a greedy drafter's, A2).
    Errors: ProtocolError with the code of the first violation in the order of P14.
    """
    if (reply.shard_begin, reply.shard_end) != (0, vocab_size):
        _refuse(_CODE.WRONG_SHARD, "the reply does not hold the whole vocabulary", "shard_end")
    for index, row in enumerate(reply.rows):
        _check_head(row, reply, index, vocab_size)
    return tuple(
        decode_q(row.q, reply.layout, vocab_size, reply.support, row.entries, row.token)
        for row in reply.rows
    )


def decode_q(
    q: bytes | memoryview,
    layout: Enum,
    vocab_size: int,
    support: int,
    entries: int,
    token: int,
) -> Counts:
    """Return the counts of one row's q bytes.

    q: nothing (ids only), binary32 x V (dense), or int32 ids x support then binary32 x support
    (sparse). Errors: ProtocolError with the code of the first violation in the order of P14.
    """
    check_entries(len(q), layout, vocab_size, support, entries, token)
    if layout.name == "IDS_ONLY":
        return Counts(vocab_size, TOTAL, (token,), (TOTAL,))
    if layout.name == "DENSE":
        counts = [_count(bits) for bits in struct.unpack(f"<{vocab_size}I", q)]
        used = [(token_id, count) for token_id, count in enumerate(counts) if count]
    else:
        used = _decode_sparse(q, vocab_size, support, entries)
    mass = sum(count for _, count in used)
    if mass != TOTAL:
        _refuse(_CODE.WRONG_MASS, f"the counts sum to {mass}, not to {TOTAL}", "q")
    if token not in {token_id for token_id, _ in used}:
        _refuse(_CODE.ZERO_Q_AT_TOKEN, "the q of the token is zero", "token")
    return Counts(vocab_size, TOTAL, tuple(i for i, _ in used), tuple(c for _, c in used))


def check_entries(
    size: int, layout: Enum, vocab_size: int, support: int, entries: int, token: int
) -> None:
    """Refuse a row whose size, token or number of entries cannot be: WRONG_SIZE, ID_OUT_OF_RANGE,
    MISSING_Q.
    """
    name = layout.name
    if name == "SPARSE":
        least, most, width = 1, support, 8 * support
    elif name == "DENSE":
        least, most, width = vocab_size, vocab_size, 4 * vocab_size
    else:
        least, most, width = 0, 0, 0
    if size != width:
        _refuse(_CODE.WRONG_SIZE, f"{size} bytes of q, {width} are due", "q")
    if not 0 <= token < vocab_size:
        _refuse(_CODE.ID_OUT_OF_RANGE, f"the token is not in 0..{vocab_size - 1}", "token")
    if entries < least:
        _refuse(_CODE.MISSING_Q, f"{entries} entries, at least {least} are due", "entries")
    if entries > most:
        _refuse(_CODE.WRONG_SIZE, f"{entries} entries, at most {most} are possible", "entries")


def encode_q(counts: Counts, layout: Enum, support: int) -> bytes:
    """Return the q bytes of one row, always of the size that layout, V and support give (P12).

    Errors: ArithmeticRefusalError OUT_OF_RANGE when the support is larger than ``support``, or the
    counts are not of 2^24 tickets.
    """
    if counts.total != TOTAL:
        raise ArithmeticRefusalError(
            RefusalCode.OUT_OF_RANGE, f"a row has {TOTAL} tickets, not {counts.total}"
        )
    if layout.name == "IDS_ONLY":
        return b""
    if layout.name == "DENSE":
        values = [count / TOTAL for count in counts.dense()]
        return struct.pack(f"<{counts.vocab_size}f", *values)
    pads = support - len(counts.ids)
    if pads < 0:
        raise ArithmeticRefusalError(
            RefusalCode.OUT_OF_RANGE, f"{len(counts.ids)} ids do not fit a support of {support}"
        )
    values = [count / TOTAL for count in counts.counts] + [0.0] * pads
    return struct.pack(f"<{support}i{support}f", *counts.ids, *[PAD_ID] * pads, *values)


def encode_reply_rows(
    rows: Sequence[Counts],
    tokens: Sequence[int],
    first_position: int,
    layout: Enum,
    support: int,
) -> tuple[EncodedRow, ...]:
    """Return the rows of a reply: row i is q and token of position ``first_position + i``.

    Errors: ArithmeticRefusalError ZERO_Q when a token has no ticket, and those of :func:`encode_q`.
    """
    encoded = []
    for index, (counts, token) in enumerate(zip(rows, tokens, strict=True)):
        if counts.of(token) == 0:
            raise ArithmeticRefusalError(RefusalCode.ZERO_Q, "the q of a token is zero")
        q = encode_q(counts, layout, support)
        entries = {"IDS_ONLY": 0, "DENSE": counts.vocab_size, "SPARSE": len(counts.ids)}
        checksum = crc32c(q) if q else 0
        encoded.append(EncodedRow(first_position + index, token, entries[layout.name], checksum, q))
    return tuple(encoded)


def _check_head(row: Row, reply: Rows, index: int, vocab_size: int) -> None:
    if row.position != reply.first_position + index:
        _refuse(_CODE.WRONG_POSITION, f"row {index} names position {row.position}", "position")
    due = crc32c(row.q) if len(row.q) else 0
    if row.checksum != due:
        _refuse(_CODE.BAD_Q_CHECKSUM, f"the q of row {index} fails its checksum", "checksum")
    check_entries(len(row.q), reply.layout, vocab_size, reply.support, row.entries, row.token)


def _decode_sparse(
    q: bytes | memoryview, vocab_size: int, support: int, entries: int
) -> list[tuple[int, int]]:
    words = struct.unpack(f"<{support}i{support}I", q)
    ids, values = words[:support], words[support:]
    before = -1
    for token_id in ids[:entries]:
        if not 0 <= token_id < vocab_size:
            _refuse(_CODE.ID_OUT_OF_RANGE, f"an id is not in 0..{vocab_size - 1}", "q")
        if token_id == before:
            _refuse(_CODE.DUPLICATE_ID, "an id comes twice", "q")
        if token_id < before:
            _refuse(_CODE.UNSORTED_SUPPORT, "the ids do not ascend", "q")
        before = token_id
    counts = []
    for bits in values[:entries]:
        counts.append(_count(bits))
        if not counts[-1]:
            _refuse(_CODE.ZERO_COUNT_ENTRY, "an entry in use has no ticket", "q")
    for token_id, bits in zip(ids[entries:], values[entries:], strict=True):
        if token_id != PAD_ID or bits:
            _refuse(_CODE.NONZERO_PADDING, f"a pad is id {PAD_ID} with q +0.0", "q")
    return list(zip(ids[:entries], counts, strict=True))


def _count(bits: int) -> int:
    """Return the tickets of a binary32 number given by its bits, or refuse it."""
    exponent, fraction = bits >> 23 & 0xFF, bits & 0x7FFFFF
    if exponent == 0xFF:
        _refuse(_CODE.NON_FINITE_Q, "a q is not a number", "q")
    if bits == _SIGN:
        _refuse(_CODE.NEGATIVE_ZERO_Q, "a q is -0.0", "q")
    if bits & _SIGN:
        _refuse(_CODE.NEGATIVE_Q, "a q is negative", "q")
    # value = significand * 2^(max(exponent, 1) - 150), and a ticket is 2^-24
    significand = fraction | (0x800000 if exponent else 0)
    shift = max(exponent, 1) - 150 + 24
    if shift >= 0:
        return significand << shift
    if significand & ((1 << -shift) - 1):
        _refuse(_CODE.NON_DYADIC_Q, "a q is no whole number of tickets", "q")
    return significand >> -shift


def _refuse(code: ProtocolErrorCode, message: str, field: str) -> NoReturn:
    raise ProtocolError(code, message, field=field)
