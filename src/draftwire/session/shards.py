"""A link that carries one vocabulary shard of every reply (P19, P29).

Each verifier rank has a link to one drafter rank. Its session asks, checks and commits as any
other; what it receives is one shard, and no proposal until all ranks have settled that it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from draftwire.kernels.rows import Lease
from draftwire.kernels.shards.shard import Shard
from draftwire.rows.shards import ShardDraft, decode_shard_rows
from draftwire.session.pending_round import PendingRound
from draftwire.session.proposal import Proposal, Received
from draftwire.wire.messages import Reply

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ShardProposal(Proposal):
    """One shard of a proposal: whole as far as it can say; ``rows`` is empty.

    It may be used only after ``rows.shards.settle``, which audits it too.
    """

    draft: ShardDraft = field(kw_only=True)


@dataclass(slots=True)
class PendingShardRound(PendingRound):
    """One asked round on a link that carries ``part`` of the vocabulary."""

    part: Shard = field(kw_only=True)
    draft: ShardDraft | None = field(default=None, kw_only=True)

    @property
    def shard(self) -> Shard:
        """What part of the vocabulary the reply has to hold."""
        return self.part

    def hold(
        self,
        reply: Reply,
        received: Received,
        out: NDArray[np.int32] | None = None,
        lease: Lease | None = None,
    ) -> None:
        """Take this shard's columns of a REPLY into memory of their own; no slot's is used."""
        self.check_shape(reply, received.payload_bytes)
        self.draft = decode_shard_rows(reply, self.part)
        self.tokens = self.draft.tokens
        self.payload_bytes, self.checksum = received.payload_bytes, received.checksum

    def audit(self) -> int:
        """Nothing: one shard does not say what a word draws; the settling audits."""
        return 0

    def proposal(self) -> ShardProposal:
        """Return what this rank has; call it when everything else holds."""
        step, draft = self.step, self.draft
        assert draft is not None
        return ShardProposal(
            self.tokens, (), step.generation, step.round, step.first_position, draft=draft
        )
