"""One verifier on the drafter's side: its link, its sessions and the contexts behind them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, Protocol

from draftwire.drafter.config import DrafterConfig
from draftwire.drafter.contexts import HeldContext
from draftwire.drafter.counters import DrafterCounters, LeaseEnd
from draftwire.drafter.early_stop import FinishedRounds
from draftwire.drafter.engine import Context
from draftwire.drafter.limits import Allowance
from draftwire.drafter.memory import Answers, ReplyMemory, answer_bytes
from draftwire.errors import ProtocolError, ProtocolErrorCode, RemoteError
from draftwire.rows.shards import ShardDraft
from draftwire.session.link import AgreedEvent, Closed, Link
from draftwire.session.proposal import Draft, DraftTask, Parts, Received
from draftwire.session.session_table import SessionTable
from draftwire.transport.channel import Part
from draftwire.transport.queue import OutQueue
from draftwire.wire.messages import Reset, Step
from draftwire.wire.registry import MessageType, Status
from draftwire.wire.states import StateFormat


class ConnectionProgram(Protocol[Context]):
    """What a connection needs of the program that it belongs to."""

    config: DrafterConfig
    counters: DrafterCounters
    memory: ReplyMemory
    draining: bool

    def wait(self, connection: Connection[Context], task: DraftTask) -> None:
        """Let a task wait for its turn."""

    def reserve(self, connection: Connection[Context], task: DraftTask, size: int) -> bool:
        """Reserve memory for the answer to a task; False = as much is held as may be."""

    def withdraw(self, connection: Connection[Context], session: int | None = None) -> None:
        """The task of a session, or every one of the connection, is unwanted."""

    def close_context(self, connection: Connection[Context], session: int) -> None:
        """Free what the engine holds of a session."""

    def positions_of(self, connection: Connection[Context]) -> int:
        """Return how many drafts a connection waits for."""

    def lapsed(self, sessions: int, why: LeaseEnd) -> None:
        """Book sessions that were ended since nothing was asked in them."""


class Connection(Generic[Context]):
    """One verifier: its link, its sessions and the engine's contexts behind them."""

    def __init__(
        self,
        program: ConnectionProgram[Context],
        link: Link,
        clock: Callable[[], float],
    ) -> None:
        """Made by ``DrafterProgram.connect``."""
        self.outgoing = OutQueue()
        self.answers = Answers(program.memory)
        self.closing = False
        self.contexts: dict[int, HeldContext[Context]] = {}
        self.finished = FinishedRounds()
        self.owner: Hashable = object()  # whose prefixes it may go on from: its own, or its key's
        self.table: SessionTable | None = None
        self.error: ProtocolError | None = None  # why it is closing, where there is a reason
        self._program = program
        self._clock = clock
        self._link = link
        self.buffer = link.buffer
        """Return where received bytes go."""
        self._allowance = Allowance(program.config.peer, clock())
        self._read = 0  # bytes, since they were last booked
        self._frames = 0  # when they were
        self._ends: dict[int, int] = {}  # session: where its latest answer ends in what was queued
        self._repeated = 0  # bytes that retries had sent again, since bytes were last booked

    @property
    def heard_at(self) -> float:
        """When the peer's last whole frame came, in seconds of the program's clock."""
        return self._link.heard_at

    @property
    def stops_early(self) -> bool:
        """Whether fewer drafts than are asked for may be admitted (P35)."""
        return self.table is not None and self.table.agreed.stops_early

    @property
    def received(self) -> Mapping[MessageType, int]:
        """How many frames of each type have come."""
        return self._link.received

    @property
    def sent(self) -> Mapping[MessageType, int]:
        """How many frames of each type were sent."""
        return self._link.sent

    def filled(self, count: int) -> None:
        """Take ``count`` received bytes: answers go to ``outgoing``, tasks to their turn."""
        now = self._clock()
        event = self._link.filled(count, now)
        while event is not None:
            if isinstance(event, Received):
                self._take(event, now)
            elif isinstance(event, AgreedEvent):
                yields = self._program.config.peer.evict_idle_after
                self.table = SessionTable(event.agreed, yield_seconds=yields)
            elif isinstance(event, Closed):
                self._close(event)
            if self._link.idle():
                break
            event = self._link.filled(0, now)
        else:
            self._push()
        self._read += count
        self._program.counters.received += count

    def feed(self, data: Part) -> int:
        """Copy received bytes in and take them; returns how many, fewer only once it closes."""
        view = memoryview(data).cast("B")
        taken = 0
        while taken < view.nbytes and not self.closing:
            room = self.buffer()
            count = min(len(room), view.nbytes - taken)
            room[:count] = view[taken : taken + count]
            taken += count
            self.filled(count)
        return taken

    def book(self) -> float:
        """Take what was read since out of the peer's limits (P24).

        Returns the seconds for which no more of it may be read.
        """
        read, frames = self._read, self._link.frames
        if not read:
            return 0.0
        seconds = self._allowance.read(frames - self._frames, read + self._repeated, self._clock())
        self._read = self._repeated = 0
        self._frames = frames
        return seconds

    def answer(self, task: DraftTask, draft: Draft | ShardDraft | Status) -> None:
        """Send a proposal, or why there is none, if the task is still wanted."""
        if self.table is None or self.closing:
            return
        if isinstance(draft, Status):
            parts = self.table.decline(task, draft)
        else:
            parts = self.table.reply(task, draft)
        self._send(task.session, parts)

    @property
    def states(self) -> StateFormat | None:
        """What a row of states holds; None where none were agreed."""
        return None if self.table is None else self.table.agreed.states

    def lose_states(self, session: int) -> None:
        """The model has lost the states of a session that goes on."""
        if self.table is not None:
            self.table[session].lose_states()

    def answered(self, session: int) -> None:
        """A session's answer is on its way: give back its memory, unless the session keeps it."""
        self._over(session)

    def leave(self) -> None:
        """This drafter is going away: say so, and end the connection."""
        if not self.closing:
            code = ProtocolErrorCode.SHUTTING_DOWN
            self._link.refuse(ProtocolError(code, "the drafter is going away"))
            self._push()
            self.closing = True
            self.free()

    def silent(self, now: float, seconds: float) -> list[tuple[float, int]]:
        """Return which sessions have asked nothing for so long, the longest silent one first."""
        return [] if self.table is None else self.table.silent(now, seconds)

    def lapse(self, session: int) -> None:
        """End a silent session (P32)."""
        assert self.table is not None
        self.table.lapse(session)
        self._end((session,))
        self._allowance.excuse(self.table.agreed.max_sessions)

    def frees(self, session: int) -> int:
        """Return the bytes that the end of a session gives back at once: none that must be sent."""
        return 0 if self._is_leaving(session) else self.answers.of(session)

    def settle(self) -> None:
        """Book what has left of the answers that are kept no longer."""
        self.answers.sent(self.outgoing.pushed - self.outgoing.size)

    def free(self) -> None:
        """End every session and close its context."""
        for session in () if self.table is None else self.table.close():
            self.answers.over(session, self._ends.get(session, 0))
        self._program.withdraw(self)
        while self.contexts:
            session, _ = next(iter(self.contexts.items()))
            self._program.close_context(self, session)

    def _begin(self, table: SessionTable, task: DraftTask) -> None:
        """Let a task wait for its turn, or decline it: too many drafts in flight, or draining."""
        if self._program.draining and task.session not in self.contexts:
            self._program.counters.declined[Status.SHUTTING_DOWN] += 1
            self._link.send_parts(table.decline(task, Status.SHUTTING_DOWN))
            return
        most = self._program.config.peer.max_positions
        held = self._program.positions_of(self) if most else 0
        if most and held + task.policy.depth > most:
            self._program.counters.declined[Status.NO_SLOT] += 1
            self._link.send_parts(table.decline(task, Status.NO_SLOT))
            return
        if not self._program.reserve(self, task, answer_bytes(task.policy, table.agreed)):
            self._program.counters.declined[Status.NO_SLOT] += 1
            self._link.send_parts(table.decline(task, Status.NO_SLOT))
            return
        self._program.wait(self, task)

    def _over(self, session: int) -> None:
        """Give back the memory of a session's answer, unless it keeps that or waits for it."""
        if self.table is None or not self.table.keeps(session):
            self._give_back(session)

    def _give_back(self, session: int) -> None:
        """A session keeps its answer no more: its memory is free once that has been sent."""
        self.answers.over(session, self._ends.get(session, 0))
        self.settle()

    def _send(self, session: int, parts: Parts) -> None:
        """Queue an answer of a session."""
        if parts:
            self._queue(self._link.with_outgoing(parts))
            self._ends[session] = self.outgoing.pushed

    def _again(self, session: int, parts: Parts) -> None:
        """Answer a retry, unless its answer is on its way still; its bytes count as if read (P24).

        A STEP is small and its answer may be megabytes: who asks often must not be sent more than
        it may send.
        """
        if self._is_leaving(session):
            return
        before = self.outgoing.pushed
        self._send(session, parts)
        self._repeated += self.outgoing.pushed - before

    def _is_leaving(self, session: int) -> bool:
        """Whether some of a session's latest answer waits to be sent."""
        return self._ends.get(session, 0) > self.outgoing.pushed - self.outgoing.size

    def _push(self) -> None:
        parts = self._link.outgoing()
        if parts:
            self._queue(parts)

    def _queue(self, parts: Parts) -> None:
        before = self.outgoing.size
        self.outgoing.push(parts)
        self._program.counters.sent += self.outgoing.size - before

    def _close(self, closed: Closed) -> None:
        self.error = error = closed.error
        if error is not None:
            counters = self._program.counters
            remote = isinstance(error, RemoteError)
            (counters.remote_errors if remote else counters.local_errors)[error.code] += 1
        self.closing = True
        self.free()

    def _take(self, received: Received, now: float) -> None:
        assert self.table is not None  # the link lets nothing through before HELLO is agreed
        actions = self.table.receive(received.message, now)
        if actions.again:
            self._again(received.message.session, actions.parts)  # type: ignore[union-attr]
        else:
            self._link.send_parts(actions.parts)
        if actions.refused is not None:
            self._program.counters.refused[actions.refused] += 1
        if actions.refused is not None and self._allowance.refused(self._clock()):
            code = ProtocolErrorCode.LIMIT_EXCEEDED
            self._close(self._link.refuse(ProtocolError(code, "too many messages were refused")))
            return
        self._end(actions.ended)
        if actions.task is not None:
            self._give_back(actions.task.session)
            self._begin(self.table, actions.task)
        elif isinstance(received.message, Step | Reset):
            self._over(received.message.session)
        if actions.silent:
            self._allowance.excuse(self.table.agreed.max_sessions)
            self._program.lapsed(len(actions.ended), LeaseEnd.EVICTED)

    def _end(self, sessions: tuple[int, ...]) -> None:
        for session in sessions:
            self._over(session)
            self._ends.pop(session, None)
            self._program.withdraw(self, session)
            self._program.close_context(self, session)
