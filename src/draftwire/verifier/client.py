"""The verifier's end of a connection: rounds asked under a deadline, over any channel.

Nothing that a drafter or a network does raises out of a round: it costs the round its proposal,
under a named reason, and a later round tries again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Self, TypeAlias
from weakref import WeakSet

from draftwire.errors import TransportError
from draftwire.kernels.shards.shard import Shard
from draftwire.rows.prepare import prepare
from draftwire.session.link import Alive
from draftwire.session.proposal import Dropped, Parts, Proposal, Received
from draftwire.session.reasons import DropReason
from draftwire.session.slot_buffers import ReplySlots
from draftwire.session.verifier_session import VerifierSession
from draftwire.transport.channel import Channel
from draftwire.transport.queue import size_of
from draftwire.verifier.breaker import Breaker
from draftwire.verifier.config import VerifierConfig, configured
from draftwire.verifier.connection import ClientLock, Connection, ConnectionEvent, Lost
from draftwire.verifier.counters import ClientCounters
from draftwire.verifier.deadlines import Deadline
from draftwire.verifier.log import ClientLog
from draftwire.verifier.miss import Drafted, Miss, MissReason
from draftwire.verifier.pending_rounds import PendingRounds
from draftwire.verifier.request import ClientRequest
from draftwire.verifier.states import TargetStates
from draftwire.verifier.totals import Totals
from draftwire.wire.agreement import Agreed
from draftwire.wire.messages import Complete, ErrorMessage, Hello, ProposalPolicy, Reply

__all__ = ["ClientRequest", "DraftClient"]

Asked: TypeAlias = tuple[ClientRequest, VerifierSession, ProposalPolicy]
"""A request that asks now, with its session and the policy at the depth that it may."""

_ANSWERS: Final = (Reply, Complete, ErrorMessage)
_ASKED: Final = Miss(MissReason.NO_CONNECTION)  # stands where a result will


class DraftClient:
    """A drafter at the other end of a channel; several requests may share it.

    A request has one round in flight at a time; ``propose_all`` has one of several requests. Any
    thread may use it: rounds of several threads are in flight together. One thread waits for bytes,
    the lock let go, and hands what comes to all; the others wait for it, each to its own deadline.
    In the child of a fork the connection stays the parent's, and a later round connects anew.

    open_channel: opens a channel, given the time it may take until; raises TransportError. hello:
    what this side says of itself. config, options: see :class:`VerifierConfig`; options replace
    fields of the config. clock: seconds, monotonic. entropy: makes nonces. breaker: pauses
    drafting that does not pay; None = never. name: of the drafter, in logs. target_states: what the
    target has of them, as ``hello`` offers it. Raises ConfigurationError.
    """

    def __init__(
        self,
        open_channel: Callable[[float], Channel],
        hello: Hello,
        config: VerifierConfig | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        entropy: Callable[[int], bytes] = os.urandom,
        breaker: Breaker | None = None,
        name: str = "the drafter",
        target_states: TargetStates | None = None,
        **options: Any,
    ) -> None:
        """Compile the arithmetic; nothing is opened yet."""
        self.config = configured(config, **options)
        self.clock = clock
        self.breaker = breaker
        lock = threading.RLock()
        self.lock: ClientLock = lock
        self.totals = Totals()
        self.counters = ClientCounters()
        self._log = ClientLog(name)
        self._hello = hello
        self._deadline = Deadline(self.config.deadline)
        self.connection = Connection(
            open_channel,
            hello,
            self.config,
            clock=clock,
            entropy=entropy,
            counters=self.counters,
            log=self._log,
            lock=self.lock,
            target_states=target_states,
        )
        self._changed = threading.Condition(lock)  # some round may have a result
        self._waiting = 0  # threads that wait for that
        self._pinging = threading.Lock()
        self._requests: dict[int, ClientRequest] = {}
        self._rounds = PendingRounds()
        self._alive: float | None = None  # seconds of the last PING
        self._opened = 0
        _clients.add(self)
        prepare()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def agreed(self) -> Agreed | None:
        """What HELLO agreed on the present connection; None while there is none."""
        return self.connection.agreed

    @property
    def deadline(self) -> float:
        """Seconds that the next round waits at most, if it follows others of its requests."""
        return self._deadline.seconds(opens=False)

    @property
    def vocab_size(self) -> int:
        """V of the target, which the drafter's must equal."""
        return self._hello.vocab_size

    @property
    def connect_timeout(self) -> float:
        """Seconds that connecting and HELLO may take together."""
        return self.config.connect_timeout

    @property
    def slots(self) -> ReplySlots | None:
        """The memory for replies on the present connection, or the last."""
        return self.connection.slots

    @property
    def open_requests(self) -> int:
        """Requests that were opened and not closed."""
        return len(self._requests)

    def open(self, prompt: Sequence[int], proposal_key: int) -> ClientRequest:
        """Begin drafting for one request from ``prompt``; nothing is sent yet."""
        with self.lock:
            self._opened += 1
            taken = {request.asking.slot for request in self._requests.values()}
            slot = next(slot for slot in range(len(taken) + 1) if slot not in taken)
            return self._begin(self._opened, slot, prompt, proposal_key, clock=time.perf_counter)

    @property
    def awaits_rounds(self) -> bool:
        """Whether a round was asked for and has no result yet."""
        return self._rounds.open

    def close(self) -> None:
        """End every request and the connection; may be called twice."""
        with self.lock:
            for request in list(self._requests.values()):
                request.close()
            self.disconnect()

    def connect(self, until: float | None = None) -> Agreed:
        """Connect and agree, if that has not been done; a round does the same by itself.

        until: seconds of the clock, where less time is left than ``connect_timeout``. Raises
        TransportError (unreachable), ProtocolError (refused, or not a drafter).
        """
        with self.lock:
            fresh = self.connection.agreed is None
            agreed = self.connection.open(until)
            if fresh:
                self._connected(agreed)
            return agreed

    def ensure_connected(self, until: float | None = None) -> str | None:
        """Connect if need be and due; returns why there is no connection, or None if there is."""
        connection = self.connection
        with self.lock:
            self._act(connection.catch_up())
            if connection.agreed is not None:
                return None
            if not self._may_connect():
                return "not tried again yet"
            failure = connection.try_open(until)
            if connection.agreed is not None:
                self._connected(connection.agreed)
            return failure

    def disconnect(self) -> None:
        """End the connection; a later round connects again, and rounds in flight are lost."""
        with self.lock:
            self.connection.close()
            self._rounds.give_up(DropReason.DISCONNECTED)
            self._disconnected()
            self._changed.notify_all()

    def ping(self) -> float:
        """Return the seconds that one PING takes, connecting first if need be.

        Call it between rounds. Raises as ``connect`` does, and TransportError without an answer
        within the deadline of a round that opens a generation.
        """
        with self._pinging, self.lock:
            self.connect()
            self._alive = None
            deadline = self.clock() + self._deadline.seconds(opens=True)
            try:
                self._end_if(self.connection.ping(deadline))
                while self._alive is None and self.agreed is not None:
                    self._read(deadline)
            except TimeoutError as error:
                self._end_if(self.connection.unanswered(error))
            except BaseException:  # interrupted: half a message may be on its way
                self.disconnect()
                raise
            if self._alive is None:
                raise TransportError("the drafter does not answer PING within the deadline")
            return self._alive

    def keep_alive(self) -> None:
        """Say PING where this side has long been silent; does not wait for the answer (P30).

        Requests do that in rounds that ask for nothing. A caller whose requests rest for longer
        than the drafter's lease may do it too, between rounds; otherwise a later round connects
        again and sends the prefix again.
        """
        with self.lock:
            self._act(self.connection.keep_alive(self.deadline))

    def propose_all(
        self,
        asked: Sequence[tuple[ClientRequest, ProposalPolicy]],
        until: float | None = None,
    ) -> list[Drafted]:
        """Begin the next round of each request and ask for all of them in one go.

        asked: different requests of this client. until: when the call returns at the latest, in
        seconds of the clock, connecting included; None = ``connect_timeout`` for connecting. The
        rounds' deadline counts from then on, if it is earlier. What has not come by then is lost
        for its own request alone.
        """
        with self.lock:
            return self._propose_all(asked, until)

    # for requests

    def agreement(self, until: float | None) -> Agreed | Miss:
        """Return what is agreed with the drafter, connecting if need be, or why none may ask."""
        before = self.counters.connections
        failure = self.ensure_connected(until)
        agreed = self.connection.agreed
        if failure is not None or agreed is None:
            return Miss(MissReason.NO_CONNECTION, failure or "")
        connected = self.counters.connections != before
        if connected and until is not None and self.clock() >= until:
            return Miss(MissReason.NO_CONNECTION, "connecting took the time of this round")
        return agreed

    def book(self, result: Proposal | Dropped, round_trip: float | None) -> None:
        """Count how a round that was asked has ended, and log its loss."""
        if isinstance(result, Dropped):
            self._log.dropped(result.reason, result.detail)
        elif round_trip is not None:
            self.counters.round_trip.add(round_trip)

    def end(self, request: ClientRequest) -> None:
        """End a request here and tell the drafter, so that it frees what it holds."""
        if self._requests.pop(request.asking.session, None) is None:
            return
        closed = "the request was closed in another thread"
        self._rounds.give_up(DropReason.DISCONNECTED, closed, [request.asking.session])
        messages = request.asking.finish()
        try:
            size = self.connection.close_gracefully(messages, self.deadline)
        finally:
            if self.connection.agreed is None:
                self._disconnected()
        request.traffic.sent += size
        self.counters.sent += size

    # inside

    def _propose_all(
        self, asked: Sequence[tuple[ClientRequest, ProposalPolicy]], until: float | None
    ) -> list[Drafted]:
        drafted: list[Drafted] = []
        sent: list[Asked] = []
        places: list[int] = []
        # Looked for once: a connection that ends between two looks would leave a request behind
        # that was let through on it.
        agreed: Agreed | Miss | None = None
        for request, policy in asked:
            miss = request.pauses()
            if miss is None:
                agreed = agreed or self.agreement(until)
                miss, policy = request.allowed(policy, agreed)
            if miss is None:
                places.append(len(drafted))
                sent.append((request, request.asking, policy))
            else:
                request.asking.skip()
            drafted.append(miss or _ASKED)
        if not sent:
            self.keep_alive()
            return drafted
        results = self._ask(sent, until)
        for at, (request, _, _), result in zip(places, sent, results, strict=True):
            drafted[at] = request.drafted(result)
        return drafted

    def _may_connect(self) -> bool:
        """Whether to connect now."""
        return self.connection.may_try()

    def _begin(
        self,
        number: int,
        slot: int,
        prompt: Sequence[int],
        key: int,
        *,
        clock: Callable[[], float],
        shard: Shard | None = None,
    ) -> ClientRequest:
        """Open a session under this number and slot."""
        session = VerifierSession(
            number,
            slot,
            prompt,
            key,
            self.agreed,
            audit=self.config.audit,
            clock=clock,
            shard=shard,
            slots=self.slots,
        )
        session.drops = self.counters.drops
        request = self._requests[number] = ClientRequest(self, session)
        return request

    def _ask(self, asked: Sequence[Asked], until: float | None) -> list[Proposal | Dropped]:
        """Send a STEP for each request and wait for the proposals until the deadline."""
        now = self.clock()
        opens = any(session.opens for _, session, _ in asked)
        whole = now + self._deadline.seconds(opens=opens)
        deadline = whole if until is None else min(whole, until)
        sessions = [session.session for _, session, _ in asked]
        try:
            self._send(asked, now, deadline)
            if not self._receive(deadline, sessions):
                self._too_late(sessions)
        except BaseException:
            self._interrupted(sessions)
            raise
        results = [self._rounds.take(session) for session in sessions]
        trips = [session.round_trip for _, session, _ in asked]
        self._deadline.finished(results, trips, opens=opens, cut=deadline < whole)
        return results

    def _send(self, asked: Sequence[Asked], now: float, deadline: float) -> None:
        """Send a STEP for each request."""
        connection = self.connection
        agreed = connection.agreed
        if agreed is None:
            raise ConnectionError("there is no connection to ask on")
        rounds: dict[int, VerifierSession] = {}
        parts: Parts = []
        for request, session, policy in asked:
            rounds[session.session] = session
            states = request.states(agreed, self.config.state_projection)
            self.counters.state_bytes += len(states.data)
            step = connection.encode(session.ask(policy, now, deadline, states=states))
            size = sum(map(size_of, step))
            request.traffic.sent += size
            self.counters.sent += size
            parts += step
        self._rounds.ask(rounds)
        lost = connection.send(parts, deadline)
        connection.asked(now)
        self._end_if(lost)

    def _receive(self, until: float, sessions: Sequence[int]) -> bool:
        """Follow what comes until each of these rounds has a result; False past the time."""
        try:
            while self._rounds.waiting(sessions):
                self._read(until)
        except TimeoutError:
            return False
        return True

    def _read(self, until: float) -> None:
        """Follow what comes next, or let the thread do it that waits for bytes; TimeoutError."""
        if self.connection.reading:
            self._waiting += 1
            try:
                if not self._changed.wait(max(until - self.clock(), 0.0)):
                    raise TimeoutError("the deadline has passed")
            finally:
                self._waiting -= 1
            return
        try:
            self._act(self.connection.receive(until))
        finally:
            if self._waiting:
                self._changed.notify_all()

    def _act(self, events: Iterable[ConnectionEvent]) -> None:
        """Do what the connection's events ask for."""
        for event in events:
            if isinstance(event, Received):
                if isinstance(event.message, _ANSWERS):
                    self._take(event, event.message.session)
            elif isinstance(event, Lost):
                self._lose(event)
            elif isinstance(event, Alive):
                self._alive = event.seconds

    def _take(self, received: Received, number: int) -> None:
        """Hand a message to the request that it is for."""
        request = self._requests.get(number)
        if request is None:
            self.counters.strays += 1
            return
        size = received.payload_bytes + self.connection.frame_bytes
        self.counters.received += size
        result = request.take(received, size, self.connection.heard_at)
        if result is not None:
            self._rounds.settle(number, result)

    def _lose(self, lost: Lost) -> None:
        """The connection is lost, and with it every round that has no result."""
        self._rounds.give_up(lost.reason, lost.detail)
        self._disconnected()
        self._changed.notify_all()

    def _end_if(self, lost: Lost | None) -> None:
        if lost is not None:
            self._lose(lost)

    def _connected(self, agreed: Agreed) -> None:
        slots = self.connection.slots
        assert slots is not None
        for request in self._requests.values():
            request.connected(agreed, slots)

    def _disconnected(self) -> None:
        for request in self._requests.values():
            request.asking.disconnected()

    def _too_late(self, sessions: Sequence[int]) -> None:
        """Drop what has not come; a connection that says nothing any more is given up as well."""
        self._rounds.give_up(DropReason.MISSED_DEADLINE, sessions=sessions)
        self._end_if(self.connection.too_silent(self.deadline))

    def _interrupted(self, sessions: Sequence[int]) -> None:
        """What was half sent or read cannot be gone on with."""
        self._rounds.forget(sessions)
        self.disconnect()

    def forked(self) -> None:
        """In the child of a fork: what was the parent's is left to it."""
        lock = threading.RLock()
        self.lock = self.connection.lock = lock
        self._changed = threading.Condition(lock)
        self._waiting, self._pinging = 0, threading.Lock()
        self.connection.forked()
        self._rounds = PendingRounds()
        self._disconnected()


def _forked() -> None:
    for client in _clients:
        client.forked()


_clients: Final[WeakSet[DraftClient]] = WeakSet()
os.register_at_fork(after_in_child=_forked)
