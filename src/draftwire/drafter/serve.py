"""The drafter's process: one thread, one selector; every STEP that is ready goes into one batch."""

from __future__ import annotations

import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Generic, Self

from draftwire.drafter.engine import Context, DraftEngine
from draftwire.drafter.program import Connection, DrafterConfig, DrafterProgram
from draftwire.transport.tcp import Address, accept, bound_address, listen

DRAIN_SECONDS: Final = 1.0
_READ: Final = selectors.EVENT_READ
_WRITE: Final = selectors.EVENT_WRITE


class _Peer(Generic[Context]):
    """One accepted socket and the program's connection behind it."""

    def __init__(self, peer: socket.socket, connection: Connection[Context]) -> None:
        self.socket = peer
        self.connection = connection
        self.interest = _READ


class DrafterServer(Generic[Context]):
    """Serves a :class:`DrafterProgram` on a listening socket until ``stop`` is called.

    A connection whose peer does not read is not read from either, so that what waits for it is
    bounded by one read's worth of answers. Connections over the limit are closed at once.
    """

    def __init__(self, program: DrafterProgram[Context], listener: socket.socket) -> None:
        """Take over a non-blocking listening socket."""
        self._program = program
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, _READ, None)
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        self._selector.register(self._woken, _READ, None)
        self._peers: set[_Peer[Context]] = set()
        self._stopping = False

    @property
    def address(self) -> Address:
        """Where it listens."""
        return bound_address(self._listener)

    def wake_descriptor(self) -> int:
        """Return a descriptor; a byte written to it ends the wait of ``run`` (signals do)."""
        return self._wake.fileno()

    def stop(self) -> None:
        """Make ``run`` return soon; may be called from any thread or signal handler."""
        self._stopping = True
        try:
            self._wake.send(b"\0")
        except OSError:  # full, so it wakes anyway; or closed, so nobody waits
            return

    def run(self) -> None:
        """Serve until stopped, then tell every verifier, and close everything."""
        try:
            while not self._stopping:
                self._turn()
            self._drain()
        finally:
            self._close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the sockets, if ``run`` has not done so."""
        self._close()

    def _turn(self) -> None:
        """Wait for something, read all that is there, draft it as one batch, send."""
        touched: list[_Peer[Context]] = []
        for key, events in self._selector.select(0 if self._program.waiting else None):
            peer: _Peer[Context] | None = key.data
            if peer is None:
                self._attend(key.fileobj)
                continue
            if events & _READ:
                self._read(peer)
            touched.append(peer)
        answered = self._program.draft()
        # A batch may answer peers that sent their STEP in an earlier turn.
        touched += [peer for peer in self._peers if peer.connection in answered]
        for peer in touched:
            self._write(peer)

    def _attend(self, ready: Any) -> None:
        if ready is self._woken:
            try:
                while self._woken.recv(4096):
                    continue
            except BlockingIOError:
                return
            return
        while (accepted := accept(self._listener)) is not None:
            connection = self._program.connect()
            if connection is None:
                accepted.close()
                continue
            peer = _Peer(accepted, connection)
            self._peers.add(peer)
            self._selector.register(accepted, _READ, peer)

    def _read(self, peer: _Peer[Context]) -> None:
        connection = peer.connection
        try:
            count = peer.socket.recv_into(connection.buffer())
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if count:
            connection.filled(count)
        else:
            self._forget(peer)

    def _write(self, peer: _Peer[Context]) -> None:
        if peer not in self._peers:
            return
        connection = peer.connection
        try:
            done = connection.outgoing.flush(peer.socket)
        except OSError:
            self._forget(peer)
            return
        if done and connection.closing:
            self._forget(peer)
            return
        interest = _READ if done else _WRITE
        if interest != peer.interest:
            peer.interest = interest
            self._selector.modify(peer.socket, interest, peer)

    def _forget(self, peer: _Peer[Context]) -> None:
        if peer in self._peers:
            self._peers.remove(peer)
            self._selector.unregister(peer.socket)
            self._program.disconnect(peer.connection)
            _close_gently(peer.socket)

    def _drain(self) -> None:
        """Answer what waits with SHUTTING_DOWN and give the peers a moment to take it."""
        self._selector.unregister(self._listener)
        self._listener.close()
        self._program.shut_down()
        deadline = time.monotonic() + DRAIN_SECONDS
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
    ready: Callable[[Address], None] | None = None,
) -> None:
    """Serve ``engine`` until SIGINT or SIGTERM; returns then, with every context closed.

    ready: called with the bound address once verifiers can connect, after the arithmetic has been
    compiled (no verifier's deadline pays for that). Signals are taken over in the main thread only.
    Raises TransportError (the port is in use, the address is not loopback) and ConfigurationError.
    """
    program = DrafterProgram(engine, config)
    program.warm_up()
    with DrafterServer(program, listen(host, port)) as server:
        restore = _take_signals(server)
        try:
            if ready is not None:
                ready(server.address)
            server.run()
        finally:
            restore()


def _take_signals(server: DrafterServer[Context]) -> Callable[[], None]:
    """Let SIGINT and SIGTERM stop the server; returns what undoes that."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: server.stop()) for number in signals]
    wake = signal.set_wakeup_fd(server.wake_descriptor(), warn_on_full_buffer=False)

    def restore() -> None:
        signal.set_wakeup_fd(wake)
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)

    return restore


def _close_gently(peer: socket.socket) -> None:
    """Close so that an ERROR just sent still arrives, though unread bytes wait here.

    Closing a socket with unread input resets the connection, and the peer may then lose what it
    was sent. A bounded part of the input is read away first.
    """
    try:
        peer.shutdown(socket.SHUT_WR)
        for _ in range(16):
            if not peer.recv(1 << 16):
                break
    except OSError:
        pass  # nothing more waits, or the peer is gone already
    peer.close()
