"""All q's of a reply to bytes and back (P12, P14), the same way for every layout.

Equal to :mod:`draftwire.exact.payload` in every row and every error code, tested. What the layouts
share stands here: the head of a row, its checksum, and the names of what is wrong. Arrays of 32-bit
words are views of the bytes, as hosts and the wire are little-endian.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

import numpy as np

from draftwire.errors import (
    ArithmeticRefusalError,
    ProtocolError,
    ProtocolErrorCode,
    RefusalCode,
)
from draftwire.kernels.rows import Lease, QRow, RowBlock
from draftwire.kernels.shards.shard import Shard
from draftwire.rows import dense, ids_only, sparse
from draftwire.rows.values import OK, ZERO_Q_AT_TOKEN
from draftwire.wire.agreement import q_bytes
from draftwire.wire.checksum import extend
from draftwire.wire.fields import POSITION_TABLE
from draftwire.wire.messages import Reply, ReplyRows
from draftwire.wire.registry import PAD_ID, TOTAL, Layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from draftwire.rows.values import Counts

_CODE: Final = ProtocolErrorCode
_HEAD: Final = POSITION_TABLE.bytes // 4  # words of a row before its q

_MEANINGS: Final = {
    _CODE.DUPLICATE_ID: "an id comes twice",
    _CODE.UNSORTED_SUPPORT: "the ids do not ascend",
    _CODE.ID_OUT_OF_RANGE: "an id is not of this vocabulary or shard",
    _CODE.NON_FINITE_Q: "a q is not a number",
    _CODE.NEGATIVE_Q: "a q is negative",
    _CODE.NEGATIVE_ZERO_Q: "a q is -0.0",
    _CODE.NON_DYADIC_Q: f"a q is no whole number of 1/{TOTAL}",
    _CODE.WRONG_MASS: f"the counts do not sum to {TOTAL}",
    _CODE.ZERO_Q_AT_TOKEN: "q of the proposed token is zero",
    _CODE.ZERO_COUNT_ENTRY: "an entry in use has no count",
    _CODE.NONZERO_PADDING: f"a pad is not id {PAD_ID} with q +0.0",
}


class RowLayout(Protocol):
    """How q's lie in a reply: what a module of a layout holds.

    Rows are of one shard: ``shard.size == 1`` is the whole vocabulary, and its counts are a q;
    a shard of several is judged by what can be said of it alone. words: int32 (K, words of a q).
    Answers 0, or the code of what is wrong first.
    """

    def entries(self, shard: Shard, support: int) -> tuple[int, int]:
        """Return the least and the most entries that a row has in use."""
        ...

    def write(
        self,
        rows: Sequence[Counts],
        tokens: Sequence[int],
        shard: Shard,
        used: NDArray[np.int32],
        words: NDArray[np.int32],
    ) -> int:
        """Write the q of every row into ``words``, and its entries in use into ``used``."""
        ...

    def read(
        self,
        words: NDArray[np.int32],
        used: NDArray[np.int32],
        tokens: NDArray[np.int32],
        shard: Shard,
        out: NDArray[np.int32] | None,
    ) -> tuple[int, NDArray[np.int32] | None, NDArray[np.int32]]:
        """Return a code, ids and counts of every row, as :class:`RowBlock` has them.

        out: where dense counts go, if given.
        """
        ...


LAYOUTS: Final[dict[Layout, RowLayout]] = {
    Layout.IDS_ONLY: ids_only,
    Layout.DENSE: dense,
    Layout.SPARSE: sparse,
}


def encode_rows(
    rows: Sequence[QRow],
    tokens: Sequence[int],
    first_position: int,
    layout: Layout,
    support: int,
) -> ReplyRows:
    """Return the rows of a reply: row i is q and token of position ``first_position + i``.

    Their bytes lie in new memory. Errors: ArithmeticRefusalError ZERO_Q for a token without a
    count, OUT_OF_RANGE for ids that ``support`` does not hold, INCONSISTENT_ALLOCATION for a row
    that is no distribution; ValueError for a position that is no u32, or rows over different
    vocabularies.
    """
    vocab_size = rows[0].vocab_size
    if {row.vocab_size for row in rows} != {vocab_size}:
        raise ValueError("the rows of one reply are over one vocabulary")
    shard = Shard(vocab_size, 0, vocab_size)
    pieces = [(row.ids, row.counts) for row in rows]
    return encode_shard(pieces, tokens, first_position, layout, support, shard)


def decode_rows(
    reply: Reply,
    vocab_size: int,
    out: NDArray[np.int32] | None = None,
    lease: Lease | None = None,
) -> RowBlock:
    """Return the q of every row of a whole reply, none of it in the reply's memory.

    out: int32 (K, V), C-contiguous; where a dense reply's counts are put, if given, and ``lease``
    says until when they may be read there. Errors: ProtocolError with the code of the first
    violation in the order of P14, heads first.
    """
    if (reply.shard_begin, reply.shard_end) != (0, vocab_size):
        _refuse(_CODE.WRONG_SHARD, "the reply does not hold the whole vocabulary", "shard_end")
    used, ids, counts = decode_shard(reply, Shard(vocab_size, 0, vocab_size), out)
    return RowBlock(vocab_size, ids, counts, used, lease if counts is out else None)


def encode_shard(
    rows: Sequence[Counts],
    tokens: Sequence[int],
    first_position: int,
    layout: Layout,
    support: int,
    shard: Shard,
) -> ReplyRows:
    """Return the rows of a reply that holds one shard; see :func:`encode_rows`."""
    depth, last = len(rows), first_position + len(rows) - 1
    if len(tokens) != depth or not 0 <= first_position <= last < 1 << 32:
        raise ValueError(f"{len(tokens)} tokens for {depth} rows from {first_position} on")
    if min(tokens) < 0 or max(tokens) >= shard.vocab_size:
        raise ArithmeticRefusalError(RefusalCode.ZERO_Q, "a token has no q")
    size = q_bytes(layout, shard.width if layout is Layout.DENSE else support)
    words = np.empty((depth, _HEAD + size // 4), np.int32)
    used = np.empty(depth, np.int32)
    code = LAYOUTS[layout].write(rows, tokens, shard, used, words[:, _HEAD:])
    if code == ZERO_Q_AT_TOKEN:
        raise ArithmeticRefusalError(RefusalCode.ZERO_Q, "the q of a token is zero")
    if code != OK:
        raise ArithmeticRefusalError(
            RefusalCode.INCONSISTENT_ALLOCATION, "a row to be sent is no distribution"
        )
    body = words.data.cast("B")
    for index, entries in enumerate(used.tolist()):
        checksum = extend(0, words[index, _HEAD:])
        at = index * (POSITION_TABLE.bytes + size)
        row = first_position + index, tokens[index], entries, checksum
        POSITION_TABLE.record.pack_into(body, at, *row)
    return ReplyRows(body, size)


def decode_shard(
    reply: Reply, shard: Shard, out: NDArray[np.int32] | None = None
) -> tuple[NDArray[np.int32], NDArray[np.int32] | None, NDArray[np.int32]]:
    """Return entries in use (K,), ids and counts of one shard's rows; see :func:`decode_rows`."""
    layout, rows = LAYOUTS[reply.layout], reply.rows
    if rows.q_bytes != q_bytes(reply.layout, reply.support):
        _refuse(_CODE.WRONG_SIZE, f"{rows.q_bytes} bytes of q", "q")
    words = _words(rows)
    _check_heads(words, reply, shard, layout.entries(shard, reply.support))
    used, tokens = words[:, 2].copy(), words[:, 1].copy()
    code, ids, counts = layout.read(words[:, _HEAD:], used, tokens, shard, out)
    if code != OK:
        _refuse(_CODE(code), _MEANINGS[_CODE(code)], "q")
    return used, ids, counts


def _words(rows: ReplyRows) -> NDArray[np.int32]:
    """Read-only int32 (K, words of a row); copied only where it lies on no word boundary."""
    flat: NDArray[np.int32] = np.frombuffer(memoryview(rows.body).toreadonly(), np.int32)
    if not flat.flags.aligned:
        flat = np.frombuffer(bytes(rows.body), np.int32)
    return flat.reshape(-1, _HEAD + rows.q_bytes // 4)


def _check_heads(
    words: NDArray[np.int32], reply: Reply, shard: Shard, entries: tuple[int, int]
) -> None:
    """Refuse the first head that is wrong; a negative token is far over V as an unsigned number."""
    least, most = entries
    qs = words[:, _HEAD:]
    heads = words[:, :_HEAD].view(np.uint32).tolist()
    for index, (position, token, used, checksum) in enumerate(heads):
        if position != reply.first_position + index:
            _refuse(_CODE.WRONG_POSITION, f"row {index} names position {position}", "position")
        if checksum != extend(0, qs[index]):
            _refuse(_CODE.BAD_Q_CHECKSUM, f"the q of row {index} fails its checksum", "checksum")
        if token >= shard.vocab_size:
            _refuse(_CODE.ID_OUT_OF_RANGE, f"the token of row {index} is no id", "token")
        if used < least:
            _refuse(_CODE.MISSING_Q, f"{used} entries, at least {least} are due", "entries")
        if used > most:
            _refuse(_CODE.WRONG_SIZE, f"{used} entries, at most {most} are possible", "entries")


def _refuse(code: ProtocolErrorCode, message: str, field: str) -> NoReturn:
    raise ProtocolError(code, message, field=field)
