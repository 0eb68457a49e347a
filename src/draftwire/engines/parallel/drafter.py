"""A drafter over ranks: one q a position, drawn once by the leader, before the next row (A25-A28).

The leader runs the ordinary drafter program with :class:`RankedDraftEngine` and :func:`propose`;
every other rank runs :func:`follow_drafting`. The wire sees one drafter with one q. With
:func:`propose_shards` instead every rank answers on a link of its own (P29): what the leader drew
comes to the links of the others through a :class:`Mailbox`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from draftwire.drafter.engine import DraftEngine
from draftwire.drafter.propose import DraftJob, ProposalSource, without_model
from draftwire.engines.hf.rope import ModelSequence
from draftwire.engines.parallel.columns import ModelColumns
from draftwire.engines.parallel.commands import (
    POLICY_NUMBERS,
    Command,
    numbers_of,
    packed,
    policy_of,
    receive_command,
    send_command,
    signed,
    unpacked,
    unsigned,
)
from draftwire.errors import ConfigurationError
from draftwire.exact.words import Address, Domain, ProposalWords, link_key
from draftwire.kernels.rows import QRow
from draftwire.kernels.shards import shard as shards
from draftwire.kernels.shards.quantise import draw, quantise
from draftwire.kernels.shards.shard import OK, Collective, Integers, Shard, ShardRows, Steps, drive
from draftwire.rows.shards import ShardDraft
from draftwire.session.proposal import Draft
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TOTAL, Adaptation, Layout, Status

_JOB_FIELDS: Final = 6 + POLICY_NUMBERS  # numbers of a job, before the new tokens


@dataclass(slots=True)
class RankedContext:
    """One session's sequence on the leader; the others hold one under the same number."""

    number: int
    sequence: ModelSequence

    @property
    def length(self) -> int:
        """Tokens that it holds the state of."""
        return self.sequence.length


@dataclass(frozen=True, slots=True)
class RankedJob:
    """A job as every rank knows it; the words stay with the leader.

    number: of the leader's context, which is one session of one connection. session, generation,
    round: what the STEP that asked for it names, on every rank's link. link_key: what proves on the
    other links that it is the same verifier's (P29).
    """

    number: int
    session: int
    link_key: int
    generation: int
    round: int
    policy: ProposalPolicy
    new_tokens: tuple[int, ...]


@dataclass(slots=True)
class RankedDraft:
    """What a rank has of a proposal: the tokens, and its own columns of every q."""

    tokens: list[int]
    rows: list[NDArray[np.int32]]
    status: int = OK


class Mailbox(Protocol):
    """Where a rank puts its shards for the links that answer with them."""

    def put(self, job: RankedJob, draft: ShardDraft | Status) -> None:
        """A proposal has been drawn; or why there is none."""

    def end(self, number: int) -> None:
        """The session of this context is over."""


class RankedDraftEngine:
    """The leader's engine: whatever it does to a context, every rank does to its own.

    Implements :class:`draftwire.drafter.engine.DraftEngine`. A rank that fails ends the group: the
    leader then declines every proposal, and the verifier goes on with its target alone.
    """

    adaptation = Adaptation.NATIVE

    def __init__(self, group: Collective, columns: ModelColumns) -> None:
        """Lead a group whose other ranks follow. Raises ConfigurationError on any other rank."""
        if group.rank != shards.LEADER:
            raise ConfigurationError(f"rank {group.rank} follows, it does not lead")
        self.group = group
        self.columns = columns
        self.vocab_size = columns.vocab_size
        self.max_context = columns.max_context
        self.identity = columns.identity
        self.tokenizer_hash = columns.tokenizer_hash
        self.id_map_hash = columns.id_map_hash
        self.sequences: dict[int, ModelSequence] = {}
        self._opened = 0

    def open(self) -> RankedContext:
        """A new context on every rank."""
        self._opened += 1
        send_command(self.group, Command.OPEN, [self._opened])
        self.sequences[self._opened] = self.columns.sequence()
        return RankedContext(self._opened, self.sequences[self._opened])

    def close(self, context: RankedContext) -> None:
        """Free it on every rank."""
        self.sequences.pop(context.number, None)
        send_command(self.group, Command.CLOSE, [context.number])

    def truncate(self, context: RankedContext, length: int) -> None:
        """Keep the state of the first ``length`` tokens, on every rank."""
        if context.length != length:
            send_command(self.group, Command.TRUNCATE, [context.number, length])
            context.sequence.truncate(length)

    def forward(self, batch: Sequence[tuple[RankedContext, Sequence[int]]]) -> NDArray[np.float32]:
        """Refused: no rank has whole rows. Proposals are made by :func:`propose`."""
        raise ConfigurationError("the rows of a sharded drafter lie on its ranks: use its propose")

    def stop(self) -> None:
        """Let the other ranks end."""
        send_command(self.group, Command.STOP)


def propose(
    engine: DraftEngine[RankedContext],
    jobs: Sequence[DraftJob[RankedContext]],
    source: ProposalSource = ProposalWords,
) -> list[Draft | Status]:
    """Draw one proposal a job over all ranks; a ``Proposer`` for the leader's program.

    Token i has exactly the law of row i, given the tokens before it. The q's of the others' columns
    are gathered here once, at the end, because the wire wants them from one drafter. Raises
    TransportError when a rank is gone.
    """
    if not isinstance(engine, RankedDraftEngine):
        raise ConfigurationError("proposals over ranks need a RankedDraftEngine")
    words = [[_word(job, source, offset) for offset in range(job.policy.depth)] for job in jobs]
    drafts = _led(engine, jobs, Command.PROPOSE, words)
    whole = [drive(engine.group, _collected(engine.columns, draft)) for draft in drafts]
    return [proposal_of(engine.vocab_size, *each) for each in zip(jobs, drafts, whole, strict=True)]


def propose_shards(
    engine: DraftEngine[RankedContext],
    jobs: Sequence[DraftJob[RankedContext]],
    source: ProposalSource = ProposalWords,
) -> list[ShardDraft | Status]:
    """Draw one proposal a job over all ranks; each rank keeps its own columns of the q's (P29).

    Law and errors as for :func:`propose`; nothing is gathered.
    """
    if not isinstance(engine, RankedDraftEngine):
        raise ConfigurationError("proposals over ranks need a RankedDraftEngine")
    words = [[_word(job, source, offset) for offset in range(job.policy.depth)] for job in jobs]
    drafts = _led(engine, jobs, Command.PROPOSE_SHARDS, words)
    return [
        _own_shard(engine.columns.shard, job.policy, draft)
        for job, draft in zip(jobs, drafts, strict=True)
    ]


def _led(
    engine: RankedDraftEngine,
    jobs: Sequence[DraftJob[RankedContext]],
    command: Command,
    words: list[list[int]],
) -> list[RankedDraft]:
    """Have every rank draw the jobs, this one included."""
    ranked = [
        RankedJob(
            job.context.number,
            job.session,
            link_key(job.proposal_key),
            job.generation,
            job.round,
            job.policy,
            tuple(job.new_tokens),
        )
        for job in jobs
    ]
    send_command(engine.group, command, _encoded(ranked))
    return drive(engine.group, _propose(engine.columns, engine.sequences, ranked, words))


def _own_shard(shard: Shard, policy: ProposalPolicy, draft: RankedDraft) -> ShardDraft | Status:
    """One rank's shard of a proposal; the row after a refusal is that of :func:`without_model`."""
    if draft.status != OK and not draft.tokens:
        return Status.REFUSED_ARITHMETIC
    left = policy.depth - len(draft.tokens)
    counts = np.zeros((policy.depth, shard.width), np.int32)
    for own, row in zip(counts, draft.rows, strict=False):
        own[:] = row
    if left and shard.owns(0):
        counts[-left:, 0] = TOTAL
    return ShardDraft(shard, (*draft.tokens, *[0] * left), counts)


def proposal_of(
    vocab_size: int,
    job: DraftJob[RankedContext],
    ranked: RankedDraft,
    rows: NDArray[np.int32],
) -> Draft | Status:
    """One job's proposal; a row that was refused after a draw does not decline it (P11, law 4)."""
    draft = Draft(ranked.tokens, [_row(row, vocab_size, job.policy.layout) for row in rows])
    return draft if ranked.status == OK else without_model(draft, job.policy, vocab_size)


def follow_drafting(
    group: Collective, columns: ModelColumns, mailbox: Mailbox | None = None
) -> None:
    """Any other rank of a drafter: do what the leader says until it says stop.

    mailbox: gets this rank's shards, where the ranks answer on links of their own. Raises
    TransportError when a rank is gone.
    """
    sequences: dict[int, ModelSequence] = {}
    while True:
        command, numbers = receive_command(group)
        if command is Command.STOP:
            return
        if command is Command.OPEN:
            sequences[int(numbers[0])] = columns.sequence()
        elif command is Command.CLOSE:
            sequences.pop(int(numbers[0]), None)
            if mailbox is not None:
                mailbox.end(int(numbers[0]))
        elif command is Command.TRUNCATE:
            sequences[int(numbers[0])].truncate(int(numbers[1]))
        elif command is Command.PROPOSE:
            jobs = _decoded(numbers.tolist())
            for draft in drive(group, _propose(columns, sequences, jobs, None)):
                drive(group, _collected(columns, draft))
        elif command is Command.PROPOSE_SHARDS:
            jobs = _decoded(numbers.tolist())
            drafts = drive(group, _propose(columns, sequences, jobs, None))
            for job, draft in zip(jobs, drafts, strict=True):
                if mailbox is not None and job.policy.depth:
                    mailbox.put(job, _own_shard(columns.shard, job.policy, draft))


def _propose(
    columns: ModelColumns,
    sequences: dict[int, ModelSequence],
    jobs: Sequence[RankedJob],
    words: list[list[int]] | None,
) -> Steps[list[RankedDraft]]:
    """K rows a job, one after another: forward, quantise, draw, and only then the next row.

    A job of depth 0 is a chunk of a longer prefill: nothing is drawn.
    """
    drafts = [RankedDraft([], []) for _ in jobs]
    for index, (job, draft) in enumerate(zip(jobs, drafts, strict=True)):
        new_tokens: tuple[int, ...] = job.new_tokens
        if not job.policy.depth:
            sequences[job.number].forward(new_tokens)
        for offset in range(job.policy.depth):
            logits = columns.logits(sequences[job.number], new_tokens)
            rows: ShardRows = yield from quantise(columns.shard, logits, job.policy)
            word = None if words is None else np.array([words[index][offset]], np.int64)
            token = int((yield from draw(rows, word))[0])
            draft.status = int(rows.status[0])
            if draft.status != OK:
                break
            draft.tokens.append(token)
            draft.rows.append(rows.counts[0])
            new_tokens = (token,)
    return drafts


def _collected(columns: ModelColumns, draft: RankedDraft) -> Steps[NDArray[np.int32]]:
    """The counts of every position over the whole vocabulary, (K, V), from all ranks."""
    shard = columns.shard
    widest = -(-shard.vocab_size // shard.size)
    own = np.zeros((len(draft.rows), widest), np.int32)
    for row, counts in zip(own, draft.rows, strict=True):
        row[: shard.width] = counts
    parts = yield from shards.gather(packed(own))
    widths = [each.width for each in shards.even_shards(shard.vocab_size, shard.size)]
    cut = [unpacked(part, own.shape)[:, :width] for part, width in zip(parts, widths, strict=True)]
    return np.concatenate(cut, axis=1)


def _row(counts: NDArray[np.int32], vocab_size: int, layout: Layout) -> QRow:
    if layout is Layout.DENSE:
        return QRow(vocab_size, None, np.ascontiguousarray(counts))
    ids = np.flatnonzero(counts)
    return QRow(vocab_size, ids.astype(np.int32), counts[ids])


def _word(job: DraftJob[RankedContext], source: ProposalSource, offset: int) -> int:
    position = job.first_position + offset
    address = Address(job.generation, job.round, position, Domain.PROPOSAL)
    return next(iter(source(job.proposal_key).words(address)))


def _encoded(jobs: Sequence[RankedJob]) -> Integers:
    numbers: list[int] = [len(jobs)]
    for job in jobs:
        numbers += [job.number, signed(job.session), signed(job.link_key)]
        numbers += [job.generation, job.round]
        numbers += [*numbers_of(job.policy), len(job.new_tokens), *job.new_tokens]
    return np.array(numbers, np.int64)


def _decoded(numbers: list[int]) -> list[RankedJob]:
    jobs, at = [], 1
    for _ in range(numbers[0]):
        number, session, key, generation, round_, *policy, fed = numbers[at : at + _JOB_FIELDS]
        at += _JOB_FIELDS
        new_tokens = tuple(numbers[at : at + fed])
        names = number, unsigned(session), unsigned(key), generation, round_
        jobs.append(RankedJob(*names, policy_of(policy), new_tokens))
        at += fed
    return jobs
