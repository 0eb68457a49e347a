"""The drafter's process: one thread, one selector; every STEP that is ready goes into one batch."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Generic, Self

from draftwire.drafter.counters import LeaseEnd, TurnedAway
from draftwire.drafter.engine import Context, DraftEngine
from draftwire.drafter.journal import DrafterJournal
from draftwire.drafter.leases import Leases
from draftwire.drafter.peers import Peer, close_gently
from draftwire.drafter.program import DrafterConfig, DrafterProgram, ProgramMaker
from draftwire.drafter.signals import take_signals
from draftwire.transport.keys import PresharedKey
from draftwire.transport.security import Security
from draftwire.transport.stream import READ, WRITE, PlainStream
from draftwire.transport.tcp import Address, accept, bound_address, listen, seconds_until
from draftwire.transport.tls import Tls, TlsFiles, tls_reason

FAREWELL_SECONDS: Final = 1.0


class DrafterServer(Generic[Context]):
    """Serves a :class:`DrafterProgram` on a listening socket until ``stop`` is called.

    A connection whose peer does not read is not read from either, so that what waits for it is
    bounded by one read's worth of answers; one that reads too much for its limits is not read from
    for a while. Connections over the limit are closed at once; of those that have not agreed on
    HELLO the oldest makes way first (P23). One that has agreed ends when it keeps silent for its
    lease, and the longest silent one makes way for a verifier that agrees on HELLO when all places
    are taken (P30): not for somebody who has merely connected.
    """

    def __init__(
        self, program: DrafterProgram[Context], listener: socket.socket, tls: Tls | None = None
    ) -> None:
        """Take over a non-blocking listening socket. tls: what every connection begins with."""
        self.program = self._program = program
        self._limits = program.config.peer
        self._listener = listener
        self._tls = tls
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, READ, None)
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        self._selector.register(self._woken, READ, None)
        self._peers: set[Peer[Context]] = set()
        self._half_open: dict[Peer[Context], None] = {}  # oldest first
        self._paused: set[Peer[Context]] = set()
        self._leases: Leases[Peer[Context]] = Leases(
            self._limits.lease_seconds,
            lambda peer: program.owes(peer.connection) or peer in self._paused,
        )
        self._journal = DrafterJournal(time.monotonic)
        self._address = bound_address(listener)
        self._stopping = False
        self._drain_seconds: float | None = None
        self._drained_by = 0.0

    @property
    def address(self) -> Address:
        """Where it listens."""
        return self._address

    @property
    def draining(self) -> bool:
        """Whether it takes no more sessions; any thread may ask."""
        return self._stopping or self._drain_seconds is not None

    def wake_descriptor(self) -> int:
        """Return a descriptor; a byte written to it ends the wait of ``run`` (signals do)."""
        return self._wake.fileno()

    def stop(self) -> None:
        """Make ``run`` return soon; may be called from any thread or signal handler."""
        self._stopping = True
        self._nudge()

    def drain(self, seconds: float) -> None:
        """Take no more sessions, and make ``run`` return when there are none left.

        seconds: how long they may take. Asked a second time, it is as ``stop``. May be called from
        any thread or signal handler.
        """
        if self._drain_seconds is not None:
            self.stop()
            return
        self._drain_seconds = seconds
        self._nudge()

    def _nudge(self) -> None:
        try:
            self._wake.send(b"\0")
        except OSError:  # full, so it wakes anyway; or closed, so nobody waits
            return

    def run(self) -> None:
        """Serve until stopped, then tell every verifier, and close everything."""
        try:
            while not self._stopping and not self._drained():
                self._turn()
            self._say_goodbye()
        finally:
            self._close()

    def _drained(self) -> bool:
        """Begin to drain if that was asked for; returns whether the end of it has come."""
        if self._drain_seconds is None:
            return False
        program = self._program
        if not program.draining:
            program.drain()
            self._drained_by = time.monotonic() + self._drain_seconds
            self._selector.unregister(self._listener)
            self._listener.close()  # whoever follows us may listen there now
            self._journal.draining(self._drain_seconds, program.open_sessions)
        idle = not program.waiting and not program.open_sessions
        return idle or time.monotonic() >= self._drained_by

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the sockets, if ``run`` has not done so."""
        self._close()

    def _turn(self) -> None:
        """Wait for something, read all that is there, draft it as one batch, send."""
        touched: list[Peer[Context]] = []
        for key, events in self._selector.select(self._patience()):
            peer: Peer[Context] | None = key.data
            if peer is None:
                self._attend(key.fileobj)
                continue
            if not peer.stream.greeted:
                self._greet(peer)
            elif events & READ:
                self._read(peer)
            touched.append(peer)
        heard = time.monotonic()  # who speaks while the batch is drawn is not silent
        answered = self._program.draft()
        if answered:
            # A batch may answer peers that sent their STEP in an earlier turn.
            now, awaited = time.monotonic(), [p for p in self._peers if p.connection in answered]
            for peer in awaited:
                self._leases.renew(peer, now)
            touched += awaited
        if self._half_open or self._paused:
            touched += self._overdue(time.monotonic())
        for peer in self._leases.expired(heard):
            self._end_lease(peer, LeaseEnd.EXPIRED)
        for peer in touched:
            self._write(peer)

    def _patience(self) -> float | None:
        """Seconds until something has to be done though nothing comes; None = there is nothing."""
        if self._program.waiting:
            return 0.0
        times = [self._drained_by] if self._program.draining else []
        times += [peer.deadline for peer in self._half_open] + [p.resumes for p in self._paused]
        lease = self._leases.due()
        times += [] if lease is None else [lease]
        return max(seconds_until(min(times)), 0.0) if times else None

    def _overdue(self, now: float) -> list[Peer[Context]]:
        """Drop who has not agreed in time; return those that may be read from again."""
        for peer in list(self._half_open):
            if peer.deadline <= now:
                self._count(TurnedAway.TOO_SLOW)
                self._turn_away(peer, TimeoutError("it did not agree on HELLO in time"))
        resumed = [peer for peer in self._paused if peer.resumes <= now]
        self._paused.difference_update(resumed)
        for peer in resumed:  # what it has said meanwhile is only read now
            if peer not in self._half_open:
                self._leases.renew(peer, now)
        return resumed

    def _attend(self, ready: Any) -> None:
        if ready is self._woken:
            try:
                while self._woken.recv(4096):
                    continue
            except BlockingIOError:
                return
            return
        while (accepted := accept(self._listener)) is not None:
            self._admit(accepted)

    def _admit(self, accepted: socket.socket) -> None:
        spare = self._spare()
        full = len(self._peers) >= self._program.config.max_connections + spare
        if self._half_open and (full or len(self._half_open) >= self._limits.max_half_open):
            self._count(TurnedAway.CROWDED_OUT)
            self._turn_away(next(iter(self._half_open)), TimeoutError("others wait to connect"))
        try:
            stream = PlainStream(accepted) if self._tls is None else self._tls.accept(accepted)
        except OSError:  # it went away again
            accepted.close()
            return
        connection = self._program.connect(spare)
        if connection is None:
            self._count(TurnedAway.FULL)
            stream.socket.close()
            return
        peer = Peer(stream, connection, time.monotonic() + self._limits.handshake_seconds)
        self._peers.add(peer)
        self._half_open[peer] = None
        self._selector.register(stream.socket, peer.interest, peer)
        self._journal.opened(peer.name, peer.host)

    def _spare(self) -> int:
        """Return how many connections over the limit may try to agree.

        None, unless all places are taken by those that have agreed and one of them would yield.
        """
        if len(self._leases) < self._program.config.max_connections:
            return 0
        yields = self._leases.yields(time.monotonic(), self._limits.yield_seconds)
        return 0 if yields is None else self._limits.max_half_open

    def _agree(self, peer: Peer[Context]) -> None:
        """A peer has agreed on HELLO: give it a place, another's where there is none left."""
        now = time.monotonic()
        if len(self._leases) >= self._program.config.max_connections:
            yields = self._leases.yields(now, self._limits.yield_seconds)
            if yields is None:
                self._count(TurnedAway.FULL)
                self._turn_away(peer, TimeoutError("all places are taken"))
                return
            self._end_lease(yields, LeaseEnd.GAVE_WAY)
        del self._half_open[peer]
        self._leases.renew(peer, now)

    def _end_lease(self, peer: Peer[Context], why: LeaseEnd) -> None:
        silent = self._leases.silent(peer, time.monotonic())
        self._program.counters.leases[why] += 1
        self._journal.lease_ended(peer.name, why, silent, len(peer.connection.contexts))
        self._forget(peer, told=True)

    def _greet(self, peer: Peer[Context]) -> None:
        try:
            peer.stream.greet()
        except OSError as error:
            self._count(TurnedAway.NO_TLS)
            self._turn_away(peer, ConnectionError(f"no TLS: {tls_reason(error)}"))
            return
        if peer.stream.greeted:  # the peer's first message may be among what TLS has read
            self._read(peer)

    def _read(self, peer: Peer[Context]) -> None:
        connection = peer.connection
        more = True
        while more:
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
            more = peer.stream.pending and not connection.closing
        if connection.pause:
            peer.resumes = time.monotonic() + connection.pause
            self._paused.add(peer)
        if connection.error is not None:
            self._journal.refused(peer.name, peer.host, connection.error)
        if connection.heard_at != peer.heard_at and not connection.closing:
            peer.heard_at = connection.heard_at
            self._heard(peer)

    def _heard(self, peer: Peer[Context]) -> None:
        """A whole frame has come: renew the lease, or begin it."""
        if peer not in self._half_open:
            self._leases.renew(peer, time.monotonic())
        elif peer.connection.roster is not None:
            self._agree(peer)

    def _write(self, peer: Peer[Context]) -> None:
        if peer not in self._peers:
            return
        if not peer.stream.greeted:
            self._watch(peer, peer.stream.wants)
            return
        connection = peer.connection
        try:
            done = peer.stream.flush(connection.outgoing)
        except OSError:
            self._forget(peer)
            return
        if done and connection.closing:
            self._forget(peer)
            return
        self._watch(peer, WRITE if not done else 0 if peer in self._paused else READ)

    def _watch(self, peer: Peer[Context], interest: int) -> None:
        """Wait for ``interest`` of this peer; 0 = for nothing."""
        if interest == peer.interest:
            return
        if not interest:
            self._selector.unregister(peer.stream.socket)
        elif not peer.interest:
            self._selector.register(peer.stream.socket, interest, peer)
        else:
            self._selector.modify(peer.stream.socket, interest, peer)
        peer.interest = interest

    def _turn_away(self, peer: Peer[Context], error: Exception) -> None:
        self._journal.refused(peer.name, peer.host, error)
        self._forget(peer, told=True)

    def _count(self, why: TurnedAway) -> None:
        self._program.counters.turned_away[why] += 1

    def _forget(self, peer: Peer[Context], *, told: bool = False) -> None:
        """Close a connection and free what it holds. told: the operator knows why."""
        if peer in self._peers:
            self._peers.remove(peer)
            self._half_open.pop(peer, None)
            self._paused.discard(peer)
            self._leases.end(peer)
            self._watch(peer, 0)
            if peer.connection.roster is not None and not told:
                error = peer.connection.error
                self._journal.closed(peer.name, "it left" if error is None else str(error))
            self._program.disconnect(peer.connection)
            close_gently(peer.stream.socket)

    def _say_goodbye(self) -> None:
        """Answer everybody with SHUTTING_DOWN and give the peers a moment to take it."""
        if not self._program.draining:
            self._selector.unregister(self._listener)
            self._listener.close()
        self._journal.ended(self._program.open_sessions)
        self._program.shut_down()
        for peer in self._peers:
            peer.connection.leave()
        deadline = time.monotonic() + FAREWELL_SECONDS
        for peer in list(self._peers):
            self._write(peer)
        while any(peer.connection.outgoing for peer in self._peers):
            left = deadline - time.monotonic()
            if left <= 0:
                return
            for key, _ in self._selector.select(left):
                if key.data is not None:
                    self._write(key.data)

    def _close(self) -> None:
        for peer in list(self._peers):
            self._forget(peer)
        self._selector.close()
        for each in (self._listener, self._wake, self._woken):
            each.close()


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
    Raises TransportError (the port is in use, the address is open to strangers) and
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
