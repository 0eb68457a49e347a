"""The verifier's half of one session: asks, validates whole, gives up, commits (P9-P16)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from draftwire.errors import ConfigurationError, ProtocolError, ProtocolErrorCode
from draftwire.kernels.shards.shard import Shard
from draftwire.session.pending_round import PendingRound
from draftwire.session.prefix import Prefix
from draftwire.session.proposal import (
    NO_RIDER,
    Dropped,
    Proposal,
    Received,
    require_fit,
)
from draftwire.session.reasons import DropReason
from draftwire.session.shards import PendingShardRound
from draftwire.session.slot_buffers import ReplySlots
from draftwire.session.state_table import Input, State, advance
from draftwire.session.taking import Taking
from draftwire.wire.agreement import Agreed, require_carried
from draftwire.wire.messages import (
    Cancel,
    Commit,
    CommitRider,
    ProposalPolicy,
    Reset,
    Step,
)
from draftwire.wire.registry import Layout, Outcome

__all__ = ["Dropped", "Proposal", "Received", "VerifierSession"]

# Looked up once: a member of an enumeration costs several times what a global does.
_IDLE: Final = State.IDLE
_STEP: Final = Input.STEP
_COMMIT: Final = Input.COMMIT
_IDS_ONLY: Final = Layout.IDS_ONLY


class VerifierSession(Taking):
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
        super().__init__(session, Prefix(prompt), slots, audit=audit, clock=clock)
        self.slot = slot
        self.context_version = context_version
        self._agreed = agreed
        self._proposal_key = proposal_key
        self._last: CommitRider | None = None  # how the round before ended
        self._told: CommitRider | None = None  # the last one that went into a COMMIT
        self._last_token: int | None = None  # and the token that was drawn in it
        self._checked: tuple[object, ...] = ()  # what was last found to fit
        self._flight_of = PendingRound if shard is None else partial(PendingShardRound, part=shard)

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
    def opens(self) -> bool:
        """Whether the next ``ask`` opens a generation, and so sends the whole prefix."""
        return self._held.length is None

    def room(self) -> int:
        """Return the depth that still fits into the drafter's context; 0 = ask no more."""
        if self._agreed is None or self.context_limit:
            return 0
        depth = self._hold.slots.depth or self._agreed.max_depth
        left = self._agreed.max_context - len(self._prefix)
        return depth if depth <= left else max(left, 0)

    # a round

    def ask(
        self,
        policy: ProposalPolicy,
        now: float,
        deadline: float,
        *,
        hidden_rows: int = 0,
        hidden: bytes = b"",
    ) -> Step:
        """Begin the next round and return its STEP, with the tokens that the drafter lacks.

        deadline: in the seconds of ``now``, fixed here, before anything is drawn (law 4). Raises
        ConfigurationError if HELLO did not agree to the policy or the context has no room.
        """
        agreed, committed = self._agreed, len(self._prefix)
        if agreed is None:
            raise ConfigurationError("there is no connection to ask on")
        if (policy, agreed, self._hold.slots) != self._checked:
            self._check_policy(policy, agreed)
        if committed + policy.depth > agreed.max_context:
            raise ConfigurationError(
                f"{committed} tokens and {policy.depth} drafts do not fit into the drafter's"
                f" context of {agreed.max_context}"
            )
        held = self._held.length
        following = advance(self.state, Input.OPENING if self.state is _IDLE else _STEP)
        self._hold.take()
        if held is None and self.round:
            # Nothing that the drafter may still hold is built upon: a new generation.
            following = advance(advance(self.state, Input.RESET), Input.OPENING)
            self.generation, self.round, self._last = self.generation + 1, 0, None
        self.state = following
        self.round += 1
        rider = self._last or NO_RIDER
        # A rider that accepts drafts is of the round whose proposal has shown what is held.
        base = 0 if held is None else held + rider.accepted
        step = Step(
            session=self.session,
            slot=self.slot,
            generation=self.generation,
            round=self.round,
            anchor=committed - 1,
            policy=policy,
            commit=rider,
            context_version=self.context_version,
            proposal_key=0 if policy.layout is _IDS_ONLY else self._proposal_key,
            prefix_digest=self._prefix.digest(),
            base=base,
            tokens=self._prefix.tokens(base),
            hidden_rows=hidden_rows,
            hidden=hidden,
        )
        if held is None:
            self._held.opening(self.generation)
        self._flight = self._flight_of(step, agreed.vocab_size, asked_at=now, deadline=deadline)
        self._last = None
        return step

    def retry(self) -> Step:
        """Return the STEP in flight once more; it encodes to the same bytes (P16)."""
        if self._flight is None:
            raise ProtocolError(
                ProtocolErrorCode.UNEXPECTED_MESSAGE, "there is no round in flight to retry"
            )
        self.state = advance(self.state, Input.RETRY)
        return self._flight.step

    def skip(self) -> None:
        """Begin the next round without asking: it is target-only."""
        self.state = advance(self.state, Input.SKIP)
        self.round += 1
        self._last = None

    def skip_over(self, tokens: Sequence[int]) -> None:
        """Begin and end as many rounds as there are tokens, each without asking, with its token.

        The same as ``skip`` and ``commit`` for each of them.
        """
        if tokens:
            self.state = advance(advance(self.state, Input.SKIP), Input.COMMIT)
            self.round += len(tokens)
            self._prefix.extend(tokens)
            self._last = CommitRider(self.round, 0, Outcome.TARGET_ONLY)
            self._last_token = tokens[-1]

    def use_context(self, version: int) -> Dropped | None:
        """Ask under another context version from now on: p depends on something else (P13).

        A proposal asked under the one before is dropped, in flight or whole, and the round goes on
        without it. Returns what was dropped.
        """
        if version == self.context_version:
            return None
        self.context_version = version
        if self._flight is None and self._proposal is None:
            return None
        return self.give_up(DropReason.WRONG_CONTEXT)

    def disconnected(self) -> Dropped | None:
        """The connection has ended; the next ``ask`` opens a new generation.

        A proposal that is whole already stays usable. Returns what the round lost, if anything.
        """
        dropped = self.give_up(DropReason.DISCONNECTED) if self._flight is not None else None
        self._held.end()
        self._agreed = None
        return dropped

    def connected(self, agreed: Agreed, slots: ReplySlots | None = None) -> None:
        """A connection with these limits is there (again); call it with no round in flight.

        A proposal that is whole stays in the slots that it lies in until its round is over.
        """
        self._agreed = agreed
        self._hold.slots = slots or self._hold.slots
        self.context_limit = False

    def commit(self, accepted: int, outcome: Outcome, token: int | None) -> None:
        """End the round: ``accepted`` drafts and then ``token`` are committed.

        token: the correction, bonus or target-only id; None with ENDED. ValueError when these do
        not fit the round.
        """
        proposal = self._proposal
        drafts = () if proposal is None else proposal.tokens
        require_fit(outcome, accepted, len(drafts), token)
        self.state = advance(self.state, _COMMIT)
        kept = drafts[:accepted]
        self._prefix.extend(kept if token is None else (*kept, token))
        self._last, self._last_token = CommitRider(self.round, accepted, outcome), token
        if proposal is not None:
            self._hold.release()
            self._proposal = None

    # the end

    def commit_message(self) -> Commit | None:
        """Return COMMIT for the round that ended last, where no STEP follows soon (P15).

        None when the drafter made no proposal in it, and so has nothing to be told, or when the
        token is an id of the target's own padding, which no COMMIT can carry (V18).
        """
        rider, token = self._last, self._last_token
        if rider is None or self._held.round != self.round or self._agreed is None:
            return None
        if token is not None and token >= self._agreed.vocab_size:
            return None
        self._told = rider
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
        commit = self.commit_message() if self._last is not self._told else None
        return [*([] if commit is None else [commit]), *self.cancel()]

    def cancel(self) -> list[Cancel]:
        """End the session, in any state; nothing more is used. Returns what frees the drafter."""
        self.state = advance(self.state, Input.CANCEL)
        self._withdraw()
        return [Cancel(self.session, generation) for generation in self._held.end()]

    def reset(self) -> list[Reset]:
        """End the generation in any live state; the committed prefix stays, the drafter's goes.

        Every word of the new generation has an address of its own, so nothing is drawn twice.
        """
        following = self.generation + 1
        self.state = advance(self.state, Input.RESET)
        self._withdraw()
        resets = [
            Reset(self.session, generation, following) for generation in self._held.generations
        ]
        if resets:
            self._held.opening(following)
        self._held.lose()
        self._last = None
        self.generation, self.round = following, 0
        return resets

    # inside

    def _check_policy(self, policy: ProposalPolicy, agreed: Agreed) -> None:
        require_carried(agreed, policy)
        if policy.depth < 1:
            raise ConfigurationError("the depth must be 1 or more; for none, skip the round")
        self._hold.require_room(policy.depth)
        self._checked = policy, agreed, self._hold.slots  # none changes once it is made
