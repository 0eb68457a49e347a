"""The q bytes of a reply, to and from arrays (P12, P14): one pass over a dense row beside its CRC.

Equal to :mod:`draftwire.exact.payload` in every row and every error code, tested. Small replies are
decoded in one compiled call for all rows, large ones in one a row, out of the receive buffer.
Hosts are little-endian, as the wire is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NoReturn

import google_crc32c
import numpy as np

from draftwire.errors import (
    ArithmeticRefusalError,
    ProtocolError,
    ProtocolErrorCode,
    RefusalCode,
)
from draftwire.exact.payload import check_entries
from draftwire.kernels.rows import QRow
from draftwire.rows.loops import (
    NO_TICKET,
    OK,
    dense_counts,
    sparse_counts,
    write_dense,
    write_sparse,
)
from draftwire.rows.packed import read_packed
from draftwire.wire.agreement import q_bytes
from draftwire.wire.checksum import crc32c
from draftwire.wire.messages import Reply, ReplyRow
from draftwire.wire.registry import PAD_ID, TOTAL, Layout
from draftwire.wire.rows import PackedRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CODE: Final = ProtocolErrorCode
_NO_TOKEN: Final = -1

_MEANINGS: Final = {
    _CODE.DUPLICATE_ID: "an id comes twice",
    _CODE.UNSORTED_SUPPORT: "the ids do not ascend",
    _CODE.ID_OUT_OF_RANGE: "an id is outside the vocabulary",
    _CODE.NON_FINITE_Q: "a q is not a number",
    _CODE.NEGATIVE_Q: "a q is negative",
    _CODE.NEGATIVE_ZERO_Q: "a q is -0.0",
    _CODE.NON_DYADIC_Q: "a q is no whole number of tickets",
    _CODE.WRONG_MASS: f"the counts do not sum to {TOTAL}",
    _CODE.ZERO_Q_AT_TOKEN: "q of the proposed token is zero",
    _CODE.ZERO_COUNT_ENTRY: "an entry in use has no ticket",
    _CODE.NONZERO_PADDING: f"a pad is not id {PAD_ID} with q +0.0",
}


def decode_reply_rows(
    reply: Reply, vocab_size: int, out: NDArray[np.int32] | None = None
) -> tuple[QRow, ...]:
    """Return the q of every row of a whole reply, in memory of its own: heads first, then the q's.

    out: int32 (rows, V), C-contiguous; where a dense reply's counts are put, if given (a slot).
    Errors: ProtocolError with the code of the first violation in the order of P14.
    """
    if (reply.shard_begin, reply.shard_end) != (0, vocab_size):
        _refuse(_CODE.WRONG_SHARD, "the reply does not hold the whole vocabulary", "shard_end")
    first = reply.first_position
    return decode_rows(reply.rows, reply.layout, reply.support, first, vocab_size, out)


def decode_rows(
    rows: Sequence[ReplyRow],
    layout: Layout,
    support: int,
    first_position: int,
    vocab_size: int,
    out: NDArray[np.int32] | None = None,
) -> tuple[QRow, ...]:
    """Return the q of every row as :func:`decode_reply_rows` does, from the fields it needs."""
    if layout == Layout.SPARSE and isinstance(rows, PackedRows) and rows.q_bytes == 8 * support:
        read = read_packed(rows, first_position, vocab_size)
        if read is not None:
            return read
    for index, row in enumerate(rows):
        q, size = row.q, len(row.q)
        if row.position != first_position + index:
            _refuse(_CODE.WRONG_POSITION, f"row {index} names position {row.position}", "position")
        if row.checksum != (_checksum(q) if size else 0):
            _refuse(_CODE.BAD_Q_CHECKSUM, f"the q of row {index} fails its checksum", "checksum")
        check_entries(size, layout, vocab_size, support, row.entries, row.token)
    if layout == Layout.SPARSE:
        return _decode_sparse(
            b"".join([row.q for row in rows]),
            vocab_size,
            support,
            [row.entries for row in rows],
            [row.token for row in rows],
        )
    if layout == Layout.IDS_ONLY:
        return tuple(_point_mass(vocab_size, row.token) for row in rows)
    counts = np.empty((len(rows), vocab_size), np.int32) if out is None else out
    return tuple(_decode_dense(row.q, row.token, counts[index]) for index, row in enumerate(rows))


def decode_q(
    q: bytes | memoryview,
    layout: Layout,
    vocab_size: int,
    support: int,
    entries: int,
    token: int,
) -> QRow:
    """Return one row's q, in memory of its own; sizes and errors as ``exact.payload.decode_q``."""
    check_entries(len(q), layout, vocab_size, support, entries, token)
    if layout == Layout.IDS_ONLY:
        return _point_mass(vocab_size, token)
    if layout == Layout.SPARSE:
        return _decode_sparse(q, vocab_size, support, [entries], [token])[0]
    return _decode_dense(q, token, np.empty(vocab_size, np.int32))


def encode_q(row: QRow, layout: Layout, support: int, out: memoryview) -> int:
    """Write the q bytes of one row into ``out``, which has their exact size; return their CRC32C.

    Errors: ArithmeticRefusalError OUT_OF_RANGE when the support does not fit, and
    INCONSISTENT_ALLOCATION when the row is no distribution of 2^24 tickets; ValueError for ``out``.
    """
    _encode_row(row, _NO_TOKEN, layout, support, out)
    return _checksum(out) if len(out) else 0


def encode_reply_rows(
    rows: Sequence[QRow],
    tokens: Sequence[int],
    first_position: int,
    layout: Layout,
    support: int,
    out: memoryview | None = None,
) -> Sequence[ReplyRow]:
    """Return the rows of a reply: row i is q and token of position ``first_position + i``.

    out: where the q bytes are put one after the other, if given (a slot); it must stay untouched
    until the reply is sent. Errors: ArithmeticRefusalError ZERO_Q when a token has no ticket, and
    those of :func:`encode_q`.
    """
    size = _q_bytes(layout, rows[0].vocab_size, support) if rows else 0
    store = memoryview(bytearray(size * len(rows))) if out is None else out
    encoded = []
    for index, (row, token) in enumerate(zip(rows, tokens, strict=True)):
        if not 0 <= token < row.vocab_size:
            raise ArithmeticRefusalError(RefusalCode.ZERO_Q, "a token has no q")
        q = store[index * size : (index + 1) * size]
        entries = _encode_row(row, token, layout, support, q)
        checksum = _checksum(q) if size else 0
        encoded.append(ReplyRow(first_position + index, token, entries, checksum, q.toreadonly()))
    return tuple(encoded)


def _q_bytes(layout: Layout, vocab_size: int, support: int) -> int:
    return q_bytes(layout, vocab_size if layout == Layout.DENSE else support)


def _checksum(q: bytes | memoryview) -> int:
    """CRC32C without a copy: arrays, unlike memoryviews, may be lent to the C extension."""
    return crc32c(q) if len(q) < 4096 else int(google_crc32c.value(np.frombuffer(q, np.uint8)))


def _point_mass(vocab_size: int, token: int) -> QRow:
    return QRow(vocab_size, np.array([token], np.int32), np.array([TOTAL], np.int32))


def _words(q: bytes | memoryview) -> NDArray[np.int32]:
    """Read-only int32 words of ``q``; copied only if it does not lie on a word boundary."""
    words: NDArray[np.int32] = np.frombuffer(memoryview(q).toreadonly(), np.int32)
    return words if words.flags.aligned else np.frombuffer(bytes(q), np.int32)


def _decode_dense(q: bytes | memoryview, token: int, counts: NDArray[np.int32]) -> QRow:
    words = _words(q)
    code = dense_counts(words, words.view(np.float32), token, counts)
    if code != OK:
        _refuse(_CODE(code), _MEANINGS[_CODE(code)], "q")
    return QRow(len(counts), None, counts)


def _decode_sparse(
    q: bytes | memoryview, vocab_size: int, support: int, entries: list[int], tokens: list[int]
) -> tuple[QRow, ...]:
    words = _words(q).reshape(-1, 2, support)
    ids, counts = np.empty((2, len(entries), support), np.int32)
    heads = np.array([entries, tokens], np.int32)
    code = sparse_counts(words, words.view(np.float32), heads, vocab_size, ids, counts)
    if code != OK:
        _refuse(_CODE(code), _MEANINGS[_CODE(code)], "q")
    return tuple(
        QRow(vocab_size, ids[row, :used], counts[row, :used]) for row, used in enumerate(entries)
    )


def _encode_row(row: QRow, token: int, layout: Layout, support: int, out: memoryview) -> int:
    """Write one row and return its number of entries."""
    if len(out) != _q_bytes(layout, row.vocab_size, support):
        raise ValueError(f"{len(out)} bytes for a q of another size")
    if layout == Layout.IDS_ONLY:
        if token != _NO_TOKEN and row.of(token) == 0:
            raise ArithmeticRefusalError(RefusalCode.ZERO_Q, "the q of a token is zero")
        return 0
    target: NDArray[np.int32] = np.frombuffer(out, np.int32)
    words = target if target.flags.aligned else np.empty_like(target)
    if layout == Layout.DENSE:
        entries = row.vocab_size
        code = write_dense(_dense(row), token, words.view(np.float32))
    else:
        ids, counts = _sparse(row)
        entries = len(ids)
        if entries > support:
            raise ArithmeticRefusalError(
                RefusalCode.OUT_OF_RANGE, f"{entries} ids do not fit a support of {support}"
            )
        code = write_sparse(ids, counts, token, row.vocab_size, words, words.view(np.float32))
    if code == NO_TICKET:
        raise ArithmeticRefusalError(RefusalCode.ZERO_Q, "the q of a token is zero")
    if code != OK:
        raise ArithmeticRefusalError(
            RefusalCode.INCONSISTENT_ALLOCATION, "a row to be sent is no distribution"
        )
    if words is not target:
        target[:] = words
    return entries


def _dense(row: QRow) -> NDArray[np.int32]:
    if row.ids is None:
        return row.counts
    counts = np.zeros(row.vocab_size, np.int32)
    counts[row.ids] = row.counts
    return counts


def _sparse(row: QRow) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    if row.ids is not None:
        return row.ids, row.counts
    ids = np.flatnonzero(row.counts).astype(np.int32)
    return ids, row.counts[ids]


def _refuse(code: ProtocolErrorCode, message: str, field: str) -> NoReturn:
    raise ProtocolError(code, message, field=field)
