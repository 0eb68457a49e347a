"""A target over ranks: the leader owns the deadline, acceptance and fallback of every round (A29).

The leader runs :class:`RankedGeneration` over an ordinary drafter connection; every other rank runs
:func:`follow_verifying`. The leader alone hears from the drafter and from its clock, so whether a
round has a proposal is one decision; q goes to the other ranks only once it is whole and validated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from draftwire.engines.hf.processors import RowProcessors
from draftwire.engines.parallel.columns import ModelColumns
from draftwire.engines.parallel.commands import (
    LINK_COMMANDS,
    Command,
    DivergedError,
    numbers_of_rows,
    receive_command,
    rows_of_numbers,
    send_command,
)
from draftwire.engines.parallel.links import EVERY, LinkedRequest, LinkFollower, RankLinks
from draftwire.engines.parallel.scores import (
    OPEN_NUMBERS,
    RankedRequest,
    open_numbers,
    opened,
    score,
)
from draftwire.errors import ConfigurationError
from draftwire.exact.words import WordSource
from draftwire.kernels.protocol import Round, Verdict
from draftwire.kernels.registry import kernels_for
from draftwire.kernels.rows import QRow
from draftwire.kernels.shards import shard as shards
from draftwire.kernels.shards.requests import verify_owned
from draftwire.kernels.shards.shard import Integers, PointToPoint, Shard, Steps, drive
from draftwire.kernels.shards.verify import Place, Rounds, ShardVerdicts, verify
from draftwire.rows.shards import ShardDraft
from draftwire.session.proposal import Proposal
from draftwire.session.shards import ShardProposal
from draftwire.text.detokenizer import Decode
from draftwire.verifier.context import object_settings
from draftwire.verifier.drafter import Drafter, DraftRequest
from draftwire.verifier.emission import Emission
from draftwire.verifier.generate import Generation
from draftwire.verifier.judge import Judgement, decide, judgement
from draftwire.verifier.parallelism import Parallelism
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy

Proposed: TypeAlias = Sequence[QRow] | Proposal | ShardProposal | ShardDraft | None
"""What a rank has of the q's of a round's drafts: all of each, or its own columns."""


class RankedTargetEngine:
    """The leader's target: it scores its own columns, and has every rank score theirs.

    Implements :class:`draftwire.verifier.engine.TargetEngine`; use it with
    :class:`RankedGeneration`. parallelism: who judges a request. Vocabulary-sharded, every rank has
    its columns, and processors other than penalties, temperature, top-k, top-p and min-p are
    refused; request-sharded, one rank has whole rows, and any processor will do.
    """

    def __init__(
        self,
        group: PointToPoint,
        columns: ModelColumns,
        parallelism: Parallelism = Parallelism.VOCABULARY,
        kernels: str = "auto",
    ) -> None:
        """Lead a group whose other ranks follow. Raises ConfigurationError on any other rank.

        kernels: what judges a request that this rank owns alone; shards have their own arithmetic.
        """
        if group.rank != shards.LEADER:
            raise ConfigurationError(f"rank {group.rank} follows, it does not lead")
        self.group = group
        self.columns = columns
        self.parallelism = parallelism
        self.kernels = kernels
        self.vocab_size = columns.vocab_size
        self.max_context = columns.max_context
        self.identity = columns.identity
        self.tokenizer_hash = columns.tokenizer_hash
        self.id_map_hash = columns.id_map_hash
        self.end_tokens = columns.end_tokens
        self._opened = 0

    def open(self, prompt: Sequence[int], sampling: Sampling) -> RankedRequest:
        """Begin a request on every rank. Raises ConfigurationError."""
        number, numbers = self._opened + 1, open_numbers(sampling, self.parallelism)
        request = opened(self.columns, number, numbers, prompt)  # first: it may refuse
        self._opened = number
        send_command(self.group, Command.OPEN, [number, *numbers, *prompt])
        return request

    def settings(self, context: RankedRequest) -> bytes:
        """Return what the request's processors are and how they are set now, on the leader."""
        processors = context.processors
        if isinstance(processors, RowProcessors):
            return processors.settings()
        return object_settings(*processors)

    def score(self, context: RankedRequest, committed: Sequence[int], drafts: Sequence[int]) -> Any:
        """What the leader has of p at K + 1 positions; the other ranks keep theirs.

        Returns binary64 (K + 1, n), its columns, on one scale over all ranks; the scores of a
        request that it owns alone; or no columns.
        """
        base = len(context.committed)
        tail = list(committed[base:])
        send_command(self.group, Command.SCORE, [context.number, base, len(tail), *tail, *drafts])
        context.committed += tail
        context.pending = []
        return drive(self.group, score(self.columns, context, drafts))

    def judge(
        self,
        context: RankedRequest,
        rows: Any,
        proposal: Proposal | None,
        place: Place,
        source: WordSource,
        link: int = 0,
    ) -> Verdict:
        """Decide a round on every rank at once; without a proposal one token is drawn from p.

        link: the number that the ranks know the request's links by, where there are such; each
        rank then has what it needs of the proposal, and no q crosses between them.
        """
        tokens = () if proposal is None else proposal.tokens
        depth = len(tokens)
        where = [place.generation, place.round, place.first_position]
        head = [context.number, *where, depth, link]
        said = np.empty(0, np.int64)
        if isinstance(proposal, Proposal) and not link:
            said = numbers_of_rows(proposal.rows)
        alone = context.parallelism is Parallelism.REQUESTS
        numbers = np.array([*head, said.size, *tokens], np.int64)
        if alone:  # no rank but its owner has a use for the q's
            send_command(self.group, Command.VERIFY, numbers)
            if said.size and context.owner != shards.LEADER:
                self.group.send(said, context.owner)
        else:
            send_command(self.group, Command.VERIFY, np.concatenate([numbers, said]))
        shard = self.columns.shard
        steps = _judge(shard, context, rows, tokens, proposal, place, source, self.kernels)
        return drive(self.group, steps).verdict(0)

    def close(self, context: RankedRequest) -> None:
        """Free the request on every rank, and tell what of the last round its text ends with."""
        base = len(context.committed)
        send_command(self.group, Command.CLOSE, [context.number, base, *context.pending])
        context.committed += context.pending
        context.sequence.truncate(0)

    def stop(self) -> None:
        """Let the other ranks end."""
        send_command(self.group, Command.STOP)


class RankedGeneration(Generation[RankedRequest]):
    """The round loop over ranks: everything but the judging is the ordinary loop, on the leader.

    target: a :class:`RankedTargetEngine`. Links of ranks bring shards to a vocabulary-sharded one,
    and whole q's to a request-sharded one (ConfigurationError).
    """

    def __init__(
        self,
        target: RankedTargetEngine,
        drafter: Drafter | None,
        prompt: Sequence[int],
        sampling: Sampling,
        policy: ProposalPolicy | None,
        *,
        decode: Decode | None = None,
        on_emission: Callable[[Emission], None] | None = None,
    ) -> None:
        """See :func:`draftwire.verifier.generate.generate`."""
        requests = target.parallelism is Parallelism.REQUESTS
        if isinstance(drafter, RankLinks) and drafter.whole is not requests:
            raise ConfigurationError(
                f"a {target.parallelism.value} target judges {'whole' if requests else 'shards of'}"
                f" q's, and its links bring {'shards' if requests else 'whole ones'}: make its"
                f" clients {'without' if requests else 'with'} a shard"
            )
        super().__init__(
            target, drafter, prompt, sampling, policy, decode=decode, on_emission=on_emission
        )

    def _begin_drafting(
        self, drafter: Drafter, context: RankedRequest, prompt: Sequence[int], proposal_key: int
    ) -> DraftRequest:
        if not isinstance(drafter, RankLinks):
            return drafter.open(prompt, proposal_key)
        return drafter.open(prompt, proposal_key, context.owner if drafter.whole else EVERY)

    def _judge(self, scores: Any, proposal: Proposal | None) -> Judgement:
        drafting, target, request = self.drafting, self._target, self._open
        assert isinstance(target, RankedTargetEngine)
        assert request is not None
        place = Place(drafting.generation, drafting.round, len(self._committed))
        link = drafting.number if isinstance(drafting, LinkedRequest) else 0
        verdict = target.judge(request, scores, proposal, place, self._words, link)
        return judgement(() if proposal is None else proposal.tokens, verdict)

    def _commit(self, judgement: Judgement, depth: int) -> list[Emission]:
        emissions = super()._commit(judgement, depth)
        if self._open is not None:
            self._open.pending = [emission.token for emission in emissions]
        return emissions


def follow_verifying(
    group: PointToPoint,
    columns: ModelColumns,
    *,
    links: LinkFollower | None = None,
    kernels: str = "auto",
    on_text: Callable[[RankedRequest], None] | None = None,
    before_round: Callable[[], None] | None = None,
) -> None:
    """Any other rank of a target: do what the leader says until it says stop.

    It decides nothing but what is its own in a request-sharded target. links: this rank's link to
    the drafter; None = the leader passes q on. kernels: of the requests that this rank owns alone.
    on_text: called with every
    request that has ended, its text as this rank knows it. before_round: called before a round is
    scored here. Raises TransportError when a rank is gone, and DivergedError when the leader's text
    is not the one that was decided, or it speaks of links that there are none of.
    """
    requests: dict[int, RankedRequest] = {}
    rows: dict[int, Any] = {}
    while True:
        command, numbers = receive_command(group)
        if command is Command.STOP:
            return
        if command in LINK_COMMANDS:
            if links is None:
                raise DivergedError("the leader has links to a drafter, this rank has none")
            links.follow(command, numbers.tolist())
            continue
        number, *rest = numbers[: _HEAD[command]].tolist()
        if command is Command.OPEN:
            settings, prompt = rest, numbers[1 + OPEN_NUMBERS :].tolist()
            requests[number] = opened(columns, number, settings, prompt)
        elif command is Command.SCORE:
            if before_round is not None:
                before_round()
            base, tail = rest
            request, tokens = requests[number], numbers[3:].tolist()
            _commit(request, base, tokens[:tail])
            rows[number] = drive(group, score(columns, request, tokens[tail:]))
        elif command is Command.VERIFY:
            draft = None if links is None else links.draft(int(numbers[5]))
            request, scores = requests[number], rows.pop(number)
            _follow(group, columns.shard, request, scores, numbers, draft, kernels)
        elif command is Command.CLOSE:
            request = requests.pop(number)
            _commit(request, rest[0], numbers[2:].tolist())
            if on_text is not None:
                on_text(request)


_VERIFY_HEAD: Final = 7  # context, generation, round, position, depth, link, size of the q's
_HEAD: Final = {
    Command.OPEN: 1 + OPEN_NUMBERS,
    Command.SCORE: 3,
    Command.VERIFY: 1,
    Command.CLOSE: 2,
}
"""Numbers of a command before what varies."""


def _follow(
    group: PointToPoint,
    shard: Shard,
    request: RankedRequest,
    rows: Any,
    numbers: Integers,
    draft: ShardDraft | Proposal | None,
    kernels: str,
) -> None:
    """Take part in the judging of a round, and remember what the leader decided."""
    _, generation, round_, first_position, depth, link, size = numbers[:_VERIFY_HEAD].tolist()
    tokens = numbers[_VERIFY_HEAD : _VERIFY_HEAD + depth].tolist()
    proposed: Sequence[QRow] | ShardDraft | Proposal | None = None
    if not link or not depth:
        said = numbers[_VERIFY_HEAD + depth :]
        if size and request.parallelism is Parallelism.REQUESTS and request.owner == shard.rank:
            said = group.receive(size)
        proposed = rows_of_numbers(said, depth) if said.size else None
    elif draft is not None and list(draft.tokens) == tokens:
        proposed = draft
    else:
        raise DivergedError(f"request {request.number}: the leader judges another proposal")
    place = Place(generation, round_, first_position)
    found = drive(group, _judge(shard, request, rows, tokens, proposed, place, None, kernels))
    verdict = found.verdict(0)
    request.pending = list(judgement(tokens, verdict).tokens)
    request.rounds.append((depth, verdict.accepted))


def _judge(
    shard: Shard,
    request: RankedRequest,
    rows: Any,
    tokens: Sequence[int],
    proposed: Proposed,
    place: Place,
    source: WordSource | None,
    kernels: str,
) -> Steps[ShardVerdicts]:
    """One round. proposed: what this rank has of the drafts' q's. source: the leader's."""
    if request.parallelism is Parallelism.REQUESTS:
        alone = None
        if request.owner == shard.rank:
            words = source or request.words
            assert words is not None
            whole = _whole_rows(proposed)
            alone = partial(
                _judge_alone, kernels, rows, tokens, whole, place, words, request.greedy
            )
        return (yield from verify_owned(shard.rank, shard.size, [alone], [request.number]))
    drafts = np.array(tokens, np.int64).reshape(1, -1)
    sources = None if source is None else [source]
    own = _columns(shard, proposed, len(tokens))
    return (yield from verify(Rounds(shard, rows[None], drafts, own[None]), [place], sources))


def _judge_alone(
    kernels: str,
    scores: Any,
    tokens: Sequence[int],
    proposed: Sequence[QRow],
    place: Place,
    source: WordSource,
    greedy: bool,
) -> Verdict:
    """One round on the rank that has all of it."""
    this = Round(
        tokens=tokens,
        rows=proposed,
        first_row=0,
        row_count=len(tokens) + 1,
        words=source,
        generation=place.generation,
        round=place.round,
        first_position=place.first_position,
        greedy=greedy,
    )
    return decide(kernels_for(kernels, scores), scores, [this])[0]


def _whole_rows(proposed: Proposed) -> Sequence[QRow]:
    if isinstance(proposed, Proposal):
        return proposed.rows
    assert not isinstance(proposed, ShardDraft | ShardProposal)  # refused when the link was made
    return proposed or ()


def _columns(shard: Shard, proposed: Proposed, depth: int) -> NDArray[np.int32]:
    """A rank's own columns of every q, int32 (depth, width); padding of the target has none."""
    if isinstance(proposed, ShardProposal):
        proposed = proposed.draft
    own = np.zeros((depth, shard.width), np.int32)
    if isinstance(proposed, ShardDraft):
        own[:, : proposed.shard.width] = proposed.counts
        return own
    for columns, row in zip(own, _whole_rows(proposed), strict=True):
        if row.ids is None:
            counts = row.counts[shard.begin : shard.end]
            columns[: len(counts)] = counts
        else:
            first, last = np.searchsorted(row.ids, (shard.begin, shard.end))
            columns[row.ids[first:last] - shard.begin] = row.counts[first:last]
    return own


def _commit(request: RankedRequest, base: int, tail: Sequence[int]) -> None:
    """Commit what the leader keeps of the latest verdict, if it is what this rank decided too."""
    same = base == len(request.committed) and list(tail) == request.pending[: len(tail)]
    if not same or (request.pending and not tail):
        raise DivergedError(f"request {request.number}: the leader commits another text")
    request.committed += tail
    request.pending = []
