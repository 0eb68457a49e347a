"""Draw proposals: K sequential draws a session, batched over sessions, one q a token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeAlias

from draftwire.drafter.engine import Context, DraftEngine
from draftwire.errors import ArithmeticRefusalError
from draftwire.exact.words import Address, Domain, ProposalWords, WordSource
from draftwire.kernels import cpu
from draftwire.kernels.rows import QRow
from draftwire.kernels.words import first_words
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Status

ProposalSource: TypeAlias = Callable[[int], WordSource]
"""From a proposal key to the words drawn under it; :class:`ProposalWords` but in tests."""


@dataclass(frozen=True, slots=True)
class DraftJob(Generic[Context]):
    """One session's part of a batch.

    context: holds all of the committed prefix but ``feed``, its last one or more tokens.
    """

    context: Context
    feed: Sequence[int]
    policy: ProposalPolicy
    proposal_key: int
    generation: int
    round: int
    first_position: int


@dataclass(slots=True)
class Draft:
    """A whole proposal: K tokens, and the K rows of counts that they were drawn from."""

    tokens: list[int] = field(default_factory=list)
    rows: list[QRow] = field(default_factory=list)


class Proposer(Protocol[Context]):
    """What :func:`propose` is."""

    def __call__(
        self,
        engine: DraftEngine[Context],
        jobs: Sequence[DraftJob[Context]],
        source: ProposalSource = ...,
    ) -> list[Draft | Status]:
        """Draw one proposal a job."""


def propose(
    engine: DraftEngine[Context],
    jobs: Sequence[DraftJob[Context]],
    source: ProposalSource = ProposalWords,
) -> list[Draft | Status]:
    """Draw one proposal a job: token i has exactly the law of row i, given the tokens before it.

    jobs: of different contexts. Each row is rounded to counts once, the token is drawn from those
    counts (A16), and those counts are what is returned. The last token of a proposal is drawn but
    not fed. A row that the arithmetic refuses ends its own job alone, with
    ``Status.REFUSED_ARITHMETIC``. Raises only what ``engine.extend`` raises.
    """
    drafts: list[Draft | Status] = [Draft() for _ in jobs]
    words = [_words(job, source) for job in jobs]
    feeds: dict[int, Sequence[int]] = {
        index: job.feed for index, job in enumerate(jobs) if job.policy.depth > 0
    }
    while feeds:
        logits = engine.extend([(jobs[index].context, feed) for index, feed in feeds.items()])
        remaining: dict[int, Sequence[int]] = {}
        for row, index in enumerate(feeds):
            job, draft = jobs[index], drafts[index]
            if isinstance(draft, Status):
                continue
            try:
                counts = cpu.quantise(logits[row], job.policy)
            except ArithmeticRefusalError:
                drafts[index] = Status.REFUSED_ARITHMETIC
                continue
            token = cpu.draw(counts, words[index][len(draft.tokens)])
            draft.tokens.append(token)
            draft.rows.append(counts)
            if len(draft.tokens) < job.policy.depth:
                remaining[index] = (token,)
        feeds = remaining
    return drafts


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
