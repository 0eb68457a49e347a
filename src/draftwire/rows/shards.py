"""The q bytes of a reply that is one shard of several, and whether the shards are one q (P19).

A shard alone is judged by everything that can be said of it alone: its place, its size, its ids and
its numbers. That the shards together hold M tickets, name one token and were drawn with the right
word only all of them can say, and one gathering of a few numbers says it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

import numpy as np

from draftwire.errors import ArithmeticRefusalError, ProtocolError, ProtocolErrorCode, RefusalCode
from draftwire.kernels.shards.shard import Integers, Shard, Steps, broadcast, gather
from draftwire.wire.agreement import q_bytes
from draftwire.wire.checksum import crc32c
from draftwire.wire.messages import Reply, ReplyRow
from draftwire.wire.registry import PAD_ID, TOTAL, Layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CODE: Final = ProtocolErrorCode
_NO_TICKET: Final = -(1 << 31)  # the binary32 pattern of -0.0
_WHOLE: Final = 0  # what settle answers where the shards are one proposal


@dataclass(frozen=True, slots=True, eq=False)
class ShardDraft:
    """One shard of a proposal: K tokens, the same on all, and its own columns of their q's.

    counts: int32 (K, width).
    """

    shard: Shard
    tokens: tuple[int, ...]
    counts: NDArray[np.int32]


def encode_shard_rows(
    draft: ShardDraft, first_position: int, layout: Layout, support: int
) -> tuple[ReplyRow, ...]:
    """Return the rows of a reply that holds one shard.

    Dense: one binary32 number for each id of the shard. Sparse: K = support slots, whatever part of
    the support lies here. Errors: ArithmeticRefusalError OUT_OF_RANGE where it does not fit.
    """
    rows = []
    for index, (token, counts) in enumerate(zip(draft.tokens, draft.counts, strict=True)):
        entries, q = _encoded(counts, draft.shard, layout, support)
        checksum = crc32c(q) if q else 0
        rows.append(ReplyRow(first_position + index, token, entries, checksum, q))
    return tuple(rows)


def decode_shard_rows(reply: Reply, shard: Shard) -> ShardDraft:
    """Return a shard's columns of every row, in memory of their own; not yet a q.

    Errors: ProtocolError WRONG_SHARD unless the reply holds exactly this shard, then with the code
    of the first violation in the order of P14, as far as one shard can tell.
    """
    held = (reply.shard_index, reply.shard_count, reply.shard_begin, reply.shard_end)
    if held != (shard.rank, shard.size, shard.begin, shard.end):
        _refuse(_CODE.WRONG_SHARD, f"the reply holds {held}, not {shard}", "shard_index")
    for index, row in enumerate(reply.rows):
        _check_head(row, reply, index, shard)
    counts = np.zeros((len(reply.rows), shard.width), np.int32)
    for own, row in zip(counts, reply.rows, strict=True):
        _decoded(row, reply, shard, own)
    return ShardDraft(shard, tuple(row.token for row in reply.rows), counts)


def settle(
    shard: Shard, draft: ShardDraft | ProtocolErrorCode, depth: int, words: Sequence[int] | None
) -> Steps[ProtocolErrorCode | None]:
    """Whether the shards are one proposal: None, or why all of it is dropped on every rank.

    draft: what this rank has, or why it has none. depth: K as asked. words: the K words that the
    proposal was drawn with, on the leader, to audit with (A22); None = no audit. The leader decides
    whether every shard is there; all name the same tokens (BAD_FIELD); each row's tickets sum to M
    (WRONG_MASS); the token has one (ZERO_Q_AT_TOKEN); the word draws it (AUDIT_FAILED).
    """
    gathered = yield from gather(_facts(shard, draft, depth))
    code = np.zeros(1, np.int64)
    if shard.leads:
        code[0] = _judged(gathered, words)
    code = yield from broadcast(code)
    return None if code[0] == _WHOLE else ProtocolErrorCode(int(code[0]))


def _facts(shard: Shard, draft: ShardDraft | ProtocolErrorCode, depth: int) -> Integers:
    """(K + 1, 4): a code, then of each row its token, mass, q of the token, and mass below it."""
    facts = np.zeros((depth + 1, 4), np.int64)
    if not isinstance(draft, ShardDraft):
        facts[0, 0] = draft
        return facts
    if len(draft.tokens) != depth:
        facts[0, 0] = _CODE.BAD_FIELD
        return facts
    for fact, token, counts in zip(facts[1:], draft.tokens, draft.counts, strict=True):
        at = min(max(token - shard.begin, 0), shard.width)
        own = int(counts[at]) if shard.owns(token) else 0
        fact[:] = token, counts.sum(dtype=np.int64), own, counts[:at].sum(dtype=np.int64)
    return facts


def _judged(gathered: Integers, words: Sequence[int] | None) -> int:
    codes = gathered[:, 0, 0]
    if codes.any():
        return int(codes[codes != 0][0])
    tokens = gathered[:, 1:, 0]
    masses, own, below = gathered[:, 1:, 1:].sum(axis=0).T
    if (tokens != tokens[0]).any():
        return _CODE.BAD_FIELD
    if (masses != TOTAL).any():
        return _CODE.WRONG_MASS
    if (own == 0).any():
        return _CODE.ZERO_Q_AT_TOKEN
    if words is not None:
        drawn = np.asarray(words, np.int64)
        if ((drawn < below) | (drawn >= below + own)).any():
            return _CODE.AUDIT_FAILED
    return _WHOLE


def _encoded(
    counts: NDArray[np.int32], shard: Shard, layout: Layout, support: int
) -> tuple[int, bytes]:
    if layout is Layout.IDS_ONLY:
        return 0, b""
    if layout is Layout.DENSE:
        return shard.width, (counts / np.float32(TOTAL)).astype("<f4").tobytes()
    used = np.flatnonzero(counts)
    if len(used) > support:
        raise ArithmeticRefusalError(
            RefusalCode.OUT_OF_RANGE, f"{len(used)} ids do not fit a support of {support}"
        )
    ids = np.full(support, PAD_ID, "<i4")
    q = np.zeros(support, "<f4")
    ids[: len(used)] = used + shard.begin
    q[: len(used)] = counts[used] / np.float32(TOTAL)
    return len(used), ids.tobytes() + q.tobytes()


def _check_head(row: ReplyRow, reply: Reply, index: int, shard: Shard) -> None:
    if row.position != reply.first_position + index:
        _refuse(_CODE.WRONG_POSITION, f"row {index} names position {row.position}", "position")
    if row.checksum != (crc32c(row.q) if len(row.q) else 0):
        _refuse(_CODE.BAD_Q_CHECKSUM, f"the q of row {index} fails its checksum", "checksum")
    width = shard.width if reply.layout is Layout.DENSE else reply.support
    if len(row.q) != q_bytes(reply.layout, width):
        _refuse(_CODE.WRONG_SIZE, f"the q of row {index} has {len(row.q)} bytes", "q")
    if not 0 <= row.token < shard.vocab_size:
        _refuse(_CODE.ID_OUT_OF_RANGE, "there is no such id", "token")
    due = {Layout.DENSE: shard.width, Layout.IDS_ONLY: 0}
    if row.entries < due.get(reply.layout, 0):
        _refuse(_CODE.MISSING_Q, f"{row.entries} entries", "entries")
    if row.entries > due.get(reply.layout, reply.support):
        _refuse(_CODE.WRONG_SIZE, f"{row.entries} entries", "entries")


def _decoded(row: ReplyRow, reply: Reply, shard: Shard, out: NDArray[np.int32]) -> None:
    if reply.layout is Layout.IDS_ONLY:  # the point mass on the token (A2), for its owner
        if shard.owns(row.token):
            out[row.token - shard.begin] = TOTAL
        return
    words = np.frombuffer(bytes(row.q), "<i4")
    if reply.layout is Layout.DENSE:
        out[:] = _counts(words, zeros=True)
        return
    ids, patterns = words[: row.entries], words[reply.support :]
    for at, token in enumerate(ids.tolist()):
        if not shard.owns(token):
            _refuse(_CODE.ID_OUT_OF_RANGE, "an id is not of this shard", "q")
        if at and token <= ids[at - 1]:
            twice = token == ids[at - 1]
            _refuse(
                _CODE.DUPLICATE_ID if twice else _CODE.UNSORTED_SUPPORT,
                "the ids do not ascend",
                "q",
            )
    out[ids - shard.begin] = _counts(patterns[: row.entries], zeros=False)
    if (words[row.entries : reply.support] != PAD_ID).any() or patterns[row.entries :].any():
        _refuse(_CODE.NONZERO_PADDING, f"a pad is not id {PAD_ID} with q +0.0", "q")


def _counts(patterns: NDArray[np.int32], *, zeros: bool) -> NDArray[np.int64]:
    """Tickets of binary32 patterns; the first one that is none names the code."""
    q = np.ascontiguousarray(patterns).view("<f4").astype(np.float64)
    with np.errstate(invalid="ignore"):
        tickets = q * TOTAL
        whole = np.isfinite(q) & (q >= 0) & (patterns != _NO_TICKET)
        # More than the whole mass is found here already, so that no sum can overflow.
        whole &= (np.floor(tickets) == tickets) & (zeros | (q != 0)) & (tickets <= TOTAL)
    if not whole.all():
        at = int(np.argmin(whole))
        _refuse(_reason(float(q[at]), int(patterns[at])), "an entry is no count", "q")
    counts: NDArray[np.int64] = tickets.astype(np.int64)
    return counts


def _reason(q: float, pattern: int) -> ProtocolErrorCode:
    if not np.isfinite(q):
        return _CODE.NON_FINITE_Q
    if pattern == _NO_TICKET:
        return _CODE.NEGATIVE_ZERO_Q
    if q < 0:
        return _CODE.NEGATIVE_Q
    if q == 0:
        return _CODE.ZERO_COUNT_ENTRY
    return _CODE.NON_DYADIC_Q if (q * TOTAL) % 1 else _CODE.WRONG_MASS


def _refuse(code: ProtocolErrorCode, message: str, field: str) -> NoReturn:
    raise ProtocolError(code, message, field=field)
