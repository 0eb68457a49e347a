"""Links of ranks: each rank of a target has a connection to the drafter of its own (P29).

The leader is an ordinary :class:`draftwire.verifier.drafter.Drafter` to the round loop. It alone
says when links connect, whether a round asks, when it has waited long enough and what was
committed; the other ranks do and report (:mod:`draftwire.engines.parallel.rounds`).

Vocabulary-sharded, every link brings one shard of every reply, from one rank of the drafter each.
Request-sharded, a request's q's come whole, on the link of the rank that owns it alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final

from draftwire.engines.parallel.commands import (
    POLICY_NUMBERS,
    Command,
    DivergedError,
    bits_of,
    number_of,
    numbers_of,
    policy_of,
    send_command,
    signed,
    unsigned,
)
from draftwire.engines.parallel.rounds import Asked, Standing, owned_round, shard_round, standing
from draftwire.errors import ConfigurationError
from draftwire.exact.words import link_key
from draftwire.kernels.shards import shard as shards
from draftwire.kernels.shards.shard import Collective, drive
from draftwire.rows.shards import ShardDraft
from draftwire.session.proposal import Proposal
from draftwire.session.reasons import DropReason
from draftwire.session.shards import ShardProposal
from draftwire.verifier.breaker import Breaker
from draftwire.verifier.counters import Traffic
from draftwire.verifier.miss import Drafted, Miss, MissReason
from draftwire.verifier.rank_client import RankClient
from draftwire.verifier.reconnect import ConnectPacing, RoundPacing
from draftwire.verifier.request import ClientRequest
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Outcome

EVERY: Final = -1  # owner of a request whose columns every rank has
_COMMIT: Final = (
    4  # numbers of a commit in a command: whether there is one, outcome, accepted, token
)


class RankLinks:
    """The leader's drafter: a link for each rank, as its client says of shards or of whole q's.

    Implements :class:`draftwire.verifier.drafter.Drafter`, for ``RankedGeneration``; the other
    ranks have a :class:`LinkFollower`. breaker: the leader's alone, so that its rounds are all
    ranks' rounds. audit: recompute every draw of shards (A22); whole q's are audited by the client
    of their owner. entropy: names the sessions.
    """

    def __init__(
        self,
        group: Collective,
        client: RankClient,
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
        self.breaker = client.breaker = breaker
        self.totals = client.totals
        self.audit = audit
        self._pacing = {EVERY: ConnectPacing()}
        self._entropy = entropy
        self._slots: set[tuple[int, int]] = set()
        self._opened = 0

    @property
    def whole(self) -> bool:
        """Whether each link brings whole q's."""
        return self.client.shard is None

    def open(self, prompt: Sequence[int], proposal_key: int, owner: int = EVERY) -> LinkedRequest:
        """Begin drafting for one request. owner: whose link it is, where q's come whole.

        The key stays with this rank, or goes to the owner's.
        """
        if self.whole is (owner == EVERY):
            raise ConfigurationError("whole q's go to the one rank that owns them, shards to all")
        self._opened += 1
        places = range(len(self._slots) + 1)
        slot = next(slot for slot in places if (owner, slot) not in self._slots)
        self._slots.add((owner, slot))
        # One name on all links, which no other verifier has chosen (P29).
        session = int.from_bytes(self._entropy(8), "little") >> 1 or 1
        key = proposal_key if self.whole else link_key(proposal_key)
        numbers = [self._opened, session, slot, owner, signed(key), *prompt]
        send_command(self.group, Command.LINK_OPEN, numbers)
        request = None
        if owner in (EVERY, shards.LEADER):
            request = self.client.begin(session, slot, prompt, proposal_key)
        return LinkedRequest(self, self._opened, request, proposal_key, owner, slot)

    def pacing_of(self, owner: int) -> ConnectPacing:
        """When the link of an owner, or all links, may be tried again."""
        return self._pacing.setdefault(owner, ConnectPacing())

    def ended(self, owner: int, slot: int) -> None:
        """A request has given its slot back."""
        self._slots.discard((owner, slot))

    def close(self) -> None:
        """End this rank's connection; the others end theirs."""
        self.client.close()


class LinkedRequest:
    """One request's drafting over the links, as the leader has it."""

    def __init__(
        self,
        links: RankLinks,
        number: int,
        request: ClientRequest | None,
        proposal_key: int,
        owner: int,
        slot: int,
    ) -> None:
        """Made by ``RankLinks.open``. number: what all ranks know it by. request: None = elsewhere.

        traffic: on the leader's own link, or on the owner's.
        """
        self.number = number
        self.owner = owner
        self.traffic = Traffic() if request is None else request.traffic
        self._links = links
        self._request = request
        self._key = proposal_key
        self._slot = slot
        self._stands = Standing()
        self._pacing = RoundPacing()
        self._commit = [0] * _COMMIT
        self._context_version = 0
        self._proposed = False  # whether the round that is on has a proposal
        self._open = True

    @property
    def generation(self) -> int:
        """The generation of the latest round."""
        return self._stands.generation if self._request is None else self._request.generation

    @property
    def round(self) -> int:
        """The round id of the latest round."""
        return self._stands.round if self._request is None else self._request.round

    def use_context(self, version: int) -> None:
        """Ask under this context version from now on; a whole proposal is dropped on every link."""
        if version == self._context_version:
            return
        self._context_version = version
        if not self._proposed:
            return  # the links hear of it when they are asked
        self._proposed = False
        self._send(Command.LINK_CONTEXT, [version])
        if self._request is not None:
            self._request.use_context(version)

    def propose(self, policy: ProposalPolicy) -> Drafted:
        """Begin the next round and ask for at most ``policy.depth`` drafts."""
        pauses = self._pacing.pauses()
        if pauses is not None:
            self.skip()
            return Miss(pauses)
        links = self._links
        client, connecting = links.client, links.pacing_of(self.owner)
        connect = client.connect_timeout if connecting.may_try(client.clock()) else 0.0
        asked = Asked(policy, client.deadline, connect, self._context_version)
        numbers = [*numbers_of(policy), bits_of(asked.wait), bits_of(asked.connect)]
        numbers.append(asked.context_version)
        self._send(Command.LINK_ASK, numbers)
        drafted = self._asked(asked)
        if isinstance(drafted, Proposal):
            self._proposed = True
            self._pacing.won()
        elif isinstance(drafted.reason, DropReason):
            self._pacing.lost(drafted.reason)
        away = isinstance(drafted, Miss) and drafted.reason is MissReason.NO_CONNECTION
        if away and connect:
            connecting.failed(client.clock())
        elif not away:
            connecting.succeeded()
        return drafted

    def skip(self) -> None:
        """Begin the next round without asking, on every link."""
        self._send(Command.LINK_SKIP)
        if self._request is not None:
            self._request.skip()
        if self.owner != EVERY:
            self._stand(drive(self._links.group, standing(self._request, self.owner)))

    def commit(self, outcome: Outcome, accepted: int, tokens: Sequence[int]) -> None:
        """End the round; the other ranks hear of it with the next command."""
        self._proposed = False
        if self._request is not None:
            self._request.commit(outcome, accepted, tokens)
        self._commit = [1, outcome, accepted, tokens[-1]]

    def close(self) -> None:
        """Free the request on every link; may be called twice."""
        if self._open:
            self._open = False
            self._links.ended(self.owner, self._slot)
            self._send(Command.LINK_END)
            if self._request is not None:
                self._request.close()

    def _asked(self, asked: Asked) -> Drafted:
        links = self._links
        group, client = links.group, links.client
        if self.owner == EVERY:
            assert self._request is not None
            key = self._key if links.audit else None
            return drive(group, shard_round(group, client, self._request, asked, key))
        drafted, stands = drive(group, owned_round(group, client, self._request, self.owner, asked))
        self._stand(stands)
        return drafted

    def _stand(self, stands: Standing) -> None:
        self._stands = stands
        traffic = self.traffic
        traffic.sent, traffic.received = stands.sent, stands.received
        traffic.audit_seconds = stands.audit_seconds

    def _send(self, command: Command, numbers: Sequence[int] = ()) -> None:
        send_command(self._links.group, command, [self.number, *self._commit, *numbers])
        self._commit = [0] * _COMMIT


class LinkFollower:
    """Any other rank's link: it does what the leader says."""

    def __init__(self, group: Collective, client: RankClient) -> None:
        """Take this rank's link."""
        self._group = group
        self._client = client
        self._owners: dict[int, int] = {}
        self._requests: dict[int, ClientRequest] = {}
        self._drafts: dict[int, ShardDraft | Proposal] = {}

    def draft(self, number: int) -> ShardDraft | Proposal | None:
        """Return what this rank has of a request's proposal, if its round has one.

        Its shard, or of whole q's all that the owner has, and the tokens elsewhere.
        """
        return self._drafts.get(number)

    def follow(self, command: Command, numbers: Sequence[int]) -> None:
        """Carry out one of the leader's commands about links. Raises DivergedError."""
        number = numbers[0]
        if command is Command.LINK_OPEN:
            session, slot, owner, key, *prompt = numbers[1:]
            if (owner == EVERY) is (self._client.shard is None):
                raise DivergedError("the leader's link brings another kind of q than this rank's")
            self._owners[number] = owner
            if owner in (EVERY, self._group.rank):
                begun = self._client.begin(session, slot, prompt, unsigned(key))
                self._requests[number] = begun
            return
        request = self._requests.get(number)
        self._drafts.pop(number, None)
        committed, outcome, accepted, token = numbers[1 : 1 + _COMMIT]
        if committed and request is not None:
            request.commit(Outcome(outcome), accepted, [token])
        if command is Command.LINK_ASK:
            *policy, wait, connect, version = numbers[1 + _COMMIT : 4 + _COMMIT + POLICY_NUMBERS]
            asked = Asked(policy_of(policy), number_of(wait), number_of(connect), version)
            self._ask(number, request, asked)
        elif command is Command.LINK_SKIP:
            if request is not None:
                request.skip()
            if (owner := self._owners[number]) != EVERY:
                drive(self._group, standing(request, owner))
        elif command is Command.LINK_CONTEXT:
            if request is not None:
                request.use_context(numbers[1 + _COMMIT])
        elif command is Command.LINK_END:
            del self._owners[number]
            if request is not None:
                del self._requests[number]
                request.close()
        else:
            raise DivergedError(f"{command.name} is no command about links")

    def close(self) -> None:
        """End this rank's connection."""
        self._client.close()

    def _ask(self, number: int, request: ClientRequest | None, asked: Asked) -> None:
        group, client, owner = self._group, self._client, self._owners[number]
        if owner == EVERY:
            assert request is not None
            drafted = drive(group, shard_round(group, client, request, asked, None))
            if isinstance(drafted, ShardProposal):
                self._drafts[number] = drafted.draft
            return
        drafted, _ = drive(group, owned_round(group, client, request, owner, asked))
        if isinstance(drafted, Proposal):
            self._drafts[number] = drafted
