"""One rank's link to the drafter: it asks and waits as the leader of the ranks says (P29)."""

from __future__ import annotations

from collections.abc import Sequence

from draftwire.kernels.shards.shard import Shard
from draftwire.session.proposal import Dropped, Proposal
from draftwire.session.verifier_session import VerifierSession
from draftwire.transport.security import Security
from draftwire.transport.tcp import Address
from draftwire.verifier.remote import RemoteDrafter
from draftwire.verifier.request import ClientRequest
from draftwire.wire.hello import ANY_IDENTITY
from draftwire.wire.identity import ModelIdentity
from draftwire.wire.messages import ProposalPolicy


class RankClient(RemoteDrafter):
    """A connection whose rank decides nothing by itself.

    When to connect, which round asks, and when it has waited long enough is said by whoever leads
    the ranks; see :class:`draftwire.engines.parallel.links.RankLinks`. shard: what every reply
    holds, of the real vocabulary; None = whole q's, of the requests that this rank owns. deadline:
    seconds, the leader's for a round. audit: recompute the draws of whole q's (A22); one shard does
    not say what a word draws.
    """

    def __init__(
        self,
        address: Address | tuple[str, int] | str,
        target: ModelIdentity,
        shard: Shard | None,
        *,
        deadline: float,
        connect_timeout: float = 1.0,
        audit: bool = True,
        max_sessions: int = 64,
        max_depth: int = 16,
        max_support: int = 1024,
        draft_identity: bytes = ANY_IDENTITY,
        security: Security | None = None,
    ) -> None:
        """Remember the address; nothing is sent yet. Raises ConfigurationError."""
        super().__init__(
            address,
            target,
            deadline=deadline,
            connect_timeout=connect_timeout,
            audit=audit and shard is None,
            max_sessions=max_sessions,
            max_depth=max_depth,
            max_support=max_support,
            draft_identity=draft_identity,
            security=security,
            shard_count=1 if shard is None else shard.size,
        )
        self.shard = shard
        self.may_connect = False

    def begin(self, session: int, slot: int, prompt: Sequence[int], key: int) -> ClientRequest:
        """Begin a request on this link, under the session and slot that the leader names.

        key: the request's proposal key; on the links of ranks that do not draw, its link key.
        """
        asking = VerifierSession(
            session,
            slot,
            prompt,
            key,
            self.agreed,
            audit=self.audit,
            clock=self.clock,
            shard=self.shard,
            slots=self.slots,
        )
        asking.drops = self.counters.drops
        request = ClientRequest(self, asking)
        self._requests[session] = request
        return request

    def renew(self, request: ClientRequest) -> None:
        """Let the next STEP open a new generation, as it does on every other rank's link."""
        for reset in request.asking.reset():
            if self._link is not None:
                self._link.send(reset)

    def ask(self, request: ClientRequest, policy: ProposalPolicy, seconds: float) -> None:
        """Begin the next round and send its STEP, for so long at most; then call ``wait``."""
        now = self.clock()
        try:
            self._say([(request, request.asking, policy)], now, now + seconds)
        except BaseException:
            self._interrupted()
            raise

    def wait(self, request: ClientRequest, seconds: float) -> Proposal | Dropped | None:
        """Wait for so long for what was asked; None while it has not come."""
        try:
            came = self._listen(self.clock() + seconds)
        except BaseException:
            self._interrupted()
            raise
        return self._booked(request) if came else None

    def give_up(self, request: ClientRequest) -> Proposal | Dropped:
        """Wait no longer: the leader's deadline has passed."""
        self._too_late()
        return self._booked(request)

    def _booked(self, request: ClientRequest) -> Proposal | Dropped:
        """Return how the round has ended on this link, for whoever watches it as well."""
        result = self._rounds.take(request.asking.session)
        if isinstance(result, Dropped):
            self.lost_round(result)
        elif request.asking.round_trip is not None:
            self.counters.round_trip.add(request.asking.round_trip)
        return result

    def _may_try(self) -> bool:
        """As the leader says."""
        return self.may_connect
