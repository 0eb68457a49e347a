"""A line to the drafter that breaks, at times that know nothing of what is on it."""

from __future__ import annotations

import random
import socket
import threading
from contextlib import suppress
from types import TracebackType

from draftwire.transport.tcp import Address


class Line:
    """Forwards every connection to ``target``; ``breaks``: mean bytes from it until it is cut.

    None: never. ``silent``: what the drafter says is swallowed, so that rounds miss their deadline.
    """

    def __init__(self, target: Address, *, seed: int = 0) -> None:
        self.target = target
        self.breaks: float | None = None
        self.silent = False
        self.cuts = 0
        self._random = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address(*self._listener.getsockname())
        self._open: set[socket.socket] = set()

    def __enter__(self) -> Line:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """End every connection."""
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self.target)
            except OSError:
                return
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open |= {near, far}
            threading.Thread(target=self._forward, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._forward, args=(far, near, True), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        left = self._patience()
        try:
            while data := source.recv(1 << 16):
                if answers and self.silent:
                    continue
                if answers and self.breaks is not None:
                    left = min(left, self._patience()) - len(data)
                    if left < 0:
                        self.cuts += 1
                        break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            self._open.discard(end)
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # closing alone leaves a blocked reader waiting
            end.close()

    def _patience(self) -> float:
        return 1e18 if self.breaks is None else self._random.expovariate(1 / self.breaks)
