"""The drafter's process: one thread, one selector; every STEP that is ready goes into one batch."""

from __future__ import annotations

import math
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Generic, Self

from draftwire.drafter.admission import Admission
from draftwire.drafter.counters import LeaseEnd, Rejection
from draftwire.drafter.engine import Context, DraftEngine
from draftwire.drafter.listener import Listener
from draftwire.drafter.log import DrafterLog
from draftwire.drafter.peers import Peer, close_gently
from draftwire.drafter.program import DrafterConfig, DrafterProgram, ProgramMaker
from draftwire.drafter.signals import take_signals
from draftwire.drafter.waker import Waker
from draftwire.transport.keys import PresharedKey
from draftwire.transport.security import Security
from draftwire.transport.stream import READ, WRITE, PlainStream
from draftwire.transport.tcp import Address, listen
from draftwire.transport.times import seconds_until
from draftwire.transport.tls import Tls, TlsFiles, tls_reason

CLOSING_SECONDS: Final = 1.0


class DrafterServer(Generic[Context]):
    """Serves a :class:`DrafterProgram` on a listening socket until ``stop`` is called.

    A connection whose peer does not read is not read from either, so that what waits for it is
    bounded by one read's worth of answers; one that reads too much for its limits is not read from
    for a while. Connections over the limit are closed at once; of those that have not agreed on
    HELLO the oldest is evicted first (P23). One that has agreed ends when it keeps silent for its
    lease, and the one that has been without a proposal for longest is evicted for a verifier
    that agrees on HELLO when all places are taken (P30): not for a connection alone.
    """

    def __init__(
        self, program: DrafterProgram[Context], listener: socket.socket, tls: Tls | None = None
    ) -> None:
        """Take over a non-blocking listening socket. tls: what every connection begins with."""
        self.program = program
        self._limits = program.config.peer
        self._tls = tls
        self._selector = selectors.DefaultSelector()
        self._waker = Waker(self._selector)
        self.peers: set[Peer[Context]] = set()
        self.unread: set[Peer[Context]] = set()  # of which received bytes wait in their streams
        self._admission: Admission[Context] = Admission(
            program.config.max_connections,
            self._limits,
            lambda peer: program.owes(peer.connection),
        )
        self._log = DrafterLog(time.monotonic)
        self._listener = Listener(listener, self._selector, self._exhausted)
        self._stopping = False
        self._drain_seconds: float | None = None
        self._drained_by = 0.0
        self._due = 0.0  # when a peer has to be judged at the earliest, as the wait began

    @property
    def address(self) -> Address:
        """Where it listens."""
        return self._listener.address

    @property
    def draining(self) -> bool:
        """Whether it takes no more sessions; any thread may ask."""
        return self._stopping or self._drain_seconds is not None

    def wake_descriptor(self) -> int:
        """Return a descriptor; a byte written to it ends the wait of ``run`` (signals do)."""
        return self._waker.fileno()

    def stop(self) -> None:
        """Make ``run`` return soon; may be called from any thread or signal handler."""
        self._stopping = True
        self._waker.wake()

    def drain(self, seconds: float) -> None:
        """Take no more sessions, and make ``run`` return when there are none left.

        seconds: how long they may take. Asked a second time, it is as ``stop``. May be called from
        any thread or signal handler.
        """
        if self._drain_seconds is not None:
            self.stop()
            return
        self._drain_seconds = seconds
        self._waker.wake()

    def wake(self) -> None:
        """End the wait of this turn, or of the next one; may be called from anywhere."""
        self._waker.wake()

    def run(self) -> None:
        """Serve until stopped, then tell every verifier, and close everything."""
        try:
            while not self._stopping and not self._drained():
                self.turn()
            self._close_gracefully()
        finally:
            self._close()

    def _drained(self) -> bool:
        """Begin to drain if that was asked for; returns whether the end of it has come."""
        if self._drain_seconds is None:
            return False
        program = self.program
        if not program.draining:
            program.drain()
            self._drained_by = time.monotonic() + self._drain_seconds
            self._listener.close()
            self._log.draining(self._drain_seconds, program.open_sessions)
        idle = not program.waiting and not program.open_sessions
        return idle or time.monotonic() >= self._drained_by

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the sockets, if ``run`` has not done so."""
        self._close()

    def turn(self) -> None:
        """Wait for something, read all that is there, draft it as one batch, send.

        What is waited for is on its way before anything is booked or judged.
        """
        touched: list[Peer[Context]] = []
        # Of these the selector knows nothing: what waits has been decrypted already.
        unread = [peer.stream.socket for peer in self.unread if peer.interest == READ]
        ready = self._selector.select(self._patience(waits=not unread))
        if unread:
            known = {key.fileobj for key, _ in ready}
            ready += [(self._selector.get_key(s), READ) for s in unread if s not in known]
        if len(ready) > 1:
            # Verifiers first: one that has spoken must not lose its place to who is read before it.
            ready.sort(key=self._rank)
        for key, events in ready:
            peer: Peer[Context] | None = key.data
            if peer is None:
                self._attend(key.fileobj)
                continue
            if not peer.stream.handshake_done:
                self._handshake(peer)
            elif events & READ:
                self._read(peer)
            touched.append(peer)
        heard = time.monotonic()
        answered = self.program.draw()
        # A batch may answer peers that sent their STEP in an earlier turn.
        awaited = [peer for peer in self.peers if peer.connection in answered] if answered else []
        for peer in awaited:
            peer.flush()
        self.program.book()
        after = time.monotonic()
        for peer in touched:
            self._book(peer, heard)
        touched += self._judge(heard, awaited)
        self._admission.excuse(after - heard)
        for peer in awaited:
            self._admission.worked(peer, after)
        for peer in dict.fromkeys((*touched, *awaited)):
            self._write(peer)

    def _rank(self, event: tuple[selectors.SelectorKey, int]) -> int:
        peer: Peer[Context] | None = event[0].data
        return 2 if peer is None else int(self._admission.half_open(peer))

    def _patience(self, *, waits: bool) -> float | None:
        """Seconds until something has to be done though nothing comes; None = there is nothing.

        waits: False = there is something to do at once.
        """
        if not waits or self.program.waiting:
            self._due = 0.0
            return 0.0
        times = [self._drained_by] if self.program.draining else []
        times += [
            each for each in (self._admission.due(), self._listener.opens) if each is not None
        ]
        self._due = min(times, default=math.inf)
        return max(seconds_until(self._due), 0.0) if times else None

    def _judge(self, heard: float, awaited: list[Peer[Context]]) -> list[Peer[Context]]:
        """End who was too slow or too silent up to ``heard``, by when all that came was read.

        awaited: who was answered since, and waited until then. Returns those that may be read from
        again.
        """
        if heard < self._due:
            return []
        for peer in awaited:
            self._admission.worked(peer, heard)
        for peer in self._admission.too_slow(heard):
            self._count(Rejection.TOO_SLOW)
            self._turn_away(peer, TimeoutError("it did not agree on HELLO in time"))
        resumed = self._admission.resumed(heard)
        for peer in self._admission.expired(heard):
            self._end_lease(peer, LeaseEnd.EXPIRED)
        self._listener.look(heard)
        return resumed

    def _attend(self, ready: Any) -> None:
        if ready is self._waker.far:
            self._waker.drain()
            return
        while (accepted := self._listener.accept(time.monotonic())) is not None:
            self._admit(accepted)

    def _exhausted(self, error: OSError) -> None:
        self.program.counters.exhausted += 1
        self._log.exhausted(error)

    def _admit(self, accepted: socket.socket) -> None:
        now = time.monotonic()
        crowded_out = self._admission.crowded_out(now)
        if crowded_out is not None:
            self._count(Rejection.EVICTED)
            self._turn_away(crowded_out, TimeoutError("others wait to connect"))
        try:
            stream = PlainStream(accepted) if self._tls is None else self._tls.accept(accepted)
        except OSError:  # it went away again
            accepted.close()
            return
        connection = self.program.connect(self._admission.spare(now))
        if connection is None:
            self._count(Rejection.FULL)
            stream.socket.close()
            return
        peer = Peer(stream, connection, now + self._limits.handshake_seconds)
        self.peers.add(peer)
        self._admission.admit(peer)
        self._log.opened(peer.name, peer.host)
        self._watch(peer, stream.wants)

    def _agree(self, peer: Peer[Context]) -> None:
        """A peer has agreed on HELLO: give it a place, another's where there is none left."""
        if peer.stream.peer_identity:
            peer.connection.owner = peer.stream.peer_identity
        now = time.monotonic()
        if self._admission.taken:
            yields = self._admission.evictable(now)
            if yields is None:
                self._count(Rejection.FULL)
                self._turn_away(peer, TimeoutError("all places are taken"))
                return
            self._end_lease(yields, LeaseEnd.EVICTED)
        self._admission.agree(peer, now)

    def _end_lease(self, peer: Peer[Context], why: LeaseEnd) -> None:
        silent = self._admission.silent(peer, time.monotonic())
        self.program.counters.ended_leases[why] += 1
        self._log.lease_ended(peer.name, why, silent, len(peer.connection.contexts))
        self._forget(peer, told=True)

    def _handshake(self, peer: Peer[Context]) -> None:
        try:
            peer.stream.do_handshake()
        except OSError as error:
            self._count(Rejection.NO_TLS)
            self._turn_away(peer, ConnectionError(f"no TLS: {tls_reason(error)}"))
            return
        if peer.stream.handshake_done:  # the peer's first message may be among what TLS has read
            self._read(peer)

    def _read(self, peer: Peer[Context]) -> None:
        """Read once, so much as P24 allows in a turn; what is left waits for the next one."""
        connection = peer.connection
        self.unread.discard(peer)
        try:
            count = peer.stream.receive_into(connection.buffer())
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self._forget(peer)
            return
        connection.filled(count)
        if peer.stream.pending and not connection.closing:
            self.unread.add(peer)
        if connection.error is not None:
            self._log.refused(peer.name, peer.host, connection.error)
        elif connection.table is not None and self._admission.half_open(peer):
            self._agree(peer)

    def _book(self, peer: Peer[Context], now: float) -> None:
        """Take what was read out of a peer's limits, and renew its lease if it was heard."""
        connection = peer.connection
        pause = connection.book()
        if pause and peer in self.peers:
            peer.resumes = now + pause
            self._admission.pause(peer)
        heard_at = connection.heard_at
        if heard_at != peer.heard_at and not connection.closing:
            peer.heard_at = heard_at
            self._admission.renew(peer, now)

    def _write(self, peer: Peer[Context]) -> None:
        if peer not in self.peers:
            return
        if not peer.stream.handshake_done:
            self._watch(peer, peer.stream.wants)
            return
        connection = peer.connection
        reads = peer.interest == READ and not self._admission.paused(peer)
        if reads and not connection.outgoing and not connection.closing:
            return
        waited = connection.outgoing.size if peer.interest == WRITE else 0
        try:
            done = peer.stream.flush(connection.outgoing)
        except OSError:
            self._forget(peer)
            return
        if connection.outgoing.size < waited:  # it takes what it was sent: a slow link, not silence
            self._admission.worked(peer, time.monotonic())
        if done and connection.closing:
            self._forget(peer)
            return
        self._watch(peer, WRITE if not done else 0 if self._admission.paused(peer) else READ)

    def _watch(self, peer: Peer[Context], interest: int) -> None:
        """Wait for ``interest`` of this peer; 0 = for nothing."""
        if not peer.watch(self._selector, interest):
            self._forget(peer)

    def _turn_away(self, peer: Peer[Context], error: Exception) -> None:
        self._log.refused(peer.name, peer.host, error)
        self._forget(peer, told=True)

    def _count(self, why: Rejection) -> None:
        self.program.counters.rejected[why] += 1

    def _forget(self, peer: Peer[Context], *, told: bool = False) -> None:
        """Close a connection and free what it holds. told: the operator knows why."""
        if peer in self.peers:
            self.peers.remove(peer)
            self.unread.discard(peer)
            self._admission.forget(peer)
            self._watch(peer, 0)
            if peer.connection.table is not None and not told:
                error = peer.connection.error
                self._log.closed(peer.name, "it left" if error is None else str(error))
            self.program.disconnect(peer.connection)
            close_gently(peer.stream.socket)

    def _close_gracefully(self) -> None:
        """Answer everybody with SHUTTING_DOWN and give the peers a moment to take it."""
        self._listener.close()
        self._log.ended(self.program.open_sessions)
        self.program.shut_down()
        for peer in self.peers:
            peer.connection.leave()
        deadline = time.monotonic() + CLOSING_SECONDS
        for peer in list(self.peers):
            self._write(peer)
        while any(peer.connection.outgoing for peer in self.peers):
            left = deadline - time.monotonic()
            if left <= 0:
                return
            for key, _ in self._selector.select(left):
                if key.data is not None:
                    self._write(key.data)

    def _close(self) -> None:
        self.program.drain()
        for peer in list(self.peers):
            self._forget(peer)
        self._listener.close()
        self._selector.close()
        self._waker.close()


def serve(
    engine: DraftEngine[Context],
    config: DrafterConfig,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    security: Security | None = None,
    ready: Callable[[Address], None] | None = None,
    drain_seconds: float = 0.0,
    watch: Callable[[DrafterServer[Context]], AbstractContextManager[object]] | None = None,
    make: ProgramMaker[Context] = DrafterProgram,
) -> None:
    """Serve ``engine`` until SIGINT or SIGTERM; returns then, with every context closed.

    drain_seconds: after SIGTERM no session begins, and those that are open may go on for so long;
    a second one, or SIGINT, ends that too. watch: entered while the server runs, for metrics. make:
    stands in for DrafterProgram, where proposals are made over ranks.
    security: a key that verifiers have to prove, or certificates both ways; an address that other
    machines can reach is not listened on without one.
    ready: called with the bound address once verifiers can connect, after the arithmetic has been
    compiled (no verifier's deadline pays for that). Signals are taken over in the main thread only.
    Raises TransportError (the port is in use, the address is open without authentication) and
    ConfigurationError.
    """
    key = security.secret if isinstance(security, PresharedKey) else b""
    tls = Tls(security, server=True) if isinstance(security, TlsFiles) else None
    program = make(engine, config, key=key)
    program.warm_up()
    listener = listen(host, port, guarded=security is not None)
    with DrafterServer(program, listener, tls) as server:
        restore = take_signals(
            server.stop, lambda: server.drain(drain_seconds), server.wake_descriptor()
        )
        try:
            with nullcontext() if watch is None else watch(server):
                if ready is not None:
                    ready(server.address)
                server.run()
        finally:
            restore()
