"""One round over the links of ranks: every rank reports, the leader decides (P29).

A rank says whether there is a connection, and whether what it waits for is whole, still missing or
lost. Only the leader looks at a clock to decide: as long as its deadline has not passed, it lets
the others wait a little longer and report again; then all ranks use the proposal, or none does.
What is decided follows from what was reported, never from what a reply holds (law 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

import numpy as np

from draftwire.engines.parallel.commands import bits_of, number_of
from draftwire.errors import ProtocolError
from draftwire.kernels.shards import shard as shards
from draftwire.kernels.shards.shard import Collective, Integers, Steps, broadcast, gather
from draftwire.kernels.words import first_words
from draftwire.rows.shards import settle
from draftwire.session.proposal import Dropped, Proposal
from draftwire.session.reasons import DropReason, reason_of
from draftwire.session.shards import ShardProposal
from draftwire.verifier.miss import Drafted, Miss, MissReason
from draftwire.verifier.rank_client import RankClient
from draftwire.verifier.request import ClientRequest
from draftwire.wire.messages import ProposalPolicy

REPORT_SECONDS: Final = 0.05  # so long a rank waits at most before it reports what it has
_MISSES: Final = (None, *MissReason)
DROP_REASONS: Final = tuple(DropReason)
_ELSEWHERE: Final = "on another rank's link"


class RankReport(IntEnum):
    """What a rank says while it waits; from LOST on, which of the DropReasons."""

    MISSING = 0
    WHOLE = 1  # or nothing is waited for here
    LOST = 2


class RankDecision(IntEnum):
    """What the leader says to that; from LOST on, which of the DropReasons."""

    WAIT = 0
    USE = 1
    LOST = 2


@dataclass(frozen=True, slots=True)
class Asked:
    """What the leader says of a round. connect, wait: seconds; connect 0 = no link connects now.

    context_version: what every link's STEP says of the target's context.
    """

    policy: ProposalPolicy
    wait: float
    connect: float
    context_version: int = 0


@dataclass(frozen=True, slots=True)
class DistantProposal(Proposal):
    """A proposal that another rank has whole: its tokens; ``rows`` is empty."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a request stands on the rank that asks for it, and what its link has carried.

    committed: tokens of its prefix.
    """

    committed: int = 0
    generation: int = 0
    round: int = 0
    sent: int = 0
    received: int = 0
    audit_seconds: float = 0.0


def shard_round(
    group: Collective, client: RankClient, request: ClientRequest, asked: Asked, key: int | None
) -> Steps[Drafted]:
    """One round on all links: a proposal whose shards have all come and fit, or the same miss.

    key: the leader's, to audit with.
    """
    miss, policy = _allowed(client, request, asked)
    asking = request.asking
    told = yield from gather(np.array([_number(miss), policy.depth, asking.opens], np.int64))
    if (missing := _first(told[:, 0])) is not None:
        asking.skip()
        return Miss(MissReason(_MISSES[missing]), "" if miss is None else miss.detail)
    if told[:, 2].any() and asking.round:
        client.renew(request)  # on every rank, so that all name the same generation
    policy = replace(policy, depth=int(told[:, 1].min()))
    result = yield from collect_answer(group, client, request, policy, asked.wait)
    if isinstance(result, Miss):
        return result
    assert isinstance(result, ShardProposal)
    assert client.shard is not None
    words = None if key is None else _words(key, request, policy.depth)
    code = yield from settle(client.shard, result.draft, policy.depth, words)
    if code is None:
        return result
    unfit = reason_of(ProtocolError(code, "the shards are no one proposal"))
    asking.give_up(unfit)
    return Miss(unfit, "the shards are no one proposal", policy.depth)


def owned_round(
    group: Collective,
    client: RankClient,
    request: ClientRequest | None,
    owner: int,
    asked: Asked,
) -> Steps[tuple[Drafted, Standing]]:
    """One round on the owner's link alone: its proposal, whose tokens all ranks learn, or a miss.

    request: the owner's; None on every other rank. The q's stay with the owner, which has validated
    and audited them.
    """
    miss, policy = None, asked.policy
    if request is not None:
        miss, policy = _allowed(client, request, asked)
    told = yield from gather(np.array([_number(miss), policy.depth], np.int64))
    missing, depth = told[owner].tolist()
    policy = replace(policy, depth=depth)
    result: Proposal | Miss | None
    if missing:
        if request is not None:
            request.asking.skip()
        result = Miss(MissReason(_MISSES[missing]), "" if miss is None else miss.detail)
    else:
        result = yield from collect_answer(group, client, request, policy, asked.wait)
    if isinstance(result, Miss):
        return result, (yield from standing(request, owner))
    tokens = np.zeros(depth, np.int64) if result is None else np.array(result.tokens, np.int64)
    drafts = (yield from gather(tokens))[owner]
    stands = yield from standing(request, owner)
    if result is None:
        result = DistantProposal(
            tuple(drafts.tolist()), (), stands.generation, stands.round, stands.committed
        )
    return result, stands


def standing(request: ClientRequest | None, owner: int) -> Steps[Standing]:
    """Where a request stands, told by its owner to all."""
    own = np.zeros(6, np.int64)
    if request is not None:
        asking, traffic = request.asking, request.traffic
        own[:3] = len(asking), asking.generation, asking.round
        own[3:] = traffic.sent, traffic.received, bits_of(asking.audit_seconds)
    told = (yield from gather(own))[owner].tolist()
    committed, generation, round_, sent, received, audit = told
    return Standing(committed, generation, round_, sent, received, number_of(audit))


def _allowed(
    client: RankClient, request: ClientRequest, asked: Asked
) -> tuple[Miss | None, ProposalPolicy]:
    """Why this rank cannot ask, or None, and the policy at the depth that it may."""
    client.may_connect = asked.connect > 0
    request.use_context(asked.context_version)
    miss = request.pauses()
    if miss is not None:
        return miss, asked.policy
    agreed = client.agreement(client.clock() + asked.connect)
    return request.allowed(asked.policy, agreed)


def collect_answer(
    group: Collective,
    client: RankClient,
    request: ClientRequest | None,
    policy: ProposalPolicy,
    wait: float,
) -> Steps[Proposal | Miss | None]:
    """Ask, and report until the leader decides; None = used, and nothing of it is here.

    wait: seconds of the leader's clock, from when it asks. The same decision on all ranks.
    """
    leads = group.rank == shards.LEADER
    until = client.clock() + wait if leads else 0.0
    if request is not None:
        client.ask(request, policy, wait)
    result: Proposal | Dropped | None = None
    more = min(wait, REPORT_SECONDS)
    while True:
        if request is not None and result is None:
            result = client.wait(request, more)
        reports = yield from gather(np.array([report_of(request, result)], np.int64))
        said = np.zeros(2, np.int64)
        if leads:
            said[:] = decide(reports[:, 0], until - client.clock())
        decision, bits = (yield from broadcast(said)).tolist()
        if decision != RankDecision.WAIT:
            break
        more = number_of(bits)
    if decision == RankDecision.USE:
        assert not isinstance(result, Dropped)
        return result
    reason = DROP_REASONS[decision - RankDecision.LOST]
    if request is not None and result is None:
        result = client.give_up(request)
    detail = result.detail if isinstance(result, Dropped) else _ELSEWHERE
    if request is not None and isinstance(result, Proposal):
        request.asking.give_up(reason)
    return Miss(reason, detail, policy.depth)


def report_of(request: ClientRequest | None, result: Proposal | Dropped | None) -> int:
    """Return what a rank tells the leader of its part of a round."""
    if isinstance(result, Dropped):
        return RankReport.LOST + DROP_REASONS.index(result.reason)
    return RankReport.MISSING if request is not None and result is None else RankReport.WHOLE


def decide(reports: Integers, left: float) -> tuple[int, int]:
    """The leader's decision, and how much longer the others may wait, as the bits of seconds."""
    lost = reports[reports >= RankReport.LOST]
    if lost.size:
        return RankDecision.LOST + int(lost[0]) - RankReport.LOST, 0
    if (reports == RankReport.WHOLE).all():
        return RankDecision.USE, 0
    if left <= 0:
        return RankDecision.LOST + DROP_REASONS.index(DropReason.MISSED_DEADLINE), 0
    return RankDecision.WAIT, bits_of(min(left, REPORT_SECONDS))


def _words(key: int, request: ClientRequest, depth: int) -> Sequence[int]:
    asking = request.asking
    return first_words(key, asking.generation, asking.round, len(asking), depth)


def _number(miss: Miss | None) -> int:
    return 0 if miss is None else _MISSES.index(MissReason(miss.reason.value))


def _first(reasons: Integers) -> int | None:
    """The first rank's reason that is one."""
    named = reasons[reasons != 0]
    return int(named[0]) if named.size else None
