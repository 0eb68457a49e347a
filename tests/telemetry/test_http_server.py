"""/metrics and /healthz: bounded clients, bounded time, and a failure to accept does not spin."""

from __future__ import annotations

import errno
import os
import socket
import time
import urllib.error
import urllib.request
from socketserver import TCPServer

import pytest
from prometheus_client import CollectorRegistry

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.errors import TransportError
from draftwire.telemetry import http_server
from draftwire.telemetry.collector import register_metrics
from draftwire.telemetry.http_server import metrics_server
from testing.toys.models import ToyDrafter, mixed

V = 11


def get(address: object, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_metrics_and_health_over_http() -> None:
    program = DrafterProgram(ToyDrafter(mixed(V, 1), V), DrafterConfig())
    registry = CollectorRegistry()
    register_metrics(program, registry)
    with metrics_server("127.0.0.1", 0, registry, lambda: program.draining) as address:
        assert get(address, "/healthz") == (200, "ok\n")
        assert get(address, "/metrics")[0] == 200
        assert "draftwire_drafter_queue 0.0" in get(address, "/metrics")[1]
        assert get(address, "/anything")[0] == 404
        program.drain()
        assert get(address, "/healthz") == (503, "draining\n")
        assert "draftwire_drafter_draining 1.0" in get(address, "/metrics")[1]
        with (
            pytest.raises(TransportError, match="metrics-port"),
            metrics_server(*address, registry),
        ):
            pass
        with pytest.raises(TransportError, match="empty"), metrics_server("", 0, registry):
            pass
    with pytest.raises(OSError):
        socket.create_connection(address, timeout=1)


def test_clients_that_hold_on_and_nonsense_disturb_nobody(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As many as there may be say nothing; the oldest is ended, and all are ended in time."""

    monkeypatch.setattr(http_server, "CLIENT_SECONDS", 0.5)
    with metrics_server("127.0.0.1", 0, CollectorRegistry()) as address:
        held = [socket.create_connection(address) for _ in range(http_server.MOST_CLIENTS + 4)]
        held[0].sendall(b"\xff\x00\r\n\r\n")
        time.sleep(1.0)
        assert get(address, "/healthz") == (200, "ok\n")
        for each in held:
            each.close()
    out, err = capfd.readouterr()
    assert out == err == ""


def test_a_client_that_sends_a_byte_now_and_then_is_ended_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time is that of the whole request; until then, the oldest is ended for a new one."""

    monkeypatch.setattr(http_server, "CLIENT_SECONDS", 1.0)
    with metrics_server("127.0.0.1", 0, CollectorRegistry()) as address:
        held = [socket.create_connection(address) for _ in range(http_server.MOST_CLIENTS)]
        for each in held:
            each.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        assert get(address, "/healthz") == (200, "ok\n")
        ended = set[int]()
        until = time.monotonic() + 5.0
        while len(ended) < len(held) and time.monotonic() < until:
            for index, each in enumerate(held):
                try:
                    each.sendall(b"a")
                except OSError:
                    ended.add(index)
            time.sleep(0.1)
        assert len(ended) == len(held)
        for each in held:
            each.close()


def test_a_page_without_descriptors_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits keeps the socket readable: it is tried again after a while, not at once."""
    tried: list[float] = []

    def out_of_descriptors(server: TCPServer) -> None:
        tried.append(time.monotonic())
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(TCPServer, "get_request", out_of_descriptors)
    with (
        metrics_server("127.0.0.1", 0, CollectorRegistry()) as address,
        socket.create_connection(address),
    ):
        time.sleep(0.7)
    assert 1 <= len(tried) <= 3
