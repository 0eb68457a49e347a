"""The frames that answer a STEP: REPLY and COMPLETE, or COMPLETE alone (P11, P12)."""

from __future__ import annotations

from draftwire.kernels.shards.shard import Shard
from draftwire.rows.reply import encode_rows
from draftwire.rows.shards import ShardDraft, encode_shard_rows
from draftwire.session.proposal import Draft, Parts
from draftwire.wire.agreement import Agreed, reply_bytes
from draftwire.wire.codec import encode
from draftwire.wire.frames import encode_frame, frame_checksum
from draftwire.wire.messages import Complete, Reply, Step
from draftwire.wire.registry import Layout, MessageType, Status


def answered(step: Step, drafted: Draft | ShardDraft, agreed: Agreed) -> Parts:
    """Return REPLY and COMPLETE for K drafts with their q's, or with one shard of them.

    The q bytes lie in new memory for every reply: a transport may still be writing the one before.
    Errors: ArithmeticRefusalError for a row that is no distribution or gives its token no count.
    """
    policy, first = step.policy, step.anchor + 1
    if isinstance(drafted, ShardDraft):
        shard, admitted = drafted.shard, 0
        rows = encode_shard_rows(drafted, first, policy.layout, policy.support)
    else:
        shard, admitted = Shard(agreed.vocab_size, 0, agreed.vocab_size), drafted.admitted
        rows = encode_rows(drafted.rows, drafted.tokens, first, policy.layout, policy.support)
    reply = Reply(
        session=step.session,
        slot=step.slot,
        layout=policy.layout,
        generation=step.generation,
        round=step.round,
        first_position=first,
        prefix_digest=step.prefix_digest,
        context_version=step.context_version,
        shard_index=shard.rank,
        shard_count=shard.size,
        shard_begin=shard.begin,
        shard_end=shard.end,
        support=shard.width if policy.layout is Layout.DENSE else policy.support,
        rows=rows,
        admitted=admitted,
    )
    frame = encode_frame(agreed.version, MessageType.REPLY, *encode(reply))
    size = reply_bytes(policy.layout, shard.width, policy.depth, policy.support)
    return [*frame, *_complete(step, Status.OK, agreed, size, frame_checksum(frame))]


def declined(step: Step, status: Status, agreed: Agreed) -> Parts:
    """Return COMPLETE alone, saying why there is no proposal."""
    return _complete(step, status, agreed, 0, 0)


def _complete(step: Step, status: Status, agreed: Agreed, size: int, checksum: int) -> Parts:
    complete = Complete(
        session=step.session,
        slot=step.slot,
        status=status,
        generation=step.generation,
        round=step.round,
        first_position=step.anchor + 1,
        prefix_digest=step.prefix_digest,
        context_version=step.context_version,
        reply_bytes=size,
        reply_checksum=checksum,
    )
    return encode_frame(agreed.version, MessageType.COMPLETE, *encode(complete))
