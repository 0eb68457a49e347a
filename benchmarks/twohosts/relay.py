"""A TCP relay that makes a link longer: every byte is delivered a fixed time after it came.

    python -m benchmarks.twohosts.relay --to HOST:PORT --delay-ms 1.0  (each way)

It prints where it listens. One thread and one wait for everything, in microseconds where the
system allows it, so a delay of a tenth of a millisecond is one.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from benchmarks.twohosts.delay import DelayLine
from draftwire.transport.tcp import Address, bound_address, listen

_PIECE: Final = 256 << 10
_PR_SET_TIMERSLACK: Final = 29
_SLACK_NANOSECONDS: Final = 1000


class _Way:
    """One direction between two connected sockets."""

    def __init__(self, source: socket.socket, sink: socket.socket, seconds: float) -> None:
        self.source, self.sink = source, sink
        self.line = DelayLine(seconds)
        self.reading = True
        self.blocked = False  # the sink takes nothing for now
        self.over = False

    def read(self) -> None:
        data = self.source.recv(_PIECE)
        now = time.monotonic()
        if data:
            self.line.put(data, now)
        else:
            self.reading = False
            self.line.end(now)

    def write(self) -> None:
        now = time.monotonic()
        self.blocked = False
        while (piece := self.line.head(now)) is not None:
            try:
                self.line.delivered(self.sink.send(piece))
            except BlockingIOError:
                self.blocked = True
                return
        if self.line.ended(now) and not self.over:
            self.over = True
            self.sink.shutdown(socket.SHUT_WR)

    @property
    def wait(self) -> float | None:
        """Seconds until something is due; None = nothing is, or the sink has to be waited for."""
        due = None if self.over or self.blocked else self.line.due
        return None if due is None else max(due - time.monotonic(), 0.0)


class Relay:
    """Accepts connections and carries them to an address, ``seconds`` later each way."""

    def __init__(self, listener: socket.socket, to: Address, seconds: float) -> None:
        """Take over a non-blocking listening socket."""
        self._listener = listener
        self._to = to
        self._seconds = seconds
        self._pairs: list[tuple[_Way, _Way]] = []

    def run(self, until: int) -> None:
        """Carry bytes until the descriptor ``until`` is at its end (or readable)."""
        try:
            while self._turn(until):
                continue
        finally:
            for pair in list(self._pairs):
                self._drop(pair)
            self._listener.close()

    def _turn(self, until: int) -> bool:
        """Wait for whatever comes first and do it; returns whether to go on."""
        ways = [way for pair in self._pairs for way in pair]
        readers = [way.source for way in ways if way.reading and not way.line.full]
        writers = [way.sink for way in ways if way.blocked]
        waits = [wait for way in ways if (wait := way.wait) is not None]
        watched: list[Any] = [until, self._listener, *readers]
        ready, _, _ = select.select(watched, writers, [], min(waits, default=None))
        if until in ready:
            return False
        if self._listener in ready:
            self._accept()
        for pair in list(self._pairs):
            try:
                for way in pair:
                    if way.source in ready:
                        way.read()
                    way.write()
            except OSError:
                self._drop(pair)
                continue
            if all(way.over for way in pair):
                self._drop(pair)
        return True

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            near, _ = self._listener.accept()
            try:
                far = socket.create_connection(self._to, timeout=5.0)
            except OSError:
                near.close()
                return
            for each in (near, far):
                each.setblocking(False)
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._pairs.append((_Way(near, far, self._seconds), _Way(far, near, self._seconds)))

    def _drop(self, pair: tuple[_Way, _Way]) -> None:
        self._pairs.remove(pair)
        for way in pair:
            way.source.close()


def wake_on_time() -> None:
    """Ask Linux for waits that end within a microsecond or so of their time, not fifty."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _SLACK_NANOSECONDS, 0, 0, 0)


def main(arguments: Sequence[str]) -> None:
    """Listen on a free loopback port and relay until standard input closes."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.twohosts.relay", description=__doc__
    )
    parser.add_argument("--to", type=Address.parse, required=True)
    parser.add_argument("--delay-ms", type=float, required=True, help="each way")
    options = parser.parse_args(arguments)
    wake_on_time()
    listener = listen("127.0.0.1", 0)
    print(f"listening on {bound_address(listener)}", flush=True)
    with contextlib.suppress(KeyboardInterrupt), os.fdopen(os.dup(0)) as until:
        Relay(listener, options.to, options.delay_ms / 1e3).run(until.fileno())


if __name__ == "__main__":
    main(sys.argv[1:])
