"""/metrics and /healthz over HTTP, in a thread of their own beside the program.

The server is the standard library's, the application Prometheus's own. At most ``MOST_CLIENTS``
are answered at once; one that takes longer than ``CLIENT_SECONDS`` in all is ended, and the oldest
is ended where there are too many. Nothing they send reaches the program.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from draftwire.errors import TransportError
from draftwire.transport.tcp import EXHAUSTED, Address

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

CLIENT_SECONDS: Final = 5.0
MOST_CLIENTS: Final = 8
EXHAUSTED_SECONDS: Final = 0.5
LEAVING_SECONDS: Final = 0.5  # for which a new client waits until the oldest has ended

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: who scrapes is no event."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._free = threading.BoundedSemaphore(MOST_CLIENTS)
        self._clients: dict[Any, float] = {}  # each and its deadline, the oldest first
        self._lock = threading.Lock()
        super().__init__(*arguments)

    def server_bind(self) -> None:
        """Bind without asking a name server what this host is called."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "draftwire", self.server_address[1]
        self.setup_environ()

    def get_request(self) -> tuple[Any, Any]:
        """Accept the next client, or wait a little when there is nothing to accept it with."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in EXHAUSTED:  # it stays in the queue, and would be tried at once
                time.sleep(EXHAUSTED_SECONDS)
            raise

    def service_actions(self) -> None:
        """End the clients that are too slow; called at every turn of the server's thread."""
        now = time.monotonic()
        with self._lock:
            for client in [each for each, deadline in self._clients.items() if deadline <= now]:
                self._end(client)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; where too many are answered already, the oldest is ended."""
        if not self._free.acquire(blocking=False):
            with self._lock:
                for oldest in self._clients:
                    self._end(oldest)
                    break
            if not self._free.acquire(timeout=LEAVING_SECONDS):
                self.shutdown_request(request)
                return
        with self._lock:
            self._clients[request] = time.monotonic() + CLIENT_SECONDS
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the system has no thread left; the client is closed by the caller
            self._forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one client."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def _forget(self, client: Any) -> None:
        with self._lock:
            self._clients.pop(client, None)
        self._free.release()

    def _end(self, client: Any) -> None:
        """Wake the thread of a client, which finds the connection over; the lock is held."""
        del self._clients[client]
        with suppress(OSError):  # it is over already
            client.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away, or sends what is no request, is no error of ours."""


class _Server6(_Server):
    address_family = socket.AF_INET6


def application(registry: CollectorRegistry, draining: Callable[[], bool]) -> Application:
    """Return the WSGI application: /metrics of a registry, /healthz, 404 for anything else."""
    from prometheus_client import make_wsgi_app

    metrics = make_wsgi_app(registry)

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            answered: Iterable[bytes] = metrics(environ, start)
            return answered
        status, body = "404 Not Found", b"/metrics and /healthz\n"
        if path == "/healthz":
            away = draining()
            status = "503 Service Unavailable" if away else "200 OK"
            body = b"draining\n" if away else b"ok\n"
        headers = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
        ]
        start(status, headers)
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else [body]

    return answer


@contextmanager
def metrics_server(
    host: str,
    port: int,
    registry: CollectorRegistry,
    draining: Callable[[], bool] = lambda: False,
) -> Iterator[Address]:
    """Serve the registry and the health of the program while the block runs; yields the address.

    port: 0 takes any free one. draining: what /healthz answers 503 for. Raises TransportError when
    it cannot be listened on.
    """
    if not host:
        raise TransportError("the host of the metrics is empty: name one, such as 127.0.0.1")
    kind = _Server6 if ":" in host else _Server
    try:
        server = make_server(host, port, application(registry, draining), kind, _Handler)
    except OSError as error:
        raise TransportError(
            f"the metrics cannot be served at {Address(host, port)} ({error.strerror}): choose"
            " another --metrics-port"
        ) from error
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
    )
    thread.start()
    try:
        yield Address(*server.socket.getsockname()[:2])
    finally:
        server.shutdown()
        server.server_close()
