"""A draft engine and proposals whose rows of q are prepared: no model's time is in them.

Words, draws, messages and audit are the real ones. Only the computing of the rows is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftwire.drafter.engine import DraftEngine
from draftwire.drafter.propose import DraftJob, ProposalSource
from draftwire.exact.words import ProposalWords
from draftwire.kernels import cpu
from draftwire.kernels.rows import QRow
from draftwire.kernels.words import first_words
from draftwire.session.proposal import Draft
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Adaptation, Layout, Status
from testing.toys.models import DRAFT_IDENTITY, HASH


@dataclass
class PreparedContext:
    """Counts tokens and holds nothing."""

    length: int = 0


class PreparedEngine:
    """A drafting engine that counts tokens and gives prepared rows, the first for the first job."""

    identity = DRAFT_IDENTITY
    tokenizer_hash = HASH
    id_map_hash = HASH
    adaptation = Adaptation.NATIVE

    def __init__(self, logits: NDArray[np.float32], max_context: int) -> None:
        """logits: binary32 (rows, V); of a batch, the n-th gets the n-th row, and then again."""
        self._rows = logits
        self.vocab_size = logits.shape[1]
        self.max_context = max_context

    def open(self) -> PreparedContext:
        """Return an empty context."""
        return PreparedContext()

    def close(self, context: PreparedContext) -> None:
        """Nothing to free."""

    def truncate(self, context: PreparedContext, length: int) -> None:
        """Count back."""
        context.length = length

    def forward(
        self, batch: Sequence[tuple[PreparedContext, Sequence[int]]]
    ) -> NDArray[np.float32]:
        """Count on, and return the prepared rows."""
        for context, tokens in batch:
            context.length += len(tokens)
        return np.resize(self._rows, (len(batch), self.vocab_size))


class PreparedProposals:
    """Draws every job's tokens from rows of counts that are there; stands in for ``propose``."""

    def __init__(
        self, logits: NDArray[np.float32], policies: Mapping[Layout, ProposalPolicy]
    ) -> None:
        """Quantise the rows of each layout once; logits: (rows, V), the depth or more of them."""
        self._rows: dict[Layout, list[QRow]] = {
            layout: [cpu.quantise(row, policy) for row in logits[: policy.depth]]
            for layout, policy in policies.items()
        }

    def __call__(
        self,
        engine: DraftEngine[PreparedContext],
        jobs: Sequence[DraftJob[PreparedContext]],
        source: ProposalSource = ProposalWords,
    ) -> list[Draft | Status]:
        """Draw with the real words, which the verifier audits."""
        drafts: list[Draft | Status] = []
        for job in jobs:
            depth = job.policy.depth
            rows = self._rows[job.policy.layout][:depth]
            words = first_words(
                job.proposal_key, job.generation, job.round, job.first_position, depth
            )
            tokens = [cpu.draw(row, word) for row, word in zip(rows, words, strict=True)]
            drafts.append(Draft(tokens, rows))
            job.context.length += len(job.new_tokens) + depth - 1
        return drafts
