"""One rank's link to the drafter: it asks and waits as the leader of the ranks says (P29)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from draftwire.kernels.shards.shard import Shard
from draftwire.session.proposal import Dropped, Proposal
from draftwire.transport.security import Security
from draftwire.transport.tcp import Address
from draftwire.verifier.config import VerifierConfig, configured
from draftwire.verifier.remote import RemoteDrafter
from draftwire.verifier.request import ClientRequest
from draftwire.wire.identity import ModelIdentity
from draftwire.wire.messages import ProposalPolicy


class RankClient(RemoteDrafter):
    """A connection whose rank decides nothing by itself.

    When to connect, which round asks, and when it has waited long enough is said by the leader of
    the ranks; see :class:`draftwire.engines.parallel.links.RankLinks`. shard: what every reply
    holds, of the real vocabulary; None = whole q's, of the requests that this rank owns. config,
    options: as of :class:`RemoteDrafter`, with the leader's deadline for a round; the draws of
    whole q's are audited here, since one shard does not say what a word draws.
    """

    def __init__(
        self,
        address: Address | tuple[str, int] | str,
        target: ModelIdentity,
        shard: Shard | None,
        config: VerifierConfig | None = None,
        *,
        security: Security | None = None,
        **options: Any,
    ) -> None:
        config = configured(config, **options)
        if shard is not None:
            config = replace(config, audit=False, shard_count=shard.size)
        super().__init__(address, target, config, security=security)
        self.shard = shard
        self.may_connect = False

    def begin(self, session: int, slot: int, prompt: Sequence[int], key: int) -> ClientRequest:
        """Begin a request on this link, under the session and slot that the leader names.

        key: the request's proposal key; on the links of ranks that do not draw, its link key.
        """
        return self._begin(session, slot, prompt, key, clock=self.clock, shard=self.shard)

    def renew(self, request: ClientRequest) -> None:
        """Let the next STEP open a new generation, as it does on every other rank's link."""
        with self.lock:
            for reset in request.asking.reset():
                self.connection.queue(reset)

    def ask(self, request: ClientRequest, policy: ProposalPolicy, seconds: float) -> None:
        """Begin the next round and send its STEP, for so long at most; then call ``wait``."""
        now = self.clock()
        with self.lock:
            try:
                self._send([(request, request.asking, policy)], now, now + seconds)
            except BaseException:
                self._interrupted([request.asking.session])
                raise

    def wait(self, request: ClientRequest, seconds: float) -> Proposal | Dropped | None:
        """Wait for so long for what was asked; None while it has not come."""
        sessions = [request.asking.session]
        with self.lock:
            try:
                came = self._receive(self.clock() + seconds, sessions)
            except BaseException:
                self._interrupted(sessions)
                raise
            return self._result(request) if came else None

    def give_up(self, request: ClientRequest) -> Proposal | Dropped:
        """Wait no longer: the leader's deadline has passed."""
        with self.lock:
            self._too_late([request.asking.session])
            return self._result(request)

    def _result(self, request: ClientRequest) -> Proposal | Dropped:
        """Return how the round has ended on this link, and book it."""
        result = self._rounds.take(request.asking.session)
        self.book(result, request.asking.round_trip)
        return result

    def _may_connect(self) -> bool:
        """As the leader says."""
        return self.may_connect
