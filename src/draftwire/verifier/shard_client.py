"""One rank's link to the drafter's rank that has its shard of every q (P29)."""

from __future__ import annotations

from collections.abc import Sequence

from draftwire.errors import (
    ConfigurationError,
    DrafterUnavailableError,
    ProtocolError,
    TransportError,
)
from draftwire.kernels.shards import Shard
from draftwire.session.asking import AskingSession
from draftwire.session.proposal import Dropped, Proposal
from draftwire.transport.security import Security
from draftwire.transport.tcp import Address
from draftwire.verifier.remote import RemoteDrafter
from draftwire.verifier.request import ClientRequest
from draftwire.wire.identity import ModelIdentity
from draftwire.wire.messages import ProposalPolicy


class ShardClient(RemoteDrafter):
    """A connection that carries one shard of every reply; its rank decides nothing by itself.

    When to connect, which round asks and for how long it is waited is said by whoever leads the
    ranks; see :class:`draftwire.engines.ranks.links.RankLinks`. shard: of the real vocabulary.
    deadline: seconds, the longest that a round waits whatever the leader says.
    """

    def __init__(
        self,
        address: Address | tuple[str, int] | str,
        target: ModelIdentity,
        shard: Shard,
        *,
        deadline: float,
        connect_timeout: float = 1.0,
        max_sessions: int = 64,
        max_depth: int = 16,
        max_support: int = 1024,
        security: Security | None = None,
    ) -> None:
        """Remember the address; nothing is sent yet. Raises ConfigurationError."""
        super().__init__(
            address,
            target,
            deadline=deadline,
            connect_timeout=connect_timeout,
            audit=False,  # one shard does not say what a word draws: the settling audits
            max_sessions=max_sessions,
            max_depth=max_depth,
            max_support=max_support,
            security=security,
            shard_count=shard.size,
        )
        self.shard = shard
        self.may_connect = False

    def open_shard(
        self, session: int, slot: int, prompt: Sequence[int], proposal_key: int
    ) -> ClientRequest:
        """Begin a request on this link, under the session and slot that it has on all of them."""
        asking = AskingSession(
            session,
            slot,
            prompt,
            proposal_key,
            self.agreed,
            audit=False,
            shard=self.shard,
            slots=self.slots,
        )
        asking.drops = self.counters.drops
        request = ClientRequest(self, asking)
        self._requests[session] = request
        return request

    def reach(self, until: float | None = None) -> str | None:
        """Connect if that is wanted now; returns why there is no connection, or None."""
        self._catch_up()
        if self._link is not None:
            return None
        if not self.may_connect:
            return "not tried again yet"
        try:
            self.connect(until)
        except (
            TransportError,
            ProtocolError,
            DrafterUnavailableError,
            ConfigurationError,
        ) as error:
            self.counters.unreachable += 1
            self.counters.error(error)
            self._journal.away(error)
            return str(error)
        return None

    def renew(self, request: ClientRequest) -> None:
        """Let the next STEP open a new generation, as it does on every other rank's link."""
        for reset in request.asking.reset():
            if self._link is not None:
                self._link.send(reset)

    def ask_shard(
        self, request: ClientRequest, policy: ProposalPolicy, seconds: float
    ) -> Proposal | Dropped:
        """Ask for this rank's shard and wait so long for it at most."""
        return self._ask([(request, policy)], self.clock() + seconds)[0]
