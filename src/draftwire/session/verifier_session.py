"""The verifier's half of one session: asks, validates whole, gives up, commits (P9-P16)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from draftwire.errors import ConfigurationError, ProtocolError, ProtocolErrorCode
from draftwire.kernels.shards.shard import Shard
from draftwire.session.acked_prefix import AckedPrefix
from draftwire.session.pending_round import PendingRound
from draftwire.session.prefix import Prefix
from draftwire.session.proposal import (
    NO_RIDER,
    Dropped,
    Proposal,
    Received,
    require_fit,
)
from draftwire.session.reasons import DECLINED, LOST_CODES, DropReason, reason_of
from draftwire.session.sent_states import NO_STATES, SentStates, StateRows
from draftwire.session.session_states import Input, State, advance
from draftwire.session.shards import PendingShardRound
from draftwire.session.slot_buffers import ReplySlots, SlotHandle
from draftwire.wire.agreement import Agreed, require_carried
from draftwire.wire.messages import (
    Cancel,
    Commit,
    CommitRider,
    Complete,
    ErrorMessage,
    ProposalPolicy,
    Reply,
    Reset,
    Step,
)
from draftwire.wire.registry import Layout, Outcome, Status

__all__ = ["Dropped", "Proposal", "Received", "VerifierSession"]

_ANSWERS: Final = (Reply, Complete, ErrorMessage)


class VerifierSession:
    """One request as its verifier sees it; knows no socket, no clock and no model.

    A round is ``ask`` (or ``skip``), then ``take`` until a :class:`Proposal` or a :class:`Dropped`
    comes, or ``give_up``; then ``commit``. Calls out of that order raise ProtocolError
    (UNEXPECTED_MESSAGE), wrong arguments ValueError; what a peer sends never raises: it is dropped
    under a reason and counted in ``drops``. What arrives after ``give_up`` is never used, whatever
    is in it (law 4).

    clock: seconds, to time the audit with; None = not timed. shard: what a reply holds where it is
    one of several; proposals are then of that shard alone and not audited here (P29). slots: where
    replies go, shared by the sessions of one group; a proposal's dense rows lie in its slot until
    the round is committed, or dropped. None = memory of their own.
    """

    def __init__(
        self,
        session: int,
        slot: int,
        prompt: Sequence[int],
        proposal_key: int,
        agreed: Agreed | None,
        *,
        context_version: int = 0,
        audit: bool = True,
        clock: Callable[[], float] | None = None,
        shard: Shard | None = None,
        slots: ReplySlots | None = None,
    ) -> None:
        if not prompt:
            raise ValueError("a session begins with at least one committed token")
        self.session = session
        self.slot = slot
        self.generation = 1
        self.round = 0
        self.state = State.IDLE
        self.context_version = context_version
        self.drops: Counter[DropReason] = Counter()
        self.audit_seconds = 0.0
        self.audited = 0
        self.round_trip: float | None = None  # seconds from the last ask to its whole proposal
        self.context_limit = False  # the drafter has said that its context is full
        self._audit = audit
        self._clock = clock
        self._agreed = agreed
        self._proposal_key = proposal_key
        self._prefix = Prefix(prompt)
        self._acked = AckedPrefix()
        self._states = SentStates()
        self._handle = SlotHandle(slots or ReplySlots.alone())
        self._pending: PendingRound | None = None
        self._proposal: Proposal | None = None
        self._last: CommitRider | None = None  # how the round before ended
        self._sent_commit: CommitRider | None = None  # the last one that went into a COMMIT
        self._last_token: int | None = None  # and the token that was drawn in it
        self._checked: tuple[object, ...] = ()  # what was last found to fit
        self._pending_of = PendingRound if shard is None else partial(PendingShardRound, part=shard)

    # what is committed

    def __len__(self) -> int:
        """Committed tokens."""
        return len(self._prefix)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The committed prefix."""
        return self._prefix.tokens()

    @property
    def prefix_digest(self) -> bytes:
        """BLAKE2b-128 of the committed prefix."""
        return self._prefix.digest()

    @property
    def agreed(self) -> Agreed | None:
        """What HELLO agreed on the present connection; None while there is none."""
        return self._agreed

    @property
    def opens(self) -> bool:
        """Whether the next ``ask`` opens a generation, and so sends the whole prefix."""
        return self._acked.length is None

    @property
    def states_wanted(self) -> tuple[int, int]:
        """Where the rows of states of the next ``ask`` begin, and how many they are at most."""
        agreed = self._agreed
        if agreed is None or agreed.states is None:
            return 0, 0
        end = 0 if self.opens else self._states.end
        return end, min(self._states.share(agreed.hidden_rows), max(len(self) - 1 - end, 0))

    def room(self) -> int:
        """Return the depth that still fits into the drafter's context; 0 = ask no more."""
        if self._agreed is None or self.context_limit:
            return 0
        depth = self._handle.slots.depth or self._agreed.max_depth
        left = self._agreed.max_context - len(self._prefix)
        return depth if depth <= left else max(left, 0)

    def has_slot(self, agreed: Agreed) -> bool:
        """Whether the slot of this session is one of those of the connection."""
        limits = (agreed.max_slots, agreed.max_sessions, self._handle.slots.requests)
        return all(limit is None or self.slot < limit for limit in limits)

    # a round

    def ask(
        self,
        policy: ProposalPolicy,
        now: float,
        deadline: float,
        *,
        states: StateRows = NO_STATES,
    ) -> Step:
        """Begin the next round and return its STEP, with the tokens that the drafter lacks.

        deadline: in the seconds of ``now``, fixed here, before anything is drawn (law 4). states:
        rows that go along; see ``states_wanted``. Raises
        ConfigurationError if HELLO did not agree to the policy or the context has no room.
        """
        agreed, committed = self._agreed, len(self._prefix)
        if agreed is None:
            raise ConfigurationError("there is no connection to ask on")
        if (policy, agreed, self._handle.slots) != self._checked:
            self._check_policy(policy, agreed)
        if committed + policy.depth > agreed.max_context:
            raise ConfigurationError(
                f"{committed} tokens and {policy.depth} drafts do not fit into the drafter's"
                f" context of {agreed.max_context}"
            )
        following = advance(self.state, Input.OPENING if self.state is State.IDLE else Input.STEP)
        self._handle.take()
        if self._acked.length is None and self.round:
            # Nothing that the drafter may still hold is built upon: a new generation.
            following = advance(advance(self.state, Input.RESET), Input.OPENING)
            self.generation, self.round, self._last = self.generation + 1, 0, None
        self.state = following
        self.round += 1
        step = self._step(policy, states)
        if self._acked.length is None:
            self._acked.opening(self.generation)
            self._states.lose()
        self._pending = self._pending_of(step, agreed.vocab_size, asked_at=now, deadline=deadline)
        self._last = None
        return step

    def retry(self) -> Step:
        """Return the STEP in flight once more; it encodes to the same bytes (P16)."""
        if self._pending is None:
            raise ProtocolError(
                ProtocolErrorCode.UNEXPECTED_MESSAGE, "there is no round in flight to retry"
            )
        self.state = advance(self.state, Input.RETRY)
        return self._pending.step

    def skip(self) -> None:
        """Begin the next round without asking: it is target-only."""
        self.state = advance(self.state, Input.SKIP)
        self.round += 1
        self._last = None

    def use_context(self, version: int) -> Dropped | None:
        """Ask under another context version from now on: p depends on something else (P13).

        A proposal asked under the one before is dropped, in flight or whole, and the round goes on
        without it. Returns what was dropped.
        """
        if version == self.context_version:
            return None
        self.context_version = version
        if self._pending is None and self._proposal is None:
            return None
        return self.give_up(DropReason.WRONG_CONTEXT)

    def disconnected(self) -> Dropped | None:
        """The connection has ended; the next ``ask`` opens a new generation.

        A proposal that is whole already stays usable. Returns what the round lost, if anything.
        """
        dropped = self.give_up(DropReason.DISCONNECTED) if self._pending is not None else None
        self._acked.end()
        self._agreed = None
        return dropped

    def connected(self, agreed: Agreed, slots: ReplySlots | None = None) -> None:
        """A connection with these limits is there (again); call it with no round in flight.

        A proposal that is whole stays in the slots that it lies in until its round is over.
        """
        self._agreed = agreed
        self._handle.slots = slots or self._handle.slots
        self.context_limit = False

    def commit(self, accepted: int, outcome: Outcome, token: int | None) -> None:
        """End the round: ``accepted`` drafts and then ``token`` are committed.

        token: the correction, bonus or target-only id; None with ENDED. ValueError when these do
        not fit the round.
        """
        proposal = self._proposal
        drafts = () if proposal is None else proposal.tokens
        require_fit(outcome, accepted, len(drafts), token)
        self.state = advance(self.state, Input.COMMIT)
        kept = drafts[:accepted]
        self._prefix.extend(kept if token is None else (*kept, token))
        self._last, self._last_token = CommitRider(self.round, accepted, outcome), token
        if proposal is not None:
            self._handle.release()
            self._proposal = None

    # what comes

    @property
    def deadline(self) -> float | None:
        """When the round in flight is due, in the seconds of ``now``; None = nothing in flight."""
        return None if self._pending is None else self._pending.deadline

    def due(self, now: float) -> bool:
        """Say whether the round in flight has reached its deadline."""
        return self._pending is not None and now >= self._pending.deadline

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

    # the end

    def commit_message(self) -> Commit | None:
        """Return COMMIT for the round that ended last, where no STEP follows soon (P15).

        None when the drafter made no proposal in it, and so has nothing to be told, or when the
        token is an id of the target's own padding, which no COMMIT can carry (V18).
        """
        rider, token = self._last, self._last_token
        if rider is None or self._acked.round != self.round or self._agreed is None:
            return None
        if token is not None and token >= self._agreed.vocab_size:
            return None
        self._sent_commit = rider
        return Commit(
            session=self.session,
            generation=self.generation,
            round=rider.round,
            outcome=rider.outcome,
            accepted=rider.accepted,
            token=-1 if token is None else token,
            committed=len(self._prefix),
            prefix_digest=self._prefix.digest(),
        )

    def finish(self) -> list[Commit | Cancel]:
        """End the session and return what the drafter is to be told: the last commit, CANCEL.

        A commit that ``commit_message`` has returned before is not told again.
        """
        commit = self.commit_message() if self._last is not self._sent_commit else None
        return [*([] if commit is None else [commit]), *self.cancel()]

    def cancel(self) -> list[Cancel]:
        """End the session, in any state; nothing more is used. Returns what frees the drafter."""
        self.state = advance(self.state, Input.CANCEL)
        self._withdraw()
        return [Cancel(self.session, generation) for generation in self._acked.end()]

    def reset(self) -> list[Reset]:
        """End the generation in any live state; the committed prefix stays, the drafter's goes.

        Every word of the new generation has an address of its own, so nothing is drawn twice.
        """
        following = self.generation + 1
        self.state = advance(self.state, Input.RESET)
        self._withdraw()
        resets = [
            Reset(self.session, generation, following) for generation in self._acked.generations
        ]
        if resets:
            self._acked.opening(following)
        self._acked.lose()
        self._last = None
        self.generation, self.round = following, 0
        return resets

    # inside

    def _step(self, policy: ProposalPolicy, states: StateRows) -> Step:
        """Return the STEP of this round, with the tokens that the drafter lacks."""
        rider = self._last or NO_RIDER
        # A rider that accepts drafts is of the round whose proposal has shown what is held.
        base = 0 if self._acked.length is None else self._acked.length + rider.accepted
        if states.first > base:
            states = NO_STATES  # row i is of token i, and earlier tokens are lacking
        elif states.count:
            base = states.first
        return Step(
            session=self.session,
            slot=self.slot,
            generation=self.generation,
            round=self.round,
            anchor=len(self._prefix) - 1,
            policy=policy,
            commit=rider,
            context_version=self.context_version,
            proposal_key=0 if policy.layout is Layout.IDS_ONLY else self._proposal_key,
            prefix_digest=self._prefix.digest(),
            base=base,
            tokens=self._prefix.tokens(base),
            hidden_rows=states.count,
            hidden=states.data,
        )

    def _check_policy(self, policy: ProposalPolicy, agreed: Agreed) -> None:
        require_carried(agreed, policy)
        if policy.depth < 1:
            raise ConfigurationError("the depth must be 1 or more; for none, skip the round")
        self._handle.require_room(policy.depth)
        self._checked = policy, agreed, self._handle.slots  # none changes once it is made

    def _is_stale(self, message: Reply | Complete | ErrorMessage) -> bool:
        """Count and drop what is of another round than the one in flight, and was asked once."""
        generation, round_ = message.generation, message.round
        latest = round_ == self.round and generation == self.generation
        if (latest and self._pending is not None) or message.session != self.session:
            return False
        if (generation, round_) > (self.generation, self.round):
            return False
        again = latest and self._proposal is not None
        self.state = advance(self.state, Input.STALE)
        self.drops[DropReason.DUPLICATE if again else DropReason.STALE] += 1
        return True

    def _take_reply(self, reply: Reply, received: Received) -> None:
        pending = self._require_pending()
        pending.check_identity(reply)
        if not self._is_again(pending, received):
            out = self._handle.arrive().out(pending.step.policy.depth)
            pending.hold(reply, received, out, self._handle.lease)
            self.state = advance(self.state, Input.REPLY)

    def _is_again(self, pending: PendingRound, received: Received) -> bool:
        """Count and drop a REPLY that is here already, byte for byte."""
        if self.state is not State.REPLIED:
            return False
        pending.check_same(received)
        self.state = advance(self.state, Input.STALE)
        self.drops[DropReason.DUPLICATE] += 1
        return True

    def _take_complete(self, complete: Complete, now: float) -> Proposal | Dropped:
        pending = self._require_pending()
        pending.check_identity(complete)
        if complete.status is not Status.OK:
            return self._take_decline(complete.status)
        self._require_reply()
        pending.check_whole(complete)
        return self._whole(pending, now)

    def _require_reply(self) -> None:
        if self.state is not State.REPLIED:
            raise ProtocolError(
                ProtocolErrorCode.BAD_FIELD, "COMPLETE says OK and no REPLY came", field="status"
            )

    def _whole(self, pending: PendingRound, now: float) -> Proposal:
        if self._audit:
            self._audit_draws(pending)
        self._handle.publish()
        self.state = advance(self.state, Input.COMPLETE)
        self._acked.shown(self.generation, self.round, pending.step.anchor + 1)
        self._states.shown(pending.step)
        self.round_trip = now - pending.asked_at
        self._pending, self._proposal = None, pending.proposal()
        return self._proposal

    def _audit_draws(self, pending: PendingRound) -> None:
        if self._clock is None:
            self.audited += pending.audit()
            return
        began = self._clock()
        try:
            self.audited += pending.audit()
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
        self._acked.lose()  # whatever it holds, the next STEP sends everything again
        lost = message.code in LOST_CODES
        detail = f"{message.code.name.lower()} {message.field}".rstrip()
        return self._lost(DropReason.LOST_STATE if lost else DropReason.REFUSED, detail)

    def _drop(self, reason: DropReason, detail: str) -> Dropped | None:
        """Book a violation; it costs the round its proposal if one is in flight."""
        if self._pending is None:
            self.drops[reason] += 1
            return None
        self.state = advance(self.state, Input.GIVE_UP)
        return self._lost(reason, detail)

    def _lost(self, reason: DropReason, detail: str = "") -> Dropped:
        proposal = self._proposal
        drafted = 0 if proposal is None else len(proposal.tokens)
        if self._pending is not None:
            drafted = self._pending.step.policy.depth
            self._states.lost(self._pending.step)
        self._forget()
        self.drops[reason] += 1
        return Dropped(reason, self.generation, self.round, drafted, detail)

    def _withdraw(self) -> None:
        if self._pending is not None or self._proposal is not None:
            self.drops[DropReason.WITHDRAWN] += 1
        self._forget()

    def _forget(self) -> None:
        self._handle.give_up()
        self._pending, self._proposal = None, None

    def _require_pending(self) -> PendingRound:
        if self._pending is None:
            raise ProtocolError(
                ProtocolErrorCode.WRONG_ROUND, "a reply to a round that was never asked"
            )
        return self._pending
