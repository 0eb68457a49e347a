"""The drafter program: connections, sessions, limits and batches; without a socket of its own."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic

from draftwire.drafter.engine import Context, DraftEngine
from draftwire.drafter.limits import Allowance, PeerLimits
from draftwire.drafter.propose import Draft, DraftJob, ProposalSource, Proposer, propose
from draftwire.errors import ConfigurationError, ProtocolError, ProtocolErrorCode
from draftwire.exact.words import ProposalWords
from draftwire.kernels.prepare import prepare
from draftwire.session.link import AgreedEvent, Closed, Link
from draftwire.session.proposal import DraftTask, Received
from draftwire.session.roster import Roster
from draftwire.transport.queue import OutQueue
from draftwire.wire.agreement import largest_reply_bytes, step_bytes, version_of
from draftwire.wire.messages import Hello
from draftwire.wire.registry import (
    NONCE_BYTES,
    PRECISION,
    Q_SEMANTIC,
    RNG_ABI,
    VERIFIER_SEMANTIC,
    HiddenDtype,
    LayoutSet,
    Role,
    Status,
    WireVersion,
)

_LOG: Final = logging.getLogger(__name__)
_U32_MAX: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """What a drafter offers, and how much it takes.

    version: the one wire version spoken. layouts: IDS_ONLY for v1; DENSE, SPARSE or both for v2.
    max_sessions, max_slots, max_depth, max_support: for each connection. max_context: 0 = the
    engine's. max_reply_bytes: 0 = what the other limits need; less is refused in HELLO (P8).
    max_connections: over all. max_batch: most proposals drawn at once. peer: rates and times.
    """

    version: WireVersion = WireVersion.V2
    layouts: LayoutSet = LayoutSet.DENSE | LayoutSet.SPARSE
    max_sessions: int = 4
    max_slots: int = 4
    max_depth: int = 8
    max_support: int = 256
    max_context: int = 0
    max_reply_bytes: int = 0
    max_connections: int = 64
    max_batch: int = 32
    peer: PeerLimits = field(default_factory=PeerLimits)

    def __post_init__(self) -> None:
        """Refuse limits that nothing could be done under."""
        for name in (
            "max_sessions",
            "max_slots",
            "max_depth",
            "max_support",
            "max_connections",
            "max_batch",
        ):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be 1 or more")
        if version_of(self.layouts) is not self.version:
            raise ConfigurationError(
                f"{self.layouts!r} does not belong to wire {self.version.name}: v1 carries IDS_ONLY"
                " alone, v2 DENSE and SPARSE"
            )


def drafter_hello(engine: DraftEngine[Any], config: DrafterConfig) -> Hello:
    """Return the HELLO of a drafter: its engine's identity and the limits of its configuration."""
    support = min(config.max_support, engine.vocab_size)
    context = min(config.max_context or engine.max_context, engine.max_context)
    depth = min(config.max_depth, context - 1)
    reply = largest_reply_bytes(config.layouts, engine.vocab_size, depth, support)
    return Hello(
        role=Role.DRAFTER,
        adaptation=engine.adaptation,
        layouts=config.layouts,
        vocab_size=engine.vocab_size,
        max_sessions=config.max_sessions,
        max_slots=config.max_slots,
        max_depth=depth,
        shard_count=1,
        max_support=support,
        max_context=context,
        max_step_bytes=step_bytes(context),
        max_reply_bytes=min(config.max_reply_bytes or reply, _U32_MAX),
        hidden_rows=0,
        hidden_dtype=HiddenDtype.NONE,
        hidden_width=0,
        q_semantic=Q_SEMANTIC,
        verifier_semantic=VERIFIER_SEMANTIC,
        rng_abi=RNG_ABI,
        precision=PRECISION,
        id_map_hash=engine.id_map_hash,
        tokenizer_hash=engine.tokenizer_hash,
        draft_identity=engine.identity,
        target_identity=bytes(32),
    )


class Connection(Generic[Context]):
    """One verifier: its link, its sessions and the engine's contexts behind them."""

    def __init__(
        self,
        program: DrafterProgram[Context],
        link: Link,
        clock: Callable[[], float],
    ) -> None:
        """Made by :meth:`DrafterProgram.connect`."""
        self.outgoing = OutQueue()
        self.closing = False
        self.contexts: dict[int, Context] = {}
        self.tasks: dict[int, DraftTask] = {}
        self.roster: Roster | None = None
        self.error: ProtocolError | None = None  # why it is closing, where there is a reason
        self.pause = 0.0  # seconds for which nothing more may be read (P24)
        self._program = program
        self._clock = clock
        self._link = link
        self._allowance = Allowance(program.config.peer, clock())
        self._frames = 0

    def buffer(self) -> memoryview:
        """Return where received bytes go."""
        return self._link.buffer()

    def filled(self, count: int) -> None:
        """Take ``count`` received bytes: answers go to ``outgoing``, tasks to the next batch."""
        now = self._clock()
        event = self._link.filled(count, now)
        while event is not None:
            if isinstance(event, Received):
                self._take(event)
            elif isinstance(event, AgreedEvent):
                self.roster = Roster(event.agreed)
            elif isinstance(event, Closed):
                self._close(event)
            event = self._link.filled(0, now)
        self.outgoing.push(self._link.outgoing())
        frames = self._link.received.total()
        self.pause = self._allowance.read(frames - self._frames, count, now)
        self._frames = frames

    def answer(self, task: DraftTask, draft: Draft | Status) -> None:
        """Send a proposal, or why there is none, if the task is still wanted."""
        if self.roster is None or self.closing:
            return
        if isinstance(draft, Draft):
            parts = self.roster.reply(task, list(zip(draft.tokens, draft.rows, strict=True)))
        else:
            parts = self.roster.decline(task, draft)
        self._link.send_parts(parts)
        self.outgoing.push(self._link.outgoing())

    def free(self) -> None:
        """End every session and close its context."""
        if self.roster is not None:
            self.roster.close()
        self.tasks.clear()
        while self.contexts:
            _, context = self.contexts.popitem()
            self._program.engine.close(context)

    def _begin(self, roster: Roster, task: DraftTask) -> None:
        """Put a task into the next batch, or decline it when too many drafts are in flight."""
        most = self._program.config.peer.max_positions
        held = sum(each.policy.depth for each in self.tasks.values()) if most else 0
        if most and held + task.policy.depth > most:
            self._link.send_parts(roster.decline(task, Status.NO_SLOT))
            return
        self.tasks[task.session] = task
        self._program.wait(self, task)

    def _close(self, closed: Closed) -> None:
        self.error = closed.error
        self.closing = True
        self.free()

    def _take(self, received: Received) -> None:
        assert self.roster is not None  # the link lets nothing through before HELLO is agreed
        todo = self.roster.receive(received.message)
        self._link.send_parts(todo.parts)
        if todo.refused and self._allowance.refused(self._clock()):
            code = ProtocolErrorCode.LIMIT_EXCEEDED
            self._close(self._link.refuse(ProtocolError(code, "too many messages were refused")))
            return
        if todo.task is not None:
            self._begin(self.roster, todo.task)
        for session in todo.ended:
            self.tasks.pop(session, None)
            context = self.contexts.pop(session, None)
            if context is not None:
                self._program.engine.close(context)


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
        proposer: Proposer[Context] = propose,
        clock: Callable[[], float] = time.monotonic,
        key: bytes = b"",
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """Begin without connections.

        source: stands in for the proposal's words, so that a law can be enumerated. proposer:
        stands in for :func:`propose`, where proposals are prepared to measure everything else.
        key: what every verifier has to prove that it holds (P20); none = nothing is asked.
        """
        self.engine = engine
        self.config = config
        self.connections: set[Connection[Context]] = set()
        self._hello = drafter_hello(engine, config)
        self._source = source
        self._proposer = proposer
        self._clock = clock
        self._key = key
        self._entropy = entropy
        self._waiting: list[tuple[Connection[Context], DraftTask]] = []

    def warm_up(self) -> None:
        """Compile the arithmetic, or load it from its cache, so that no round pays for it."""
        prepare()

    def connect(self) -> Connection[Context] | None:
        """Return a new connection, or None when there are as many as may be."""
        if len(self.connections) >= self.config.max_connections:
            return None
        nonce = self._entropy(NONCE_BYTES) if self._key else b""
        link = Link(self._hello, self._clock(), self._key, nonce)
        connection = Connection(self, link, self._clock)
        self.connections.add(connection)
        return connection

    def disconnect(self, connection: Connection[Context]) -> None:
        """The stream has ended: free everything the connection held (P17)."""
        connection.closing = True
        connection.free()
        self.connections.discard(connection)

    def wait(self, connection: Connection[Context], task: DraftTask) -> None:
        """Put a task into the next batch."""
        self._waiting.append((connection, task))

    @property
    def waiting(self) -> bool:
        """Whether there is something to draft."""
        return bool(self._waiting)

    def draft(self) -> list[Connection[Context]]:
        """Draw the next batch, oldest tasks first; returns the connections that were answered."""
        batch = [
            (connection, task)
            for connection, task in self._waiting[: self.config.max_batch]
            if connection.tasks.get(task.session) is task
        ]
        del self._waiting[: self.config.max_batch]
        for connection, task in batch:
            del connection.tasks[task.session]
        if batch:
            for (connection, task), draft in zip(batch, self._drafts(batch), strict=True):
                connection.answer(task, draft)
        return [connection for connection, _ in batch]

    def shut_down(self) -> None:
        """Decline what waits: this drafter is going away."""
        for connection, task in self._waiting:
            connection.answer(task, Status.SHUTTING_DOWN)
        self._waiting.clear()

    def _drafts(
        self, batch: Sequence[tuple[Connection[Context], DraftTask]]
    ) -> list[Draft | Status]:
        try:
            jobs = [self._job(connection, task) for connection, task in batch]
            return self._proposer(self.engine, jobs, self._source)
        except Exception:
            # The engine is not ours, and whatever it raises must cost one proposal, not the
            # program. The culprit is found by drafting alone, from contexts that are made again.
            for connection, task in batch:
                self._forget(connection, task.session)
            if len(batch) == 1:
                _LOG.exception("the engine failed; the proposal is declined")
                return [Status.INTERNAL]
            return [draft for one in batch for draft in self._drafts([one])]

    def _job(self, connection: Connection[Context], task: DraftTask) -> DraftJob[Context]:
        context = connection.contexts.get(task.session)
        if context is None:
            context = connection.contexts[task.session] = self.engine.open()
        tokens = task.tokens
        # Shorter where it was made again after the engine failed, or where drafts were not the
        # model's; what it holds is the beginning of what is kept all the same.
        if context.length < task.keep:
            assert connection.roster is not None
            tokens = connection.roster[task.session].tokens[context.length :]
        else:
            self.engine.rewind(context, task.keep)
        return DraftJob(
            context,
            tokens,
            task.policy,
            task.proposal_key,
            task.generation,
            task.round,
            task.first_position,
        )

    def _forget(self, connection: Connection[Context], session: int) -> None:
        context = connection.contexts.pop(session, None)
        if context is None:
            return
        try:
            self.engine.close(context)
        except Exception:  # as above: it may fail in any way
            _LOG.exception("the engine failed to close a context")
