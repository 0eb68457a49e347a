"""One request's drafting over a client: whether a round may ask, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from draftwire.errors import ProtocolError
from draftwire.session.proposal import Dropped, Proposal, Received
from draftwire.session.sent_states import StateRows
from draftwire.session.slot_buffers import ReplySlots
from draftwire.session.verifier_session import VerifierSession
from draftwire.verifier.connection import ClientLock
from draftwire.verifier.counters import Traffic
from draftwire.verifier.miss import Drafted, Miss, MissReason
from draftwire.verifier.reconnect import RoundPacing
from draftwire.verifier.states import Projection, StateSource, rows_for
from draftwire.wire.agreement import Agreed
from draftwire.wire.checks import require_policy
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Outcome


class RequestClient(Protocol):
    """What a request needs of the client that it belongs to."""

    @property
    def lock(self) -> ClientLock:
        """Held while anything of a request or the connection changes."""

    @property
    def vocab_size(self) -> int:
        """V of the target."""

    def propose_all(
        self, asked: Sequence[tuple[ClientRequest, ProposalPolicy]], until: float | None = None
    ) -> list[Drafted]:
        """Ask for the proposals of several requests."""

    def keep_alive(self) -> None:
        """Say that this side is there, where it has long been silent."""

    def book(self, result: Proposal | Dropped, round_trip: float | None) -> None:
        """Count how a round that was asked has ended."""

    def end(self, request: ClientRequest) -> None:
        """Free a request on both sides."""


class ClientRequest:
    """One request's drafting over a ``DraftClient``."""

    def __init__(self, client: RequestClient, asking: VerifierSession) -> None:
        """Made by ``DraftClient.open``."""
        self.traffic = Traffic()
        self.asking = asking
        self._client = client
        self._pacing = RoundPacing()
        self._vocab_size = client.vocab_size
        self._unshared = False  # an id outside the drafter's vocabulary is committed
        self._open = True
        self._states: StateSource | None = None
        # What was last found to fit: neither changes once it is made.
        self._asked: ProposalPolicy | None = None
        self._offered: ProposalPolicy | None = None  # what became of it
        self._limits: Agreed | None = None

    @property
    def generation(self) -> int:
        """The generation of the latest round."""
        return self.asking.generation

    @property
    def round(self) -> int:
        """The round id of the latest round."""
        return self.asking.round

    def connected(self, agreed: Agreed, slots: ReplySlots) -> None:
        """There is a connection (again), with these limits, and these slots for replies."""
        self.asking.connected(agreed, slots)
        self._keep_states()

    def use_states(self, source: StateSource) -> None:
        """Send the states of this request's target from now on, where the drafter reads them."""
        with self._client.lock:
            self._states = source
            self._keep_states()

    def use_context(self, version: int) -> None:
        """Ask under this context version from now on; see :class:`DraftRequest`."""
        with self._client.lock:
            dropped = self.asking.use_context(version)
            if dropped is not None:
                self._client.book(dropped, None)

    def propose(self, policy: ProposalPolicy) -> Drafted:
        """Begin the next round and ask for at most ``policy.depth`` drafts after the prefix."""
        return self._client.propose_all([(self, policy)])[0]

    def take(self, received: Received, size: int, now: float) -> Proposal | Dropped | None:
        """Take what came for this request, ``size`` bytes; returns as ``VerifierSession.take``."""
        self.traffic.received += size
        return self.asking.take(received, now)

    def drafted(self, result: Proposal | Dropped) -> Drafted:
        """Book how a round that was asked has ended."""
        asking = self.asking
        self.traffic.audit_seconds = asking.audit_seconds
        self._client.book(result, asking.round_trip)
        if isinstance(result, Proposal):
            self._pacing.won()
            return result
        self._pacing.lost(result.reason)
        return Miss(result.reason, result.detail, result.drafted)

    def skip(self) -> None:
        """Begin the next round without asking."""
        with self._client.lock:
            self.asking.skip()
            self._client.keep_alive()

    def commit(self, outcome: Outcome, accepted: int, tokens: Sequence[int]) -> None:
        """End the round: ``tokens`` are committed, the first ``accepted`` of them drafts."""
        token = None if outcome is Outcome.ENDED else tokens[-1]
        with self._client.lock:
            self.asking.commit(accepted, outcome, token)
        if token is not None and token >= self._vocab_size:
            self._unshared = True

    def states(self, agreed: Agreed, projection: Projection | None) -> StateRows:
        """Return the rows of states that the next STEP holds."""
        rows = rows_for(self.asking.states_wanted, self._states, projection, agreed)
        self.traffic.states += len(rows.data)
        return rows

    def _keep_states(self) -> None:
        agreed = self.asking.agreed
        if self._states is not None and agreed is not None and agreed.states is not None:
            self._states.keep(agreed.states.layers)

    def close(self) -> None:
        """Free the request on both sides; may be called twice."""
        with self._client.lock:
            if self._open:
                self._open = False
                self._client.end(self)

    def pauses(self) -> Miss | None:
        """Return why this round does not ask, wherever the drafter is; call it once a round."""
        if self._unshared:
            return Miss(MissReason.UNSHARED_TOKEN)
        reason = self._pacing.pauses()
        return None if reason is None else Miss(reason)

    def allowed(
        self, policy: ProposalPolicy, agreed: Agreed | Miss
    ) -> tuple[Miss | None, ProposalPolicy]:
        """Return why this round may not ask, or None, and the policy at the depth that it may.

        agreed: with the drafter, or why nothing is. Where it does not mirror processors, the policy
        has none.
        """
        room = self.asking.room()
        if policy is self._asked and agreed is self._limits and policy.depth <= room:
            assert self._offered is not None
            return None, self._offered
        if isinstance(agreed, Miss):
            return agreed, policy
        if not self.asking.has_slot(agreed):
            return Miss(MissReason.NO_SLOT), policy
        if room < 1:
            return Miss(MissReason.CONTEXT_LIMIT), policy
        allowed = policy if policy.depth <= room else replace(policy, depth=room)
        if allowed.processors and not agreed.mirrors:
            allowed = replace(allowed, processors=b"")
        try:
            require_policy(agreed, allowed)
        except ProtocolError as error:
            return Miss(MissReason.NOT_OFFERED, str(error)), policy
        if allowed.depth == policy.depth:
            self._asked, self._offered, self._limits = policy, allowed, agreed
        return None, allowed
