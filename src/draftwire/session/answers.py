"""The frames that answer a STEP: REPLY and COMPLETE, or COMPLETE alone (P11, P12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from draftwire.kernels.answers import write_answer
from draftwire.kernels.payload import encode_reply_rows
from draftwire.kernels.rows import QRow
from draftwire.kernels.shards import Shard
from draftwire.kernels.shards_payload import ShardDraft, encode_shard_rows
from draftwire.session.proposal import Parts
from draftwire.wire.agreement import Agreed, q_bytes, reply_bytes
from draftwire.wire.answer import Part, complete, outline, reply_head
from draftwire.wire.codec import encode_rows
from draftwire.wire.frames import encode_frame, frame_checksum
from draftwire.wire.messages import ReplyRow, Step
from draftwire.wire.registry import Layout, MessageType, Status

Drafted: TypeAlias = Sequence[tuple[int, QRow]] | ShardDraft
"""K tokens with their q's; or, where the ranks of a drafter answer together, one shard of those."""


def tokens_of(drafted: Drafted) -> tuple[int, ...]:
    """The K tokens."""
    if isinstance(drafted, ShardDraft):
        return drafted.tokens
    return tuple(token for token, _ in drafted)


def whole(step: Step, drafted: Drafted, agreed: Agreed) -> Parts:
    """Return REPLY and COMPLETE for K drafts with their q's, or with one shard of them.

    The q bytes lie in new memory for every reply: a transport may still be writing the one before.
    Errors: ArithmeticRefusalError for a row that is no distribution or gives its token no ticket.
    """
    policy, first = step.policy, step.first_position
    if isinstance(drafted, ShardDraft):
        shard = drafted.shard
        rows: Sequence[ReplyRow] = encode_shard_rows(drafted, first, policy.layout, policy.support)
    else:
        shard = Shard(agreed.vocab_size, 0, agreed.vocab_size)
        q = [row for _, row in drafted]
        if policy.layout is Layout.SPARSE:
            frames = outline(step, Part(shard.rank, shard.size, shard.begin, shard.end))
            answer = write_answer(q, tokens_of(drafted), first, policy.support, frames)
            if answer is not None:
                return [answer]
        rows = encode_reply_rows(q, tokens_of(drafted), first, policy.layout, policy.support)
    head = reply_head(step, Part(shard.rank, shard.size, shard.begin, shard.end))
    width = shard.width if policy.layout is Layout.DENSE else policy.support
    payload = encode_rows(head, rows, q_bytes(policy.layout, width))
    frame = encode_frame(agreed.version, MessageType.REPLY, *payload)
    size = reply_bytes(policy.layout, shard.width, policy.depth, policy.support)
    return [*frame, *_complete(step, Status.OK, agreed, size, frame_checksum(frame))]


def declined(step: Step, status: Status, agreed: Agreed) -> Parts:
    """Return COMPLETE alone, saying why there is no proposal."""
    return _complete(step, status, agreed, 0, 0)


def _complete(step: Step, status: Status, agreed: Agreed, size: int, checksum: int) -> Parts:
    payload = complete(step, status, size, checksum)
    return encode_frame(agreed.version, MessageType.COMPLETE, payload)
