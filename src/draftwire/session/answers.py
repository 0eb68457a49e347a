"""The frames that answer a STEP: REPLY and COMPLETE, or COMPLETE alone (P11, P12)."""

from __future__ import annotations

from collections.abc import Sequence

from draftwire.kernels.payload import encode_reply_rows
from draftwire.kernels.rows import QRow
from draftwire.session.proposal import Parts
from draftwire.wire.agreement import Agreed, reply_bytes
from draftwire.wire.codec import encode
from draftwire.wire.frames import encode_frame, frame_checksum
from draftwire.wire.messages import Complete, Reply, Step
from draftwire.wire.registry import Layout, MessageType, Status


def whole(step: Step, drafted: Sequence[tuple[int, QRow]], agreed: Agreed) -> Parts:
    """Return REPLY and COMPLETE for K drafts with their q's.

    The q bytes lie in new memory for every reply: a transport may still be writing the one before.
    Errors: ArithmeticRefusalError for a row that is no distribution or gives its token no ticket.
    """
    policy = step.policy
    reply = Reply(
        session=step.session,
        slot=step.slot,
        layout=policy.layout,
        generation=step.generation,
        round=step.round,
        first_position=step.first_position,
        prefix_digest=step.prefix_digest,
        context_version=step.context_version,
        shard_index=0,
        shard_count=1,
        shard_begin=0,
        shard_end=agreed.vocab_size,
        support=agreed.vocab_size if policy.layout is Layout.DENSE else policy.support,
        rows=encode_reply_rows(
            [row for _, row in drafted],
            [token for token, _ in drafted],
            step.first_position,
            policy.layout,
            policy.support,
        ),
    )
    frame = encode_frame(agreed.version, MessageType.REPLY, *encode(reply))
    size = reply_bytes(policy.layout, agreed.vocab_size, policy.depth, policy.support)
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
        first_position=step.first_position,
        prefix_digest=step.prefix_digest,
        context_version=step.context_version,
        reply_bytes=size,
        reply_checksum=checksum,
    )
    return encode_frame(agreed.version, MessageType.COMPLETE, *encode(complete))
