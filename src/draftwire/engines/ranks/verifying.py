"""A target over ranks: the leader owns the deadline, acceptance and fallback of every round (A29).

The leader runs :class:`RankedGeneration` over an ordinary drafter connection; every other rank runs
:func:`follow_verifying`. The leader alone hears from the drafter and from its clock, so whether a
round has a proposal is one decision; q goes to the other ranks only once it is whole and validated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from draftwire.engines.hf.sequence import CachedSequence
from draftwire.engines.ranks.columns import ModelColumns
from draftwire.engines.ranks.links import LinkedRequest, LinkFollower
from draftwire.engines.ranks.orders import (
    LINK_ORDERS,
    DivergedError,
    Order,
    bits_of,
    hear,
    number_of,
    tell,
)
from draftwire.errors import ConfigurationError
from draftwire.exact.verify import Verdict
from draftwire.exact.words import WordSource
from draftwire.kernels import shards
from draftwire.kernels.shards import Collective, Integers, Shard, Steps, drive
from draftwire.kernels.shards_payload import ShardDraft
from draftwire.kernels.shards_target import point_of, weights_of
from draftwire.kernels.shards_verify import Place, Rounds, ShardVerdicts, verify
from draftwire.session.proposal import Proposal
from draftwire.session.shards import ShardProposal
from draftwire.verifier.generate import Emission, Generation, Kind
from draftwire.verifier.sampling import Sampling


@dataclass(slots=True)
class RankedRequest:
    """One request as a rank has it: its sequence, temperature and committed text.

    pending: what the latest verdict brought, of which the leader says how much is kept. rounds: of
    each round, how many drafts were judged and how many stood.
    """

    number: int
    sequence: CachedSequence
    temperature: float
    committed: list[int]
    prompt: int
    pending: list[int] = field(default_factory=list)
    rounds: list[tuple[int, int]] = field(default_factory=list)

    @property
    def text(self) -> tuple[int, ...]:
        """The committed text, without its prompt."""
        return tuple(self.committed[self.prompt :])


class RankedTargetEngine:
    """The leader's target: it scores its own columns, and has every rank score theirs.

    Implements :class:`draftwire.verifier.engine.TargetEngine`; use it with
    :class:`RankedGeneration`. Masks and processors over the whole vocabulary are not split: a
    request may have a temperature, and nothing else that needs a whole row (ConfigurationError).
    """

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
        self.end_tokens = columns.end_tokens
        self._opened = 0

    def open(self, prompt: Sequence[int], sampling: Sampling) -> RankedRequest:
        """Begin a request on every rank."""
        _check_sampling(sampling)
        self._opened += 1
        tell(self.group, Order.OPEN, [self._opened, bits_of(sampling.temperature), *prompt])
        return _opened(self.columns, self._opened, sampling.temperature, prompt)

    def score(
        self, context: RankedRequest, committed: Sequence[int], drafts: Sequence[int]
    ) -> NDArray[np.float64]:
        """The leader's columns of p at K + 1 positions; the other ranks keep theirs.

        Returns binary64 (K + 1, width of its shard), on one scale over all ranks.
        """
        base = len(context.committed)
        tail = list(committed[base:])
        tell(self.group, Order.SCORE, [context.number, base, len(tail), *tail, *drafts])
        context.committed += tail
        context.pending = []
        return drive(self.group, _score(self.columns, context, drafts))

    def judge(
        self,
        context: RankedRequest,
        rows: NDArray[np.float64],
        proposal: Proposal | None,
        place: Place,
        source: WordSource,
        link: int = 0,
    ) -> Verdict:
        """Decide a round on every rank at once; without a proposal one token is drawn from p.

        link: the number that the ranks know the request's links by, where the proposal came in
        shards; each rank then has its own, and no q crosses between them.
        """
        shard = self.columns.shard
        tokens = () if proposal is None else proposal.tokens
        depth = len(tokens)
        where = [place.generation, place.round, place.first_position]
        head = np.array([context.number, *where, depth, link, *tokens], np.int64)
        if isinstance(proposal, ShardProposal):
            tell(self.group, Order.VERIFY, head)
            own = _widened(shard, proposal.draft)
        else:
            whole = _whole(proposal, shard.vocab_size)
            tell(self.group, Order.VERIFY, np.concatenate([head, whole.reshape(-1)]))
            own = whole[:, shard.begin : shard.end]
        steps = _judge(shard, rows, tokens, own, place, [source])
        return drive(self.group, steps).verdict(0, depth)

    def close(self, context: RankedRequest) -> None:
        """Free the request on every rank, and tell what of the last round its text ends with."""
        base = len(context.committed)
        tell(self.group, Order.CLOSE, [context.number, base, *context.pending])
        context.committed += context.pending
        context.sequence.rewind(0)

    def stop(self) -> None:
        """Let the other ranks end."""
        tell(self.group, Order.STOP)


class RankedGeneration(Generation[RankedRequest]):
    """The round loop over ranks: everything but the judging is the ordinary loop, on the leader.

    target: a :class:`RankedTargetEngine`.
    """

    def _draw_target_only(self, rows: NDArray[np.float64]) -> int:
        return self._judged(rows, None).token

    def _verify(
        self, rows: NDArray[np.float64], proposal: Proposal
    ) -> tuple[list[int], list[Kind]]:
        verdict = self._judged(rows, proposal)
        last = Kind.BONUS if verdict.outcome == "bonus" else Kind.CORRECTED
        tokens = [*proposal.tokens[: verdict.accepted], verdict.token]
        return tokens, [*[Kind.ACCEPTED] * verdict.accepted, last]

    def _judged(self, rows: NDArray[np.float64], proposal: Proposal | None) -> Verdict:
        drafting, target, request = self._drafting, self._target, self._open
        assert isinstance(target, RankedTargetEngine)
        assert request is not None
        place = Place(drafting.generation, drafting.round, len(self._committed))
        link = drafting.number if isinstance(drafting, LinkedRequest) else 0
        return target.judge(request, rows, proposal, place, self._words, link)

    def _commit(self, tokens: list[int], kinds: list[Kind], depth: int) -> list[Emission]:
        emissions = super()._commit(tokens, kinds, depth)
        if self._open is not None:
            self._open.pending = [emission.token for emission in emissions]
        return emissions


def follow_verifying(
    group: Collective,
    columns: ModelColumns,
    *,
    links: LinkFollower | None = None,
    on_text: Callable[[RankedRequest], None] | None = None,
    before_round: Callable[[], None] | None = None,
) -> None:
    """Any other rank of a target: do what the leader says until it says stop.

    It has no key and no clock, so it cannot decide anything. links: this rank's link to the
    drafter's rank that has its shards; None = the leader passes q on. on_text: called with every
    request that has ended, its text as this rank knows it. before_round: called before a round is
    scored here. Raises TransportError when a rank is gone, and DivergedError when the leader's text
    is not the one that was decided, or it speaks of links that there are none of.
    """
    requests: dict[int, RankedRequest] = {}
    rows: dict[int, NDArray[np.float64]] = {}
    while True:
        order, numbers = hear(group)
        if order is Order.STOP:
            return
        if order in LINK_ORDERS:
            if links is None:
                raise DivergedError("the leader has links to a drafter, this rank has none")
            links.follow(order, numbers.tolist())
            continue
        number, *rest = numbers[: _HEAD[order]].tolist()
        if order is Order.OPEN:
            requests[number] = _opened(columns, number, number_of(rest[0]), numbers[2:].tolist())
        elif order is Order.SCORE:
            if before_round is not None:
                before_round()
            base, tail = rest
            request, tokens = requests[number], numbers[3:].tolist()
            _commit(request, base, tokens[:tail])
            rows[number] = drive(group, _score(columns, request, tokens[tail:]))
        elif order is Order.VERIFY:
            draft = None if links is None else links.draft(int(numbers[5]))
            _follow(group, columns.shard, requests[number], rows.pop(number), numbers, draft)
        elif order is Order.CLOSE:
            request = requests.pop(number)
            _commit(request, rest[0], numbers[2:].tolist())
            if on_text is not None:
                on_text(request)


_HEAD: Final = {Order.OPEN: 2, Order.SCORE: 3, Order.VERIFY: 1, Order.CLOSE: 2}
"""Numbers of an order before what varies."""


def _follow(
    group: Collective,
    shard: Shard,
    request: RankedRequest,
    rows: NDArray[np.float64],
    numbers: Integers,
    draft: ShardDraft | None,
) -> None:
    """Take part in the judging of a round, and remember what the leader decided."""
    _, generation, round_, first_position, depth, link, *more = numbers.tolist()
    tokens = more[:depth]
    if not link or not depth:
        counts = numbers[-depth * shard.vocab_size :] if depth else numbers[:0]
        whole = counts.astype(np.int32).reshape(depth, shard.vocab_size)
        own = whole[:, shard.begin : shard.end]
    elif draft is not None and list(draft.tokens) == tokens:
        own = _widened(shard, draft)
    else:
        raise DivergedError(f"request {request.number}: the leader judges another proposal")
    place = Place(generation, round_, first_position)
    found = drive(group, _judge(shard, rows, tokens, own, place, None))
    if found.status[0] != shards.OK:  # refused on every rank: the leader ends this request alone
        request.pending = []
        return
    verdict = found.verdict(0, depth)
    request.pending = [*tokens[: verdict.accepted], verdict.token]
    request.rounds.append((depth, verdict.accepted))


def _judge(
    shard: Shard,
    rows: NDArray[np.float64],
    tokens: Sequence[int],
    counts: NDArray[np.int32],
    place: Place,
    sources: Sequence[WordSource] | None,
) -> Steps[ShardVerdicts]:
    """One round; counts: (K, width), this rank's own columns of the q's."""
    own = np.ascontiguousarray(counts)
    drafts = np.array(tokens, np.int64).reshape(1, -1)
    return verify(Rounds(shard, rows[None], drafts, own[None]), [place], sources)


def _whole(proposal: Proposal | None, vocab_size: int) -> NDArray[np.int32]:
    """The counts of every position over the whole vocabulary, (K, V)."""
    rows = () if proposal is None else proposal.rows
    counts = np.zeros((len(rows), vocab_size), np.int32)
    for whole, q in zip(counts, rows, strict=True):
        whole[slice(None, q.vocab_size) if q.ids is None else q.ids] = q.counts
    return counts


def _widened(shard: Shard, draft: ShardDraft) -> NDArray[np.int32]:
    """A shard of the real ids on the columns of a target's rank, whose padding has no tickets."""
    counts = np.zeros((len(draft.tokens), shard.width), np.int32)
    counts[:, : draft.shard.width] = draft.counts
    return counts


def _score(
    columns: ModelColumns, request: RankedRequest, drafts: Sequence[int]
) -> Steps[NDArray[np.float64]]:
    """This rank's columns of p at K + 1 positions (A17, A21)."""
    ids = [*request.committed, *drafts]
    sequence = request.sequence
    sequence.rewind_to_prefix_of(request.committed)
    logits = columns.logits(sequence, ids[sequence.length :], len(drafts) + 1)
    if request.temperature == 0:
        return point_of(columns.shard, logits)
    # transformers divides the binary32 scores by the temperature before anything else.
    return weights_of(logits / np.float32(request.temperature))


def _opened(
    columns: ModelColumns, number: int, temperature: float, prompt: Sequence[int]
) -> RankedRequest:
    sequence = columns.sequence()
    return RankedRequest(number, sequence, temperature, list(prompt), len(prompt))


def _commit(request: RankedRequest, base: int, tail: Sequence[int]) -> None:
    """Commit what the leader keeps of the latest verdict, if it is what this rank decided too."""
    same = base == len(request.committed) and list(tail) == request.pending[: len(tail)]
    if not same or (request.pending and not tail):
        raise DivergedError(f"request {request.number}: the leader commits another text")
    request.committed += tail
    request.pending = []


def _check_sampling(sampling: Sampling) -> None:
    plain = Sampling(temperature=sampling.temperature)
    for name in ("top_p", "top_k", "min_p", "repetition_penalty"):
        if getattr(sampling, name) != getattr(plain, name):
            raise ConfigurationError(
                f"a target whose vocabulary is split samples with a temperature alone: {name} needs"
                " whole rows"
            )
