"""Rank-to-rank links: each rank of a target has its own to one rank of the drafter (P29).

The leader is an ordinary :class:`draftwire.verifier.drafting.Drafter` to the round loop. It alone
says when links connect, whether a round asks, how long it is waited for and what was committed; the
ranks then tell each other whether every shard has come, and use all of them or none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from draftwire.engines.ranks.orders import (
    POLICY_NUMBERS,
    DivergedError,
    Order,
    bits_of,
    number_of,
    numbers_of,
    policy_of,
    tell,
)
from draftwire.errors import ConfigurationError, ProtocolError
from draftwire.kernels import shards
from draftwire.kernels.shards import Collective, Steps, drive, gather
from draftwire.kernels.shards_payload import ShardDraft, settle
from draftwire.kernels.words import first_words
from draftwire.session.proposal import Proposal
from draftwire.session.reasons import DropReason, reason_of
from draftwire.session.shards import ShardProposal
from draftwire.verifier.breaker import Breaker
from draftwire.verifier.drafting import Drafted, Miss, MissReason, Traffic
from draftwire.verifier.pacing import ConnectPacing, RoundPacing
from draftwire.verifier.request import ClientRequest
from draftwire.verifier.shard_client import ShardClient
from draftwire.verifier.totals import Totals
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Outcome

_MISSES: Final = (None, *MissReason)
_DROPS: Final = (None, *DropReason)
_COMMIT: Final = (
    4  # numbers of a commit in an order: whether there is one, outcome, accepted, token
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the leader says of a round. connect, wait: seconds; connect 0 = no link connects now."""

    policy: ProposalPolicy
    wait: float
    connect: float


class RankLinks:
    """The leader's drafter: as many links as there are ranks, each with one shard of every reply.

    Implements :class:`draftwire.verifier.drafting.Drafter`, for ``RankedGeneration``; the other
    ranks have a :class:`LinkFollower`. breaker: the leader's alone. audit: recompute every draw
    (A22). entropy: names the sessions.
    """

    def __init__(
        self,
        group: Collective,
        client: ShardClient,
        *,
        breaker: Breaker | None = None,
        audit: bool = True,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """Lead the links of a group. Raises ConfigurationError on any other rank."""
        if group.rank != shards.LEADER:
            raise ConfigurationError(f"rank {group.rank} follows, it does not lead")
        self.group = group
        self.client = client
        self.breaker = breaker
        self.totals = Totals()
        self.audit = audit
        self.pacing = ConnectPacing()
        self._entropy = entropy
        self._slots: set[int] = set()
        self._opened = 0

    def open(self, prompt: Sequence[int], proposal_key: int) -> LinkedRequest:
        """Begin drafting for one request on every link; the key stays with this rank."""
        self._opened += 1
        slot = next(slot for slot in range(len(self._slots) + 1) if slot not in self._slots)
        self._slots.add(slot)
        # One name on all links, which no other verifier has chosen (P29).
        session = int.from_bytes(self._entropy(8), "little") >> 1 or 1
        tell(self.group, Order.LINK_OPEN, [self._opened, session, slot, *prompt])
        request = self.client.open_shard(session, slot, prompt, proposal_key)
        return LinkedRequest(self, self._opened, request, proposal_key)

    def ended(self, slot: int) -> None:
        """A request has given its slot back."""
        self._slots.discard(slot)

    def close(self) -> None:
        """End this rank's connection; the others end theirs."""
        self.client.close()


class LinkedRequest:
    """One request's drafting over the links of all ranks, as the leader has it."""

    def __init__(
        self, links: RankLinks, number: int, request: ClientRequest, proposal_key: int
    ) -> None:
        """Made by ``RankLinks.open``. number: what all ranks know it by."""
        self.number = number
        self._links = links
        self._request = request
        self._key = proposal_key
        self._pacing = RoundPacing()
        self._commit = [0] * _COMMIT
        self._open = True

    @property
    def generation(self) -> int:
        """The generation of the latest round."""
        return self._request.generation

    @property
    def round(self) -> int:
        """The round id of the latest round."""
        return self._request.round

    @property
    def traffic(self) -> Traffic:
        """What this request has put on the leader's own link."""
        return self._request.traffic

    def propose(self, policy: ProposalPolicy) -> Drafted:
        """Begin the next round and ask for at most ``policy.depth`` drafts, on every link."""
        pauses = self._pacing.pauses()
        if pauses is not None:
            self.skip()
            return Miss(pauses)
        links = self._links
        client = links.client
        connect = client.connect_timeout if links.pacing.may_try(client.clock()) else 0.0
        asked = Asked(policy, client.deadline, connect)
        numbers = [*numbers_of(policy), bits_of(asked.wait), bits_of(asked.connect)]
        self._tell(Order.LINK_ASK, numbers)
        key = self._key if links.audit else None
        drafted = drive(links.group, _round(client, self._request, asked, key))
        if isinstance(drafted, Proposal):
            self._pacing.won()
        elif isinstance(drafted.reason, DropReason):
            self._pacing.lost(drafted.reason)
        away = isinstance(drafted, Miss) and drafted.reason is MissReason.NO_CONNECTION
        if away and connect:
            links.pacing.failed(client.clock())
        elif not away:
            links.pacing.succeeded()
        return drafted

    def skip(self) -> None:
        """Begin the next round without asking, on every link."""
        self._tell(Order.LINK_SKIP)
        self._request.skip()

    def commit(self, outcome: Outcome, accepted: int, tokens: Sequence[int]) -> None:
        """End the round; the other ranks hear of it with the next order."""
        self._request.commit(outcome, accepted, tokens)
        self._commit = [1, outcome, accepted, tokens[-1]]

    def close(self) -> None:
        """Free the request on every link; may be called twice."""
        if self._open:
            self._open = False
            self._links.ended(self._request.asking.slot)
            self._tell(Order.LINK_END)
            self._request.close()

    def _tell(self, order: Order, numbers: Sequence[int] = ()) -> None:
        tell(self._links.group, order, [self.number, *self._commit, *numbers])
        self._commit = [0] * _COMMIT


class LinkFollower:
    """Any other rank's link: it does what the leader says."""

    def __init__(self, group: Collective, client: ShardClient) -> None:
        """Take this rank's link."""
        self._group = group
        self._client = client
        self._requests: dict[int, ClientRequest] = {}
        self._drafts: dict[int, ShardDraft] = {}

    def draft(self, number: int) -> ShardDraft | None:
        """Return this rank's shard of a request's proposal, if its round has one."""
        return self._drafts.get(number)

    def follow(self, order: Order, numbers: Sequence[int]) -> None:
        """Carry out one of the leader's orders about links. Raises DivergedError."""
        number = numbers[0]
        if order is Order.LINK_OPEN:
            session, slot, *prompt = numbers[1:]
            # The key is the leader's alone: a rank that does not draw needs none.
            self._requests[number] = self._client.open_shard(session, slot, prompt, 0)
            return
        request = self._requests[number]
        self._drafts.pop(number, None)
        committed, outcome, accepted, token = numbers[1 : 1 + _COMMIT]
        if committed:
            request.commit(Outcome(outcome), accepted, [token])
        if order is Order.LINK_ASK:
            *policy, wait, connect = numbers[1 + _COMMIT : 3 + _COMMIT + POLICY_NUMBERS]
            asked = Asked(policy_of(policy), number_of(wait), number_of(connect))
            drafted = drive(self._group, _round(self._client, request, asked, None))
            if isinstance(drafted, ShardProposal):
                self._drafts[number] = drafted.draft
        elif order is Order.LINK_SKIP:
            request.skip()
        elif order is Order.LINK_END:
            del self._requests[number]
            request.close()
        else:
            raise DivergedError(f"{order.name} is no order about links")

    def close(self) -> None:
        """End this rank's connection."""
        self._client.close()


def _round(
    client: ShardClient, request: ClientRequest, asked: Asked, key: int | None
) -> Steps[Drafted]:
    """One round on all links: a proposal whose shards have all come and fit, or the same miss.

    key: the leader's, to audit with. What is decided follows from what all ranks have said, and a
    rank says nothing of what it was sent but whether that is whole (law 4).
    """
    client.may_connect = asked.connect > 0
    miss, policy = request.pauses(), asked.policy
    if miss is None:
        agreed = client.agreement(client.clock() + asked.connect)
        miss, policy = request.allowed(policy, agreed)
    asking = request.asking
    reason = 0 if miss is None else _MISSES.index(MissReason(miss.reason))
    states = yield from gather(np.array([reason, policy.depth, asking.opens], np.int64))
    if (missing := _first(states[:, 0])) is not None:
        asking.skip()
        return Miss(MissReason(_MISSES[missing]), "" if miss is None else miss.detail)
    if states[:, 2].any() and asking.round:
        client.renew(request)  # on every rank, so that all name the same generation
    policy = replace(policy, depth=int(states[:, 1].min()))
    result = client.ask_shard(request, policy, asked.wait)
    lost = 0 if isinstance(result, Proposal) else _DROPS.index(result.reason)
    losses = yield from gather(np.array([lost], np.int64))
    if (first := _first(losses[:, 0])) is not None:
        reason_lost = DropReason(_DROPS[first])
        if isinstance(result, Proposal):
            asking.give_up(reason_lost)
            return Miss(reason_lost, "on another rank's link", policy.depth)
        return Miss(reason_lost, result.detail, policy.depth)
    assert isinstance(result, ShardProposal)
    words = None if key is None else _words(key, request, policy.depth)
    code = yield from settle(client.shard, result.draft, policy.depth, words)
    if code is None:
        return result
    unfit = reason_of(ProtocolError(code, "the shards are no one proposal"))
    asking.give_up(unfit)
    return Miss(unfit, "the shards are no one proposal", policy.depth)


def _words(key: int, request: ClientRequest, depth: int) -> Sequence[int]:
    asking = request.asking
    return first_words(key, asking.generation, asking.round, len(asking), depth)


def _first(reasons: shards.Integers) -> int | None:
    """The first rank's reason that is one."""
    named = reasons[reasons != 0]
    return int(named[0]) if named.size else None
