"""Draw proposals: K sequential draws a session, batched over sessions, one q a token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias

import numpy as np

from draftwire.drafter.engine import Context, DraftEngine
from draftwire.errors import ArithmeticRefusalError
from draftwire.exact.words import Address, Domain, ProposalWords, WordSource
from draftwire.kernels import cpu
from draftwire.kernels.words import first_words
from draftwire.rows.shards import ShardDraft
from draftwire.session.proposal import Draft
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Status

ProposalSource: TypeAlias = Callable[[int], WordSource]
"""From a proposal key to the words drawn under it; :class:`ProposalWords` but in tests."""


@dataclass(frozen=True, slots=True)
class DraftJob(Generic[Context]):
    """One session's part of a batch.

    context: holds all of the committed prefix but ``feed``, its last one or more tokens. A policy
    of depth 0 draws nothing: ``feed`` is a piece then, and more is to follow. session: as the
    verifier names it on its connection.
    """

    context: Context
    feed: Sequence[int]
    policy: ProposalPolicy
    proposal_key: int
    generation: int
    round: int
    first_position: int
    session: int = 0


class Proposer(Protocol[Context]):
    """What :func:`propose` is; where ranks answer together, each has its shard of a proposal."""

    def __call__(
        self,
        engine: DraftEngine[Context],
        jobs: Sequence[DraftJob[Context]],
        source: ProposalSource = ...,
    ) -> Sequence[Draft | ShardDraft | Status]:
        """Draw one proposal a job."""


def propose(
    engine: DraftEngine[Context],
    jobs: Sequence[DraftJob[Context]],
    source: ProposalSource = ProposalWords,
) -> list[Draft | Status]:
    """Draw one proposal a job: token i has exactly the law of row i, given the tokens before it.

    jobs: of different contexts; those of depth 0 are fed and no more. Each row is rounded to counts
    once, the token is drawn from those counts (A16), and those counts are what is returned. The
    last token of a proposal is drawn but not fed. A first row that the arithmetic refuses ends its
    own job alone, with ``Status.REFUSED_ARITHMETIC``; after a later one the proposal goes on with a
    q of its own (P11).
    Raises only what ``engine.forward`` raises.
    """
    drafts: list[Draft | Status] = [Draft() for _ in jobs]
    words = [_words(job, source) for job in jobs]
    feeds: dict[int, Sequence[int]] = {index: job.feed for index, job in enumerate(jobs)}
    while feeds:
        logits = engine.forward([(jobs[index].context, feed) for index, feed in feeds.items()])
        remaining: dict[int, Sequence[int]] = {}
        for row, index in enumerate(feeds):
            job, draft = jobs[index], drafts[index]
            if isinstance(draft, Status) or not job.policy.depth:
                continue
            try:
                counts = cpu.quantise(logits[row], job.policy)
            except ArithmeticRefusalError:
                drafts[index] = without_model(draft, job, logits.shape[1], words[index])
                continue
            token = cpu.draw(counts, words[index][len(draft.tokens)])
            draft.tokens.append(token)
            draft.rows.append(counts)
            if len(draft.tokens) < job.policy.depth:
                remaining[index] = (token,)
        feeds = remaining
    return drafts


def without_model(
    draft: Draft, job: DraftJob[Context], vocab_size: int, words: Sequence[int]
) -> Draft | Status:
    """Return what becomes of a job whose next row the arithmetic refuses.

    Before the first draw it is declined. After one the refusal may follow from what was drawn, and
    to decline then would choose between texts (law 4); so every row that is left has all its
    tickets on id 0, which is a q that depends on the prefix alone like any other.
    """
    if not draft.tokens:
        return Status.REFUSED_ARITHMETIC
    point = np.full(vocab_size, -np.inf, dtype=np.float32)
    point[0] = 0.0
    counts = cpu.quantise(point, job.policy)
    for word in words[len(draft.tokens) : job.policy.depth]:
        draft.tokens.append(cpu.draw(counts, word))
        draft.rows.append(counts)
    return draft


def _words(job: DraftJob[Context], source: ProposalSource) -> Sequence[int]:
    """Return the first word of each position of a job."""
    generation, round_, first = job.generation, job.round, job.first_position
    depth = job.policy.depth
    if source is ProposalWords:
        return first_words(job.proposal_key, generation, round_, first, depth)
    words = source(job.proposal_key)
    addresses = [
        Address(generation, round_, position, Domain.PROPOSAL)
        for position in range(first, first + depth)
    ]
    return [next(words.words(address)) for address in addresses]
