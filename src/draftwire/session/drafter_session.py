"""The drafter's half of one session: applies STEPs, sets tasks, answers whole (P9-P12, P15)."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Final, NoReturn

from draftwire.errors import ArithmeticRefusalError, ProtocolError, ProtocolErrorCode
from draftwire.rows.shards import ShardDraft
from draftwire.session.prefix import Cached, Prefix
from draftwire.session.proposal import NO_RIDER, Draft, DraftTask, Parts, fits
from draftwire.session.reply import answered, declined
from draftwire.session.session_states import Input, State, advance
from draftwire.wire.agreement import Agreed
from draftwire.wire.messages import (
    Cancel,
    Commit,
    CommitRider,
    Reset,
    Step,
)
from draftwire.wire.registry import (
    Outcome,
    Status,
)

_CODE: Final = ProtocolErrorCode
_UNCOMMITTED: Final = (State.PROPOSED, State.TARGET_ONLY)
_IN_FLIGHT: Final = (State.ASKED, State.REPLIED)


class DrafterSession:
    """One request as its drafter sees it; knows no socket, no clock and no model.

    ``apply`` checks a STEP before it changes anything and raises ProtocolError if it cannot be
    followed; the session is then as it was. What ``reply`` returns is kept, and a retry of the
    STEP is answered by the same bytes.

    max_context: tokens that the drafting model takes, prefix and proposal together; 0 = as agreed.
    """

    def __init__(self, session: int, agreed: Agreed, *, max_context: int = 0) -> None:
        self.session = session
        self.generation = 0
        self.round = 0
        self.state = State.IDLE
        self._agreed = agreed
        self._max_context = min(max_context or agreed.max_context, agreed.max_context)
        self._prefix = Prefix()
        self._step: Step | None = None  # the latest, for retries
        self._kept: Parts = []  # its answer, once there is one
        self._drafts: tuple[int, ...] = ()  # its proposal, once there is one
        self._asked_at = 0  # committed tokens when it was asked
        self._cached = Cached(self._prefix, 0)
        self._has_states = False  # of this generation, some were sent
        self._lost_states = False  # and the model has lost them

    def __len__(self) -> int:
        """Committed tokens."""
        return len(self._prefix)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The committed prefix, as far as this side has been told."""
        return self._prefix.tokens()

    @property
    def prefix_digest(self) -> bytes:
        """BLAKE2b-128 of the committed prefix."""
        return self._prefix.digest()

    @property
    def slot(self) -> int | None:
        """The slot of the latest STEP."""
        return None if self._step is None else self._step.slot

    @property
    def latest_step(self) -> Step | None:
        """The latest STEP, until its round is over."""
        return self._step

    @property
    def kept_answer(self) -> Parts:
        """Its answer, kept for retries; empty until there is one."""
        return self._kept

    @property
    def drafts(self) -> tuple[int, ...]:
        """The draft tokens of that answer."""
        return self._drafts

    @property
    def asked_at(self) -> int:
        """How many tokens were committed when it was asked."""
        return self._asked_at

    @property
    def cached(self) -> Cached:
        """What the engine's context is known to hold."""
        return self._cached

    @property
    def keeps(self) -> bool:
        """Whether a proposal is kept for retries of its STEP."""
        return bool(self._drafts)

    @property
    def busy(self) -> bool:
        """Whether a proposal is being made."""
        return self.state in _IN_FLIGHT

    def apply(self, step: Step) -> DraftTask | Parts:
        """Follow a STEP: return what is to be drawn, or the bytes to send at once (maybe none).

        Raises ProtocolError with UNKNOWN_PREFIX, WRONG_DIGEST, COMMIT_MISMATCH, DUPLICATE_ROUND or
        BAD_FIELD; nothing has changed then.
        """
        if step.generation < self.generation:
            self.state = advance(self.state, Input.STALE)
            return []
        if step.base + len(step.tokens) != step.anchor + 1:
            _refuse(_CODE.BAD_FIELD, "token_count", "the tokens do not end at the anchor")
        if self._opens(step):
            return self._open(step)
        if self._step is None:
            _refuse(_CODE.UNKNOWN_PREFIX, "generation", "no such generation is open here")
        if step.round <= self.round:
            return self._again(step, self._step)
        return self._continue(step)

    def reply(self, task: DraftTask, drafted: Draft | ShardDraft) -> Parts:
        """Answer a task with its K drafts and their q's, or this rank's shard of them.

        Returns the bytes of REPLY and of COMPLETE; none if the task is no longer wanted. In v1 the
        rows stay here. Rows that are no distribution, or give their token no ticket, are declined
        as REFUSED_ARITHMETIC.
        """
        step = self._current(task)
        if step is None:
            return []
        tokens = tuple(drafted.tokens)
        if len(tokens) != step.policy.depth:
            raise ValueError(f"{len(tokens)} drafts for a depth of {step.policy.depth}")
        try:
            frames = answered(step, drafted, self._agreed)
        except ArithmeticRefusalError:
            return self._decline(step, Status.REFUSED_ARITHMETIC)
        self.state = advance(advance(self.state, Input.REPLY), Input.COMPLETE)
        admitted = drafted.admitted if isinstance(drafted, Draft) else 0
        self._drafts = tokens[: admitted or len(tokens)]
        self._cached = Cached(self._prefix, len(self._prefix), self._drafts[:-1])
        self._kept = frames
        return list(frames)

    def fed(self, task: DraftTask, length: int) -> DraftTask:
        """The model holds ``length`` tokens of a task's prefix; return what is left of the task.

        task: one that is wanted. length: less than its prefix has. A later STEP of this session
        goes on from there.
        """
        self._cached = Cached(self._prefix, length)
        return replace(task, cached_tokens=length, new_tokens=self._prefix.tokens(length))

    def lose_states(self) -> None:
        """The model has lost the states of this session: a later STEP asks for them (P37)."""
        self._lost_states |= self._has_states

    def wants(self, task: DraftTask) -> bool:
        """Say whether a task still waits for its answer."""
        return (
            self.state is State.ASKED
            and task.round == self.round
            and task.generation == self.generation
            and task.session == self.session
        )

    def decline(self, task: DraftTask, status: Status) -> Parts:
        """Answer a task by COMPLETE alone, saying why there is no proposal; empty if unwanted."""
        step = self._current(task)
        return [] if step is None else self._decline(step, status)

    def commit(self, commit: Commit) -> None:
        """Follow an explicit COMMIT; one of another generation or round changes nothing."""
        if (commit.generation, commit.round) != (self.generation, self.round):
            self.state = advance(self.state, Input.STALE)
            return
        if self.state not in _UNCOMMITTED:
            _refuse(_CODE.COMMIT_MISMATCH, "round", "there is no proposal to commit")
        rider = CommitRider(commit.round, commit.accepted, commit.outcome)
        self._check_rider(rider)
        drawn = [] if commit.outcome is Outcome.ENDED else [commit.token]
        grown = [*self._drafts[: commit.accepted], *drawn]
        if len(self._prefix) + len(grown) != commit.committed:
            _refuse(_CODE.COMMIT_MISMATCH, "committed", "another length than the commit makes")
        if self._prefix.digest_with(grown) != commit.prefix_digest:
            _refuse(_CODE.WRONG_DIGEST, "prefix_digest", "another prefix than the commit makes")
        self._prefix.extend(grown)
        self.state = advance(self.state, Input.COMMIT)

    def reset(self, reset: Reset) -> None:
        """Follow RESET if it names this generation: an empty prefix under the next one."""
        if reset.generation != self.generation:
            self.state = advance(self.state, Input.STALE)
            return
        if reset.next_generation <= reset.generation:
            _refuse(_CODE.BAD_FIELD, "next_generation", "the next generation must be larger")
        self._begin(reset.next_generation)

    def cancel(self, cancel: Cancel) -> bool:
        """Follow CANCEL if it names this generation (L26); return whether the session has ended."""
        if cancel.generation != self.generation:
            self.state = advance(self.state, Input.STALE)
            return False
        self.end()
        return True

    def end(self) -> None:
        """End the session: cancelled, or its connection is gone. Tasks of it are unwanted now."""
        self.state = advance(self.state, Input.CANCEL)
        self._step, self._kept, self._drafts = None, [], ()

    # a STEP

    def _opens(self, step: Step) -> bool:
        """Say whether a STEP opens a generation (P9)."""
        newer = step.generation > self.generation
        if not newer and self.state is not State.IDLE:
            return False
        if step.base or step.round != 1 or step.commit != NO_RIDER:
            _refuse(_CODE.UNKNOWN_PREFIX, "generation", "no such generation is open here")
        return True

    def _open(self, step: Step) -> DraftTask | Parts:
        if not self._fits(step):
            self._begin(step.generation)
            self.state = advance(self.state, Input.OPENING)
            return self._decline_context(step)
        prefix = Prefix(step.tokens)
        if prefix.digest() != step.prefix_digest:
            _refuse(_CODE.WRONG_DIGEST, "prefix_digest", "the tokens have another digest")
        self._begin(step.generation)
        self._prefix = prefix
        self.state = advance(self.state, Input.OPENING)
        return self._task(step)

    def _again(self, step: Step, latest: Step) -> Parts:
        """Answer a round that was asked before (P10)."""
        if not _same(step, latest):
            _refuse(_CODE.DUPLICATE_ROUND, "round", f"round {step.round} was asked before")
        self.state = advance(self.state, Input.RETRY)
        return list(self._kept)

    def _continue(self, step: Step) -> DraftTask | Parts:
        grown = self._check_growth(step)
        fits = self._fits(step)
        state = self.state
        if state in _IN_FLIGHT:
            state = advance(state, Input.GIVE_UP)
        if state in _UNCOMMITTED:
            state = advance(state, Input.COMMIT)
        self.state = advance(state, Input.STEP)
        if not fits:
            return self._decline_context(step)
        self._prefix.extend(grown)
        return self._task(step)

    def _check_growth(self, step: Step) -> tuple[int, ...]:
        """Return the tokens by which the prefix grows, all of P9 checked, nothing changed."""
        accepted = self._accepted_by(step)
        held = len(self._prefix)
        if self._lost_states and step.base:
            _refuse(_CODE.UNKNOWN_PREFIX, "base", "the states before it are lost here")
        if step.base > held + len(accepted):
            _refuse(_CODE.UNKNOWN_PREFIX, "base", f"{step.base} tokens are not held here")
        if step.anchor + 1 < held + len(accepted):
            _refuse(_CODE.COMMIT_MISMATCH, "anchor", "a committed prefix never shrinks")
        ours = (*self._prefix.tokens(step.base), *accepted[max(step.base - held, 0) :])
        if tuple(step.tokens[: len(ours)]) != ours:
            code = _CODE.COMMIT_MISMATCH if accepted else _CODE.WRONG_DIGEST
            _refuse(code, "prefix_digest", "the tokens contradict those that are committed here")
        grown = (*accepted, *step.tokens[len(ours) :])
        if self._prefix.digest_with(grown) != step.prefix_digest:
            _refuse(_CODE.WRONG_DIGEST, "prefix_digest", "the prefix has another digest")
        return grown

    def _accepted_by(self, step: Step) -> tuple[int, ...]:
        """Return the drafts that the rider commits and that are not committed here yet (P9)."""
        rider = step.commit
        if not 0 < rider.round < step.round or rider.round < self.round:
            _refuse(_CODE.COMMIT_MISMATCH, "committed_round", "it is not the round before")
        if rider.round > self.round:
            # A round that never came here: it had no proposal, so nothing of it was accepted.
            if rider.accepted or rider.outcome is not Outcome.TARGET_ONLY:
                _refuse(_CODE.COMMIT_MISMATCH, "committed_accepted", "no such proposal was made")
            return ()
        self._check_rider(rider)
        drawn = 0 if rider.outcome is Outcome.ENDED else 1
        if step.anchor + 1 != self._asked_at + rider.accepted + drawn:
            _refuse(_CODE.COMMIT_MISMATCH, "anchor", "the round commits another number of tokens")
        if rider.outcome is Outcome.CORRECTION and step.tokens[-1:] == (
            self._drafts[rider.accepted],
        ):
            _refuse(_CODE.COMMIT_MISMATCH, "committed_accepted", "a rejected draft was committed")
        # After an explicit COMMIT the drafts are part of the prefix already.
        return () if self.state is State.OPEN else self._drafts[: rider.accepted]

    def _check_rider(self, rider: CommitRider) -> None:
        """Check what is said of the latest round against its proposal."""
        depth = len(self._drafts)
        if not fits(rider.outcome, rider.accepted, depth):
            _refuse(
                _CODE.COMMIT_MISMATCH,
                "committed_accepted",
                f"{rider.outcome.name} with {rider.accepted} of {depth} drafts cannot be",
            )

    def _task(self, step: Step) -> DraftTask:
        """Take the STEP as the latest and return its task."""
        hidden = bytes(step.hidden)
        self._latest(step)
        self._has_states |= step.hidden_rows > 0
        self._lost_states = False
        # At least the anchor is fed, whose logits the first draft is drawn from.
        cached = min(self._cached.common(self._prefix), step.anchor)
        self._cached = Cached(self._prefix, cached)
        return DraftTask(
            session=step.session,
            slot=step.slot,
            generation=step.generation,
            round=step.round,
            policy=step.policy,
            proposal_key=step.proposal_key,
            cached_tokens=cached,
            new_tokens=self._prefix.tokens(cached),
            first_position=step.first_position,
            context_version=step.context_version,
            states_from=step.base,
            hidden=hidden,
            commit=step.commit,
            prefix=self._prefix,
        )

    def _decline_context(self, step: Step) -> Parts:
        self._latest(step)
        return self._decline(step, Status.CONTEXT_LIMIT)

    def _latest(self, step: Step) -> None:
        self._step, self._kept, self._drafts = _owned(step), [], ()
        self.round, self._asked_at = step.round, step.anchor + 1

    def _fits(self, step: Step) -> bool:
        return step.anchor + 1 + step.policy.depth <= self._max_context

    def _begin(self, generation: int) -> None:
        """Empty the session under a new generation; the model's state may still serve it."""
        self.state = advance(self.state, Input.RESET)
        self.generation, self.round = generation, 0
        self._prefix = Prefix()
        self._step, self._kept, self._drafts = None, [], ()
        self._has_states = self._lost_states = False

    # the answer

    def _current(self, task: DraftTask) -> Step | None:
        """Return the STEP of a task that is still wanted."""
        return self._step if self.wants(task) else None

    def _decline(self, step: Step, status: Status) -> Parts:
        self.state = advance(self.state, Input.DECLINE)
        self._kept = declined(step, status, self._agreed)
        return list(self._kept)


def _owned(step: Step) -> Step:
    """Return what a retry is compared with: no view into a receive buffer, a digest of the rows."""
    hidden = hashlib.blake2b(step.hidden, digest_size=16).digest() if step.hidden_rows else b""
    return replace(step, hidden=hidden, tokens=tuple(step.tokens))


def _same(one: Step, latest: Step) -> bool:
    """Say whether a STEP has the same bytes as the latest, which is kept as ``_owned``."""
    return _owned(one) == latest


def _refuse(code: ProtocolErrorCode, field: str, message: str) -> NoReturn:
    raise ProtocolError(code, message, field=field)
