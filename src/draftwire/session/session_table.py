"""The sessions of one connection on the drafter's side: opening, finding and freeing them."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.rows.shards import ShardDraft
from draftwire.session.drafter_session import DrafterSession
from draftwire.session.proposal import Draft, DraftTask, Parts
from draftwire.wire.agreement import Agreed
from draftwire.wire.codec import encode
from draftwire.wire.fields import FIELD_NAMES
from draftwire.wire.frames import encode_frame
from draftwire.wire.messages import Cancel, Commit, ErrorMessage, Message, Reset, Step
from draftwire.wire.registry import MessageType, Status

_FOLLOWED: Final = (Step, Commit, Reset, Cancel)


@dataclass(frozen=True, slots=True)
class Actions:
    """What a message asks of the program: bytes to send, a task to do, sessions that have ended.

    refused: the code of the ERROR in the bytes, where a session could not follow the message.
    again: the bytes were sent before, and a retry asks for them once more. silent: of the sessions
    that have ended, whether one gave way because nothing had been asked in it for long.
    """

    parts: Parts = field(default_factory=list)
    task: DraftTask | None = None
    ended: tuple[int, ...] = ()
    refused: ProtocolErrorCode | None = None
    again: bool = False
    silent: bool = False


class SessionTable:
    """All sessions of one connection; they live no longer than it does (P17).

    At most ``max_sessions`` of them, and one proposal in flight in each of ``max_slots`` slots, as
    agreed. A message that one session cannot follow is answered by an ERROR that names the
    session; the others and the connection go on. A session in which nothing is asked for long ends
    (P32): ``now`` is in seconds and never falls from one call to the next.

    yield_seconds: without a STEP, after which a session may be evicted for another where there
    are as many as may be.
    """

    def __init__(
        self, agreed: Agreed, *, max_context: int = 0, yield_seconds: float = math.inf
    ) -> None:
        self.agreed = agreed
        self._max_context = max_context
        self._yield_seconds = yield_seconds
        self._sessions: dict[int, DrafterSession] = {}
        self._slots: dict[int, int] = {}  # slot -> the session whose STEP claimed it last
        self._ended: OrderedDict[int, int] = OrderedDict()  # id -> generation that was cancelled
        self._asked: OrderedDict[int, float] = OrderedDict()  # id -> when its latest STEP came
        self._lapsed: OrderedDict[int, int] = OrderedDict()  # id -> generation that was silent

    @property
    def claimed_slots(self) -> Mapping[int, int]:
        """Which session claimed each slot last."""
        return self._slots

    @property
    def ends_remembered(self) -> int:
        """How many ended sessions are remembered, so that a late message of theirs is known."""
        return len(self._ended)

    def sessions(self) -> Iterable[DrafterSession]:
        """The sessions that are open."""
        return self._sessions.values()

    def __len__(self) -> int:
        """Sessions that are open."""
        return len(self._sessions)

    def __contains__(self, session: int) -> bool:
        """Whether a session is open."""
        return session in self._sessions

    def __getitem__(self, session: int) -> DrafterSession:
        """Return an open session; KeyError if there is none."""
        return self._sessions[session]

    def receive(self, message: Message, now: float = 0.0) -> Actions:
        """Follow a message that names a session; never raises for what is in it."""
        if isinstance(message, ErrorMessage):
            return self._end(message.session)
        if not isinstance(message, _FOLLOWED):
            raise ValueError(f"{type(message).__name__} concerns no session")
        try:
            return self._follow(message, now)
        except ProtocolError as error:
            return Actions(self._error(message, error), refused=error.code)

    def reply(self, task: DraftTask, drafted: Draft | ShardDraft) -> Parts:
        """Return the bytes that answer a task; none if it was cancelled."""
        session = self._sessions.get(task.session)
        return [] if session is None else session.reply(task, drafted)

    def fed(self, task: DraftTask, length: int) -> DraftTask:
        """Return what is left of a task whose first ``length`` tokens the model holds."""
        return self._sessions[task.session].fed(task, length)

    def decline(self, task: DraftTask, status: Status) -> Parts:
        """Return the bytes that say why a task has no proposal; none if it was cancelled."""
        session = self._sessions.get(task.session)
        return [] if session is None else session.decline(task, status)

    def wanted(self, task: DraftTask) -> bool:
        """Say whether a task is still waited for."""
        session = self._sessions.get(task.session)
        return session is not None and session.wants(task)

    def keeps(self, session: int) -> bool:
        """Say whether a session makes a proposal, or keeps one."""
        found = self._sessions.get(session)
        return found is not None and (found.busy or found.keeps)

    def silent(self, now: float, seconds: float) -> list[tuple[float, int]]:
        """Return which sessions have seen no STEP for so long and wait for no proposal.

        The longest silent first, each with the time of its latest STEP.
        """
        found = []
        for session, asked_at in self._asked.items():
            if now - asked_at < seconds:
                break
            if not self._sessions[session].busy:
                found.append((asked_at, session))
        return found

    def lapse(self, session_id: int) -> None:
        """End a silent session (P32); its verifier may open another generation of it."""
        session = self._sessions[session_id]
        generation = session.generation
        session.end()
        self._drop(session_id)
        self._remember(self._lapsed, session_id, generation)

    def close(self) -> tuple[int, ...]:
        """End every session: the connection is gone. Returns their ids."""
        ended = tuple(self._sessions)
        for session in self._sessions.values():
            session.end()
        self._sessions.clear()
        self._slots.clear()
        self._asked.clear()
        return ended

    def _follow(self, message: Step | Commit | Reset | Cancel, now: float) -> Actions:
        if isinstance(message, Step):
            return self._step(message, now)
        session = self._sessions.get(message.session)
        if session is None:
            return Actions()  # ended already: late, and nothing to be said
        if isinstance(message, Commit):
            session.commit(message)
        elif isinstance(message, Reset):
            session.reset(message)
        elif session.cancel(message):
            return self._forget(message.session, message.generation)
        return Actions()

    def _step(self, step: Step, now: float) -> Actions:
        if self._ended.get(step.session, 0) >= step.generation:
            return Actions()  # asked before the CANCEL that overtook it
        if self._lapsed.get(step.session, 0) >= step.generation:
            # Not even its first STEP once more: what it was answered is not here any more (P16).
            raise ProtocolError(
                ProtocolErrorCode.UNKNOWN_PREFIX, "the session was silent", field="generation"
            )
        session = self._sessions.get(step.session)
        opened, yields = session is None, None
        if session is None:
            yields = self._room(now)
            session = DrafterSession(step.session, self.agreed, max_context=self._max_context)
        self._check_slot(step)
        again = step.round == session.round and step.generation == session.generation
        answer = session.apply(step)
        ended: tuple[int, ...] = ()
        if yields is not None:
            self.lapse(yields)
            ended = (yields,)
        if opened:
            self._sessions[step.session] = session
        self._asked[step.session] = now
        self._asked.move_to_end(step.session)
        if session.slot == step.slot:
            self._slots[step.slot] = step.session
        if isinstance(answer, DraftTask):
            return Actions(task=answer, ended=ended, silent=bool(ended))
        return Actions(answer, again=again, ended=ended, silent=bool(ended))

    def _room(self, now: float) -> int | None:
        """Return the session to evict for a new one; None = there is room without that."""
        if len(self._sessions) < self.agreed.max_sessions:
            return None
        for _, session in self.silent(now, self._yield_seconds):
            return session
        raise ProtocolError(
            ProtocolErrorCode.LIMIT_EXCEEDED,
            f"{self.agreed.max_sessions} sessions are open already",
            field="max_sessions",
        )

    def _check_slot(self, step: Step) -> None:
        """Refuse a slot in which another session waits; one not agreed came no further (P31)."""
        owner = self._sessions.get(self._slots.get(step.slot, step.session))
        if owner is None or owner.session == step.session:
            return
        if owner.busy and owner.slot == step.slot:
            raise ProtocolError(
                ProtocolErrorCode.NO_SLOT, f"slot {step.slot} is in use", field="slot"
            )

    def _end(self, session_id: int) -> Actions:
        """The verifier refuses what a session sent: it will open another, so end this one."""
        session = self._sessions.get(session_id)
        if session is None:
            return Actions()
        session.end()
        return self._forget(session_id, session.generation)

    def _forget(self, session_id: int, generation: int) -> Actions:
        self._drop(session_id)
        self._remember(self._ended, session_id, generation)
        return Actions(ended=(session_id,))

    def _drop(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)
        self._asked.pop(session_id, None)
        for slot in [slot for slot, owner in self._slots.items() if owner == session_id]:
            del self._slots[slot]

    def _remember(self, which: OrderedDict[int, int], session_id: int, generation: int) -> None:
        which[session_id] = generation
        while len(which) > self.agreed.max_sessions:
            which.popitem(last=False)

    def _error(self, message: Step | Commit | Reset | Cancel, error: ProtocolError) -> Parts:
        refusal = ErrorMessage(
            code=error.code,
            session=message.session,
            generation=message.generation,
            round=message.round if isinstance(message, Step | Commit) else 0,
            field=error.field if error.field in FIELD_NAMES else "",
        )
        return encode_frame(self.agreed.version, MessageType.ERROR, *encode(refusal))
