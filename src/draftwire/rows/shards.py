"""The q bytes of a reply that is one shard of several, and whether the shards are one q (P19).

A shard alone is judged by everything that can be said of it alone: its place, its size, its ids and
its numbers. That the shards together hold M, name one token and were drawn with the right
word only all of them can say, and one gathering of a few numbers says it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.kernels.shards.shard import Integers, Shard, Steps, broadcast, gather
from draftwire.rows.reply import decode_shard, encode_shard
from draftwire.wire.messages import Reply, ReplyRows
from draftwire.wire.registry import TOTAL, Layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CODE: Final = ProtocolErrorCode
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
) -> ReplyRows:
    """Return the rows of a reply that holds one shard, in the layouts of whole replies.

    Dense: one binary32 number for each id of the shard. Sparse: K = support slots, whatever part of
    the support lies here. Errors: ArithmeticRefusalError OUT_OF_RANGE where it does not fit.
    """
    rows = [(None, counts) for counts in draft.counts]
    return encode_shard(rows, draft.tokens, first_position, layout, support, draft.shard)


def decode_shard_rows(reply: Reply, shard: Shard) -> ShardDraft:
    """Return a shard's columns of every row, in memory of their own; not yet a q.

    Errors: ProtocolError WRONG_SHARD unless the reply holds exactly this shard, then with the code
    of the first violation in the order of P14, as far as one shard can tell.
    """
    held = (reply.shard_index, reply.shard_count, reply.shard_begin, reply.shard_end)
    if held != (shard.rank, shard.size, shard.begin, shard.end):
        raise ProtocolError(
            _CODE.WRONG_SHARD, f"the reply holds {held}, not {shard}", field="shard_index"
        )
    used, ids, counts = decode_shard(reply, shard)
    tokens = reply.rows.tokens
    if ids is None:
        return ShardDraft(shard, tokens, counts)
    columns = np.zeros((len(counts), shard.width), np.int32)
    for own, at, count, entries in zip(columns, ids, counts, used.tolist(), strict=True):
        own[at[:entries] - shard.begin] = count[:entries]
    return ShardDraft(shard, tokens, columns)


def settle(
    shard: Shard,
    draft: ShardDraft | ProtocolErrorCode,
    depth: int,
    uniform24: Sequence[int] | None,
) -> Steps[ProtocolErrorCode | None]:
    """Whether the shards are one proposal: None, or why all of it is dropped on every rank.

    draft: what this rank has, or why it has none. depth: K as asked. uniform24: the K words that
    the proposal was drawn with, on the leader, to audit with (A22); None = no audit. The leader
    decides whether every shard is there; all name the same tokens (BAD_FIELD); each row's counts
    sum to M (WRONG_MASS); the token has one (ZERO_Q_AT_TOKEN); the word draws it (AUDIT_FAILED).
    """
    gathered = yield from gather(_facts(shard, draft, depth))
    code = np.zeros(1, np.int64)
    if shard.leads:
        code[0] = _judged(gathered, uniform24)
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


def _judged(gathered: Integers, uniform24: Sequence[int] | None) -> int:
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
    if uniform24 is not None:
        drawn = np.asarray(uniform24, np.int64)
        if ((drawn < below) | (drawn >= below + own)).any():
            return _CODE.AUDIT_FAILED
    return _WHOLE
