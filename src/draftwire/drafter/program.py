"""The drafter program: connections, sessions, limits and batches; without a socket of its own."""

from __future__ import annotations

import logging
import os
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Final, Generic, Protocol, TypeAlias

from draftwire.drafter.config import DrafterConfig
from draftwire.drafter.connection import Connection
from draftwire.drafter.contexts import HeldContext, Window
from draftwire.drafter.counters import DrafterCounters, LeaseEnd
from draftwire.drafter.early_stop import EarlyStop, StopMaker
from draftwire.drafter.engine import Context, DraftEngine, MeasuresContexts
from draftwire.drafter.finished import FinishedContexts
from draftwire.drafter.hello import drafter_hello
from draftwire.drafter.memory import ReplyMemory, memory_at_most, require_room, usual_memory
from draftwire.drafter.propose import DraftJob, ProposalSource, Proposer, propose, warm_up
from draftwire.drafter.scheduler import BatchScheduler, Owner, Turn
from draftwire.drafter.states import give_states, unwindowed
from draftwire.exact.words import ProposalWords
from draftwire.rows.prepare import prepare
from draftwire.rows.shards import ShardDraft
from draftwire.session.link import Link
from draftwire.session.proposal import Draft, DraftTask
from draftwire.telemetry.events import log_event
from draftwire.wire.registry import (
    NONCE_BYTES,
    Status,
)

_LOG: Final = logging.getLogger(__name__)
__all__ = ["Connection", "DrafterConfig", "DrafterProgram", "ProgramMaker"]

_LOOKS_A_LEASE: Final = 64.0

_Batch: TypeAlias = tuple[int, float, Sequence[Turn[Owner]], Sequence[Draft | ShardDraft | Status]]
"""What was drawn at once: how many proposals, in how many seconds, and what was answered."""


class DrafterProgram(Generic[Context]):
    """Serves any number of verifiers with one engine: bytes in, bytes out, batches between.

    Feed a connection's ``buffer``/``filled``, call ``draft`` when no more input is ready, and write
    what is in each ``outgoing``; after ``closing`` close the stream once that is written, and call
    ``disconnect`` whenever a stream ends. What a peer sends never raises.
    """

    def __init__(
        self,
        engine: DraftEngine[Context],
        config: DrafterConfig,
        *,
        source: ProposalSource = ProposalWords,
        proposer: Proposer[Context] | None = None,
        clock: Callable[[], float] = time.monotonic,
        key: bytes = b"",
        stop: StopMaker = EarlyStop,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """Begin without connections.

        source: stands in for the proposal's words, so that a law can be enumerated. proposer:
        stands in for :func:`propose`, where proposals are prepared to measure everything else.
        stop: makes the rule of a session whose proposals may be stopped early (P35).
        key: what every verifier has to prove that it holds (P20); none = nothing is asked.
        """
        self.engine = engine
        self.config = config
        self.counters = DrafterCounters()
        self.draining = False
        self.memory = ReplyMemory(config.max_reply_memory or usual_memory())
        self._answer = require_room(engine.vocab_size, config, self.memory.most)
        self.connections: set[Connection[Context]] = set()
        # Who proposes otherwise, as ranks do, has rows that are not whole.
        self._hello = drafter_hello(engine, config, mirrors=proposer is None)
        self._window = Window.of(engine.max_context, unwindowed(engine, engine.max_context, config))
        self._source = source
        self._proposer = proposer or partial(propose, kernels=config.kernels)
        self._warms_kernels = proposer is None  # who proposes otherwise has kernels of its own
        self._clock = clock
        self._key = key
        self._stop = stop
        self._entropy = entropy
        self._scheduler: BatchScheduler[Connection[Context]] = BatchScheduler(
            config.peer.prefill_chunk_tokens, self._feed
        )
        self._lapse_at = 0.0  # when silent sessions are looked for again
        self.finished = FinishedContexts(config.kept_prefix_memory, self._close)
        self._drawing = 0  # proposals of the batch that is being drawn
        self._unbooked: list[_Batch[Connection[Context]]] = []

    def warm_up(self) -> None:
        """Run the model and the arithmetic once where they compute, so that no round pays for it.

        Says in the log which checkpoint this is, and what memory answers may come to hold.
        """
        prepare()
        if self._warms_kernels:
            config = self.config
            warm_up(self.engine, config.kernels, config.layouts, config.max_support)
        identity = self.engine.identity.hex()
        text = f"this drafter's checkpoint is {identity} (a verifier's --draft-identity)"
        log_event(_LOG, logging.INFO, "checkpoint", text, identity=identity)
        memory_at_most(self.config, self._answer, self.memory.most)

    def connect(self, spare: int = 0) -> Connection[Context] | None:
        """Return a new connection, or None when there are as many as may be.

        spare: how many more than that may be there until they agree on HELLO; the caller
        makes place for them then.
        """
        if len(self.connections) >= self.config.max_connections + spare:
            return None
        nonce = self._entropy(NONCE_BYTES) if self._key else b""
        link = Link(self._hello, self._clock(), self._key, nonce)
        connection = Connection(self, link, self._clock)
        if self._key:
            connection.owner = b""  # all that have proved the one key
        self.connections.add(connection)
        self.counters.connections += 1
        return connection

    def disconnect(self, connection: Connection[Context]) -> None:
        """The stream has ended: free everything the connection held (P17)."""
        connection.closing = True
        connection.free()
        connection.answers.close()
        if connection in self.connections:
            self.connections.remove(connection)
            self.counters.ended += 1
            if not isinstance(connection.owner, bytes):
                self.finished.forget(connection.owner)

    def wait(self, connection: Connection[Context], task: DraftTask) -> None:
        """Let a task wait for its turn; one that its session asked for before is over."""
        held = connection.contexts.get(task.session)
        if held is not None and held.shared:
            held.share(task.new_tokens)  # another text may have begun since it was taken
        elif held is None and not task.cached_tokens:
            self._resume(connection, task)
        self.counters.withdrawn += self._scheduler.put(connection, task)

    def reserve(self, connection: Connection[Context], task: DraftTask, size: int) -> bool:
        """Reserve memory for the answer to a task; False = as much is held as may be.

        Sessions in which nothing was asked for long are evicted first (P32): only those whose end
        gives memory back at once, and none of them where all together give too little.
        """
        if connection.answers.take(task.session, size):
            return True
        for each in self.connections:
            each.settle()
        lacking = self.memory.lacks(size)
        ending: list[tuple[Connection[Context], int]] = []
        for each, silent in self._longest_silent():
            if lacking <= 0:
                break
            freed = each.frees(silent)
            if freed:
                ending.append((each, silent))
                lacking -= freed
        if lacking <= 0:
            for each, silent in ending:
                each.lapse(silent)
            if ending:
                self.lapsed(len(ending), LeaseEnd.EVICTED)
        taken = connection.answers.take(task.session, size)
        self.counters.short += not taken
        return taken

    def _longest_silent(self) -> list[tuple[Connection[Context], int]]:
        """Return the sessions to evict, of all verifiers, the longest silent first."""
        now, seconds = self._clock(), self.config.peer.evict_idle_after
        silent = [(each.silent(now, seconds), each) for each in self.connections]
        longest = [(at, session, each) for found, each in silent for at, session in found]
        return [(each, session) for _, session, each in sorted(longest, key=itemgetter(0))]

    def withdraw(self, connection: Connection[Context], session: int | None = None) -> None:
        """Cancel a session's task, or all of a connection's."""
        self.counters.withdrawn += self._scheduler.drop(connection, session)

    def _resume(self, connection: Connection[Context], task: DraftTask) -> None:
        """Give a new session the context of one that is over, where their prefixes share enough."""
        if self._window.start(task.first_position):
            return
        found = self.finished.take(connection.owner, array("i", task.new_tokens[:-1]))
        if found is not None:
            held, shared = found
            held.shared, held.unproved, held.stop = shared, True, None
            self._hold(connection, task, held)

    def _hold(
        self, connection: Connection[Context], task: DraftTask, held: HeldContext[Context]
    ) -> None:
        """A session has a context from now on."""
        connection.contexts[task.session] = held
        if connection.stops_early:
            held.stop = self._stop(self._clock, connection.finished)
        self.counters.sessions += 1

    def _cut(self, held: HeldContext[Context]) -> bool:
        """Cut a context of another session to what its new one shares; False where that fails."""
        try:
            self.engine.truncate(held.context, held.shared)
        except Exception:  # the engine is not ours, and a new context will do
            self._failed("cut")
            return False
        return True

    def close_context(
        self, connection: Connection[Context], session: int, *, keep: bool = True
    ) -> None:
        """A session needs its context no more; never raises, whatever the engine does.

        Every end of a session comes here: a verifier that leaves must not end the others. keep:
        for a later session, where such are kept; False = it is not to be trusted.
        """
        held = connection.contexts.pop(session, None)
        if held is None:
            return
        keep = keep and bool(self.config.kept_prefix_memory) and not self.draining
        if keep and isinstance(self.engine, MeasuresContexts):
            try:
                size = self.engine.context_bytes(held.context)
            except Exception:  # the engine is not ours
                self._failed("measure")
            else:
                self.finished.put(connection.owner, held, size)
                return
        self._close(held.context)

    def _close(self, context: Context) -> None:
        """Let the engine free a context."""
        try:
            self.engine.close(context)
        except Exception:  # the engine is not ours
            self._failed("close")

    def _failed(self, what: str) -> None:
        self.counters.engine_failures += 1
        _LOG.exception("the engine failed to %s a context", what)

    def positions_of(self, connection: Connection[Context]) -> int:
        """Return how many drafts a connection waits for."""
        return sum(task.policy.depth for task in self._scheduler.of(connection))

    @property
    def waiting(self) -> bool:
        """Whether there is something to draft."""
        return bool(self._scheduler)

    @property
    def queued(self) -> int:
        """Proposals that were asked for and are not begun; any thread may ask."""
        return len(self._scheduler)

    @property
    def open_sessions(self) -> int:
        """Sessions that were drafted for and are not over; any thread may ask."""
        return sum(len(connection.contexts) for connection in tuple(self.connections))

    @property
    def slots_in_use(self) -> int:
        """Proposals that are waited for; any thread may ask."""
        return len(self._scheduler) + self._drawing

    def owes(self, connection: Connection[Context]) -> bool:
        """Whether a verifier waits for a proposal, so that its silence is no silence."""
        return connection in self._scheduler

    def drain(self) -> None:
        """Take no more sessions, and keep none that is over; those drafted for go on."""
        self.draining = True
        self.finished.clear()

    def draft(self) -> list[Connection[Context]]:
        """Draw the next batch, and book it; returns the connections that were answered."""
        answered = self.draw()
        self.book()
        return answered

    def draw(self) -> list[Connection[Context]]:
        """Draw the next batch, connections in turn; returns the connections that were answered.

        Beside it a piece of a long prefix may be fed, whose task waits on. Sessions in which
        nothing was asked for their lease end first. Call ``book`` once the answers are sent.
        """
        began = self._clock()
        self._lapse(began)
        batch, piece = self._scheduler.take(self.config.max_batch)
        batch = [each for each in batch if self._wanted(*each)]
        if piece is not None and not self._wanted(*piece):
            self._scheduler.drop(piece[0], piece[1].session)
            piece = None
        answered: list[Connection[Context]] = []
        if batch or piece is not None:
            self._drawing = size = len(batch)
            drafts = self._drafts(batch, piece)
            self._drawing = 0
            took = self._clock() - began
            if piece is not None and self._fed(*piece, drafts[-1]):
                batch.append(piece)
            for (connection, task), draft in zip(batch, drafts, strict=False):
                connection.answer(task, draft)
                answered.append(connection)
                held = connection.contexts.get(task.session)
                if held is not None and isinstance(draft, Draft):
                    held.unproved = False
                    # The drafts that were fed: all that stand behind what was committed.
                    fed = max(held.context.length - len(held.tokens), 0)
                    held.tokens.extend(draft.tokens[:fed])
            self._unbooked.append((size, took, batch, drafts))
        return answered

    def book(self) -> None:
        """Count the batches that were drawn, and let their connections get ready for what follows.

        Called after the answers have left, so that no verifier waits for it.
        """
        counters = self.counters
        for size, seconds, batch, drafts in self._unbooked:
            if size:
                counters.batches.add(size)
            counters.seconds.add(seconds)
            for (connection, task), draft in zip(batch, drafts, strict=False):
                self._count(draft)
                connection.answered(task.session)
        self._unbooked.clear()

    def lapsed(self, sessions: int, why: LeaseEnd) -> None:
        """Sessions of a verifier that goes on were ended, since nothing was asked in them."""
        self.counters.ended_sessions[why] += sessions
        verb = "ends" if sessions == 1 else "end"
        text = f"{sessions} session{'' if sessions == 1 else 's'} in which nothing is asked {verb}"
        log_event(_LOG, logging.INFO, "sessions_lapsed", text, why=why.value, sessions=sessions)

    def _lapse(self, now: float) -> None:
        """End silent sessions; looks no more often than a lease can tell apart.

        A little later than the lease: a connection on which nothing at all is said ends first.
        """
        if now < self._lapse_at:
            return
        lease = self.config.peer.lease_seconds
        self._lapse_at = now + lease / _LOOKS_A_LEASE
        for connection in tuple(self.connections):
            silent = connection.silent(now, lease + lease / _LOOKS_A_LEASE)
            for _, session in silent:
                connection.lapse(session)
            if silent:
                self.lapsed(len(silent), LeaseEnd.EXPIRED)

    def shut_down(self) -> None:
        """Decline what waits, and free what is kept: this drafter is going away."""
        self.drain()
        for connection, task in self._scheduler.clear():
            self._count(Status.SHUTTING_DOWN)
            connection.answer(task, Status.SHUTTING_DOWN)
            connection.answered(task.session)

    def _wanted(self, connection: Connection[Context], task: DraftTask) -> bool:
        """Whether a task whose turn has come is still waited for; after a RESET it is not."""
        wanted = connection.table is not None and connection.table.wanted(task)
        self.counters.withdrawn += not wanted
        return wanted

    def _fed(
        self, connection: Connection[Context], task: DraftTask, fed: Draft | ShardDraft | Status
    ) -> bool:
        """Let a task whose piece was fed wait for the rest; returns whether it is over instead."""
        if isinstance(fed, Status):
            self._scheduler.drop(connection, task.session)
            return True
        assert connection.table is not None
        end = connection.contexts[task.session].end
        self._scheduler.put(connection, connection.table.fed(task, end))
        self.counters.prefill_chunks += 1
        return False

    def _count(self, draft: Draft | ShardDraft | Status) -> None:
        if isinstance(draft, Status):
            self.counters.declined[draft] += 1
        else:
            self.counters.proposals += 1
            admitted = draft.admitted if isinstance(draft, Draft) else 0
            self.counters.drafts += admitted or len(draft.tokens)

    def _drafts(
        self, batch: Sequence[Turn[Connection[Context]]], piece: Turn[Connection[Context]] | None
    ) -> Sequence[Draft | ShardDraft | Status]:
        """Return a draft for each of the batch, and behind them what became of the piece."""
        everyone = [*batch] if piece is None else [*batch, piece]
        try:
            jobs = [self._job(*each, piece=each is piece) for each in everyone]
            return self._proposer(self.engine, jobs, self._source)
        except Exception:
            # The engine is not ours, and whatever it raises must cost one proposal, not the
            # program. The culprit is found by drafting alone, from contexts that are made again.
            self.counters.engine_failures += 1
            if not self._give_up(everyone) and len(everyone) == 1:
                _LOG.exception("the engine failed; the proposal is declined")
                return [Status.INTERNAL]
        # Behind the handler: what the failed pass held is free by now.
        alone = [draft for one in batch for draft in self._drafts([one], None)]
        return alone if piece is None else [*alone, *self._drafts([], piece)]

    def _give_up(self, turns: Sequence[Turn[Connection[Context]]]) -> bool:
        """Close the contexts of turns that have failed; returns whether one may do better alone.

        What is kept goes as well: the engine may be short of memory, or another session's context
        be at fault.
        """
        better = self.finished.evict_all()
        for connection, task in turns:
            held = connection.contexts.get(task.session)
            better = better or (held is not None and held.unproved)
            self.close_context(connection, task.session, keep=False)
            connection.lose_states(task.session)
        return better

    def _feed(self, connection: Connection[Context], task: DraftTask) -> int:
        """Return how many tokens a task feeds, with those that the model has lost."""
        start, kept = self._reading(connection.contexts.get(task.session), task)
        return task.first_position - start - kept

    def _reading(self, held: HeldContext[Context] | None, task: DraftTask) -> tuple[int, int]:
        """Return the first position that the model reads for a task, and how many it has read."""
        start = self._window.start(task.first_position)
        return start, 0 if held is None else held.keeps(start, task.cached_tokens)

    def _job(
        self, connection: Connection[Context], task: DraftTask, *, piece: bool
    ) -> DraftJob[Context]:
        held = connection.contexts.get(task.session)
        if held is not None and held.shared and not self._cut(held):
            self.close_context(connection, task.session, keep=False)
            held = None
        if held is None:
            held = HeldContext(self.engine.open())
            self._hold(connection, task, held)
        # Less than is kept where it was made again after the engine failed, where drafts were not
        # the model's, or where the window has moved on.
        held.start, kept = self._reading(held, task)
        self.engine.truncate(held.context, kept)
        held.shared = 0
        del held.tokens[kept:]
        if not piece:
            self.counters.state_rows += give_states(self.engine, held, task, connection.states)
        tokens, policy, mirror = task.new_tokens[held.end - task.cached_tokens :], task.policy, None
        if held.end < task.cached_tokens:
            assert connection.table is not None
            tokens = connection.table[task.session].tokens[held.end :]
        if piece:
            tokens, policy = (
                tokens[: self.config.peer.prefill_chunk_tokens],
                replace(policy, depth=0),
            )
        else:
            mirror = held.mirror_of(task, self.engine.vocab_size)
            if held.stop is not None:
                held.stop.begin(task.round, task.commit, policy.depth)
        held.tokens.extend(tokens)
        self.counters.fed_tokens += len(tokens)
        return DraftJob(
            held.context,
            tokens,
            policy,
            task.proposal_key,
            task.generation,
            task.round,
            task.first_position,
            task.session,
            held.stop,
            mirror,
        )


class ProgramMaker(Protocol[Context]):
    """What makes the program of a server."""

    def __call__(
        self, engine: DraftEngine[Context], config: DrafterConfig, *, key: bytes
    ) -> DrafterProgram[Context]:
        """Return a program without connections."""
