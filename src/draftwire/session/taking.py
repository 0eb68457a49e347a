"""What comes for the round in flight: a whole proposal, or why it is lost (P13, P14, P16)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.session.acked_prefix import AckedPrefix
from draftwire.session.pending_round import PendingRound
from draftwire.session.prefix import Prefix
from draftwire.session.proposal import Dropped, Proposal, Received
from draftwire.session.reasons import DECLINED, LOST_CODES, DropReason, reason_of
from draftwire.session.slot_buffers import ReplySlots, SlotHandle
from draftwire.session.state_table import Input, State, advance
from draftwire.wire.messages import Complete, ErrorMessage, Reply
from draftwire.wire.registry import Status

_ANSWERS: Final = (Reply, Complete, ErrorMessage)


class Taking:
    """The half of ``VerifierSession`` that takes what comes.

    Nothing that a peer sends raises: it is dropped under a reason and counted in ``drops``.
    """

    def __init__(
        self,
        session: int,
        prefix: Prefix,
        slots: ReplySlots | None,
        *,
        audit: bool,
        clock: Callable[[], float] | None,
    ) -> None:
        self.session = session
        self.generation = 1
        self.round = 0
        self.state = State.IDLE
        self.drops: Counter[DropReason] = Counter()
        self.audit_seconds = 0.0
        self.audited = 0
        self.round_trip: float | None = None  # seconds from the last ask to its whole proposal
        self.context_limit = False  # the drafter has said that its context is full
        self._audit = audit
        self._clock = clock
        self._prefix = prefix
        self._flight: PendingRound | None = None
        self._proposal: Proposal | None = None
        self._held = AckedPrefix()
        self._hold = SlotHandle(slots or ReplySlots.alone())

    @property
    def deadline(self) -> float | None:
        """When the round in flight is due, in the seconds of ``now``; None = nothing in flight."""
        return None if self._flight is None else self._flight.deadline

    def due(self, now: float) -> bool:
        """Say whether the round in flight has reached its deadline."""
        return self._flight is not None and now >= self._flight.deadline

    def take(self, received: Received, now: float) -> Proposal | Dropped | None:
        """Take what came for this session.

        Returns the whole proposal, or why this round has lost it, or None: more must come, or what
        came belongs to no round in flight (counted as STALE or DUPLICATE).
        """
        message = received.message
        if not isinstance(message, _ANSWERS):
            return self._drop(DropReason.UNEXPECTED, f"{type(message).__name__} for a session")
        if self._is_stale(message):
            return None
        try:
            if isinstance(message, ErrorMessage):
                return self._take_error(message)
            if isinstance(message, Reply):
                self._take_reply(message, received)
                return None
            return self._take_complete(message, now)
        except ProtocolError as error:
            return self._drop(reason_of(error), str(error))

    def give_up(self, reason: DropReason = DropReason.MISSED_DEADLINE) -> Dropped:
        """Drop this round's proposal, wherever it is; it is never used afterwards (P16)."""
        self.state = advance(self.state, Input.GIVE_UP)
        return self._lost(reason)

    # inside

    def _is_stale(self, message: Reply | Complete | ErrorMessage) -> bool:
        """Count and drop what is of another round than the one in flight, and was asked once."""
        generation, round_ = message.generation, message.round
        latest = round_ == self.round and generation == self.generation
        if (latest and self._flight is not None) or message.session != self.session:
            return False
        if (generation, round_) > (self.generation, self.round):
            return False
        again = latest and self._proposal is not None
        self.state = advance(self.state, Input.STALE)
        self.drops[DropReason.DUPLICATE if again else DropReason.STALE] += 1
        return True

    def _take_reply(self, reply: Reply, received: Received) -> None:
        flight = self._require_flight()
        flight.check_identity(reply)
        if not self._is_again(flight, received):
            out = self._hold.arrive().out(flight.step.policy.depth)
            flight.hold(reply, received, out, self._hold.lease)
            self.state = advance(self.state, Input.REPLY)

    def _is_again(self, flight: PendingRound, received: Received) -> bool:
        """Count and drop a REPLY that is here already, byte for byte."""
        if self.state is not State.REPLIED:
            return False
        flight.check_same(received)
        self.state = advance(self.state, Input.STALE)
        self.drops[DropReason.DUPLICATE] += 1
        return True

    def _take_complete(self, complete: Complete, now: float) -> Proposal | Dropped:
        flight = self._require_flight()
        flight.check_identity(complete)
        if complete.status is not Status.OK:
            return self._take_decline(complete.status)
        self._require_reply()
        flight.check_whole(complete)
        return self._whole(flight, now)

    def _require_reply(self) -> None:
        if self.state is not State.REPLIED:
            raise ProtocolError(
                ProtocolErrorCode.BAD_FIELD, "COMPLETE says OK and no REPLY came", field="status"
            )

    def _whole(self, flight: PendingRound, now: float) -> Proposal:
        if self._audit:
            self._audit_draws(flight)
        self._hold.publish()
        self.state = advance(self.state, Input.COMPLETE)
        self._held.shown(self.generation, self.round, flight.step.anchor + 1)
        self.round_trip = now - flight.asked_at
        self._flight, self._proposal = None, flight.proposal()
        return self._proposal

    def _audit_draws(self, flight: PendingRound) -> None:
        if self._clock is None:
            self.audited += flight.audit()
            return
        began = self._clock()
        try:
            self.audited += flight.audit()
        finally:
            self.audit_seconds += self._clock() - began

    def _take_decline(self, status: Status) -> Dropped:
        self.state = advance(self.state, Input.DECLINE)
        self.context_limit |= status is Status.CONTEXT_LIMIT
        return self._lost(DECLINED[status])

    def _take_error(self, message: ErrorMessage) -> Dropped:
        if message.session != self.session:
            raise ProtocolError(ProtocolErrorCode.WRONG_SESSION, "an ERROR of another session")
        self.state = advance(self.state, Input.REFUSE)
        self._held.lose()  # whatever it holds, the next STEP sends everything again
        lost = message.code in LOST_CODES
        detail = f"{message.code.name.lower()} {message.field}".rstrip()
        return self._lost(DropReason.LOST_STATE if lost else DropReason.REFUSED, detail)

    def _drop(self, reason: DropReason, detail: str) -> Dropped | None:
        """Book a violation; it costs the round its proposal if one is in flight."""
        if self._flight is None:
            self.drops[reason] += 1
            return None
        self.state = advance(self.state, Input.GIVE_UP)
        return self._lost(reason, detail)

    def _lost(self, reason: DropReason, detail: str = "") -> Dropped:
        proposal = self._proposal
        drafted = 0 if proposal is None else len(proposal.tokens)
        if self._flight is not None:
            drafted = self._flight.step.policy.depth
        self._forget()
        self.drops[reason] += 1
        return Dropped(reason, self.generation, self.round, drafted, detail)

    def _withdraw(self) -> None:
        if self._flight is not None or self._proposal is not None:
            self.drops[DropReason.WITHDRAWN] += 1
        self._forget()

    def _forget(self) -> None:
        self._hold.give_up()
        self._flight, self._proposal = None, None

    def _require_flight(self) -> PendingRound:
        if self._flight is None:
            raise ProtocolError(
                ProtocolErrorCode.WRONG_ROUND, "a reply to a round that was never asked"
            )
        return self._flight
