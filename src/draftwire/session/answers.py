"""The frames that answer a STEP: REPLY and COMPLETE, or COMPLETE alone (P11, P12)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from draftwire.kernels.rows import QRow, SparseRows
from draftwire.kernels.shards.shard import Shard
from draftwire.rows.answers import write_answer
from draftwire.rows.payload import encode_reply_rows
from draftwire.rows.shards import ShardDraft, encode_shard_rows
from draftwire.session.proposal import Parts
from draftwire.wire.agreement import Agreed, q_bytes, reply_bytes
from draftwire.wire.answer import Part, complete, laid_out, reply_head
from draftwire.wire.codec import encode_rows
from draftwire.wire.frames import encode_frame, frame_checksum
from draftwire.wire.messages import ProposalPolicy, ReplyRow, Step
from draftwire.wire.registry import Layout, MessageType, Status

_SPARSE: Final = Layout.SPARSE


@dataclass(slots=True)
class Draft:
    """A whole proposal: K tokens, and the K rows of counts that they were drawn from."""

    tokens: list[int] = field(default_factory=list)
    rows: list[QRow] | SparseRows = field(default_factory=list)

    @classmethod
    def under(cls, policy: ProposalPolicy, vocab_size: int) -> Draft:
        """Return one without tokens yet, whose rows will lie as its answer takes them fastest."""
        if policy.layout is not Layout.SPARSE:
            return cls()
        return cls([], SparseRows.room(vocab_size, policy.depth, policy.support))


def whole(step: Step, drafted: Draft | ShardDraft, agreed: Agreed) -> Parts:
    """Return REPLY and COMPLETE for K drafts with their q's, or with one shard of them.

    The q bytes lie in new memory for every reply: a transport may still be writing the one before.
    Errors: ArithmeticRefusalError for a row that is no distribution or gives its token no ticket.
    """
    policy, first = step.policy, step.anchor + 1
    if policy.layout is _SPARSE and isinstance(drafted, Draft):
        frames = laid_out(step, agreed.vocab_size, drafted.tokens)
        if frames is not None and write_answer(drafted.rows, first, policy.support, frames):
            return [memoryview(frames)]
    if isinstance(drafted, ShardDraft):
        shard = drafted.shard
        rows: Sequence[ReplyRow] = encode_shard_rows(drafted, first, policy.layout, policy.support)
    else:
        shard = Shard(agreed.vocab_size, 0, agreed.vocab_size)
        rows = encode_reply_rows(drafted.rows, drafted.tokens, first, policy.layout, policy.support)
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
