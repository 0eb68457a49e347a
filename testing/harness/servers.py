"""A drafter's server on loopback TCP, in a thread of the test's own process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from draftwire.drafter.engine import Context
from draftwire.drafter.program import DrafterProgram
from draftwire.drafter.server import DrafterServer
from draftwire.transport.security import Security
from draftwire.transport.tcp import Address, listen
from draftwire.transport.tls import Tls, TlsFiles

ANY_PORT = Address("127.0.0.1", 0)
STOP_SECONDS = 10.0


class ThreadedServer(DrafterServer[Context]):
    """A server and the thread that it runs in, once :func:`serving` has started it."""

    def __init__(
        self, program: DrafterProgram[Context], security: Security | None, address: Address
    ) -> None:
        tls = Tls(security, server=True) if isinstance(security, TlsFiles) else None
        super().__init__(program, listen(address.host, address.port), tls)
        self.thread = threading.Thread(target=self.run)


@contextmanager
def serving(
    program: DrafterProgram[Any], security: Security | None = None, address: Address = ANY_PORT
) -> Iterator[ThreadedServer[Any]]:
    """Serve a program; afterwards its thread has ended and no connection is left.

    security: certificates; a pre-shared key is the program's own.
    """
    program.warm_up()
    server = ThreadedServer(program, security, address)
    server.thread.start()
    try:
        yield server
    finally:
        server.stop()
        server.thread.join(STOP_SECONDS)
        assert not server.thread.is_alive()
        assert not program.connections
