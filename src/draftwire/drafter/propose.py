"""Draw proposals: K sequential draws a session, batched over sessions, one q a token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeAlias

import numpy as np

from draftwire.drafter.early_stop import StopRule
from draftwire.drafter.engine import Context, DraftEngine
from draftwire.drafter.mirror import Mirror
from draftwire.errors import ArithmeticRefusalError
from draftwire.exact.words import Address, Domain, ProposalWords, WordSource
from draftwire.kernels.adjustments import Adjustment
from draftwire.kernels.prepare import prepare_kernels
from draftwire.kernels.protocol import NO_TOKEN
from draftwire.kernels.registry import kernels_for
from draftwire.kernels.rows import QRow
from draftwire.kernels.words import first_words
from draftwire.rows.shards import ShardDraft
from draftwire.session.proposal import Draft
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TOTAL, Layout, LayoutSet, Status

ProposalSource: TypeAlias = Callable[[int], WordSource]
"""From a proposal key to the random words drawn under it; :class:`ProposalWords` but in tests."""


@dataclass(frozen=True, slots=True)
class DraftJob(Generic[Context]):
    """One session's part of a batch.

    context: holds all of the committed prefix but ``new_tokens``, its last one or more. A policy of
    depth 0 draws nothing: ``new_tokens`` are a chunk of a prefill then, and more is to follow.
    session: as the verifier names it on its connection. stop: decides how many drafts are admitted;
    None = all that the policy asks for. mirror: the policy's processors at the end of the prefix;
    None = it has none, or they are not followed.
    """

    context: Context
    new_tokens: Sequence[int]
    policy: ProposalPolicy
    proposal_key: int
    generation: int
    round: int
    first_position: int
    session: int = 0
    stop: StopRule | None = None
    mirror: Mirror | None = None


class Proposer(Protocol[Context]):
    """What :func:`propose` is; where ranks answer together, each has its shard of a proposal."""

    def __call__(
        self,
        engine: DraftEngine[Context],
        jobs: Sequence[DraftJob[Context]],
        source: ProposalSource = ...,
    ) -> Sequence[Draft | ShardDraft | Status]:
        """Draw one proposal a job."""


@dataclass(slots=True)
class _Drawing(Generic[Context]):
    """A job on its way. new_tokens: what is fed next; none, once it is done. result: so far."""

    job: DraftJob[Context]
    uniform24: Sequence[int]
    new_tokens: Sequence[int]
    draft: Draft
    refused: bool = False

    def adjustments(self) -> Sequence[Adjustment]:
        """What the processors do to the next row."""
        return () if self.job.mirror is None else self.job.mirror.adjustments()

    def take(self, token: int, q: QRow) -> None:
        """Go on from a row: the token drawn and its q, or NO_TOKEN where the row is refused."""
        if token == NO_TOKEN:
            self.refused = isinstance(
                without_model(self.draft, self.job.policy, q.vocab_size), Status
            )
            return
        stop = self.job.stop
        admitted = stop is None or stop.admits(confidence(q))
        if admitted:
            self.draft.tokens.append(token)
            self.draft.rows.append(q)
        left = self.job.policy.depth - len(self.draft.tokens)
        if left and admitted and (stop is None or stop.goes_on()):
            self.new_tokens = (token,)
            if self.job.mirror is not None:
                self.job.mirror.draft(token)
        elif left:
            self.draft.admitted = len(self.draft.tokens)
            fill(self.draft, self.job.policy, q.vocab_size)


def propose(
    engine: DraftEngine[Context],
    jobs: Sequence[DraftJob[Context]],
    source: ProposalSource = ProposalWords,
    *,
    kernels: str = "auto",
) -> list[Draft | Status]:
    """Draw one proposal a job: token i has exactly the law of row i, given the tokens before it.

    jobs: of different contexts; those of depth 0 are fed and no more. Each row, after the job's
    processors, is rounded to counts once, the token is drawn from those counts (A16), and those
    counts are what is returned. The last token of a proposal is drawn but not fed. A position of
    all jobs is one pass of the model and, for each policy, one call of the kernels where the logits
    lie; tokens and counts alone come to the host. A first row that the arithmetic refuses ends its
    own job alone, with ``Status.REFUSED_ARITHMETIC``; after a later one the proposal goes on with a
    q of its own (P11).
    A job's ``stop`` sees the q of each row before its token is used: one that is not admitted ends
    the proposal, whose rows from there on have no draft (P35).
    kernels: a choice of :func:`draftwire.kernels.registry.kernels_for`.
    Raises what ``engine.forward`` raises, and ConfigurationError for kernels that are not there.
    """
    drawings = [_Drawing(job, _uniform24(job, source), job.new_tokens, Draft()) for job in jobs]
    while active := [each for each in drawings if each.new_tokens]:
        logits = engine.forward([(each.job.context, each.new_tokens) for each in active])
        for each in active:
            each.new_tokens = ()
        for policy, rows in _by_policy(active).items():
            uniform24 = [active[row].uniform24[len(active[row].draft.tokens)] for row in rows]
            own = logits if len(rows) == len(active) else logits[rows]
            adjustments = [active[row].adjustments() for row in rows]
            drawn = _drawn(kernels, own, policy, adjustments, uniform24)
            for row, (token, q) in zip(rows, drawn, strict=True):
                active[row].take(token, q)
    return [Status.REFUSED_ARITHMETIC if each.refused else each.draft for each in drawings]


def warm_up(engine: DraftEngine[Context], kernels: str, layouts: LayoutSet, support: int) -> None:
    """Run the model over one token, and the kernels of where its logits lie over rows like them.

    Raises what ``engine.forward`` raises, and ConfigurationError for kernels that are not there.
    """
    context = engine.open()
    try:
        logits = engine.forward([(context, (0,))])
    finally:
        engine.close(context)
    device = str(getattr(logits, "device", "cpu"))
    prepare_kernels(kernels, device, layouts, support, logits.shape[1])


def without_model(draft: Draft, policy: ProposalPolicy, vocab_size: int) -> Draft | Status:
    """Return what becomes of a draft whose next row the arithmetic refuses.

    Before the first draw it is declined. After one the refusal may follow from what was drawn, and
    to decline then would choose between texts (law 4); so every row that is left has all its
    counts on id 0, which is a q that depends on the prefix alone like any other.
    """
    if not draft.tokens:
        return Status.REFUSED_ARITHMETIC
    fill(draft, policy, vocab_size)
    return draft


def confidence(q: QRow) -> float:
    """Return the largest probability of a q: what its draw is likely to be worth, before it."""
    return float(q.counts.max()) / TOTAL


def fill(draft: Draft, policy: ProposalPolicy, vocab_size: int) -> None:
    """Lengthen a draft to the policy's depth by rows that have all their counts on id 0."""
    ids, counts = np.zeros(1, np.int32), np.full(1, TOTAL, np.int32)
    point = QRow(vocab_size, ids, counts)
    if policy.layout is Layout.DENSE:
        point = QRow(vocab_size, None, np.zeros(vocab_size, np.int32))
        point.counts[0] = TOTAL
    while len(draft.tokens) < policy.depth:
        draft.tokens.append(0)
        draft.rows.append(point)


def _by_policy(active: Sequence[_Drawing[Context]]) -> dict[ProposalPolicy, list[int]]:
    """The rows that each policy, whatever its depth and processors, holds for.

    A chunk of a prefill is in none.
    """
    rows: dict[ProposalPolicy, list[int]] = {}
    for row, each in enumerate(active):
        policy = each.job.policy
        if policy.depth:
            rows.setdefault(replace(policy, depth=1, processors=b""), []).append(row)
    return rows


def _drawn(
    choice: str,
    logits: Any,
    policy: ProposalPolicy,
    adjustments: Sequence[Sequence[Adjustment]],
    uniform24: Sequence[int],
) -> list[tuple[int, QRow]]:
    """The token of each row, NO_TOKEN where it is refused, and the q that it was drawn from."""
    kernels = kernels_for(choice, logits)
    try:
        if any(adjustments):
            logits = kernels.adjust(logits, adjustments)
        q, _ = kernels.quantise(logits, policy)
    except ArithmeticRefusalError:  # the policy or the logits as a whole
        size = logits.shape[1]
        return [(NO_TOKEN, QRow(size, None, np.zeros(size, np.int32)))] * len(uniform24)
    tokens = kernels.draw(q, np.array(uniform24, np.int64)).tolist()
    return list(zip(tokens, kernels.host_rows(q), strict=True))


def _uniform24(job: DraftJob[Context], source: ProposalSource) -> Sequence[int]:
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
