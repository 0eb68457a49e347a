"""Connecting: one deadline for all addresses of a name, and for the name itself."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from draftwire.errors import TransportError
from draftwire.transport.connect import dial
from draftwire.transport.tcp import Address, TcpChannel, free_address, listen


@contextlib.contextmanager
def deaf() -> Iterator[int]:
    """Yield the port of a listener whose queue is full, so that SYNs are dropped."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    waiting = []
    for _ in range(4):
        waiting.append(socket.socket())
        waiting[-1].setblocking(False)
        with contextlib.suppress(BlockingIOError):
            waiting[-1].connect(listener.getsockname())
    time.sleep(0.05)
    try:
        yield listener.getsockname()[1]
    finally:
        for each in (*waiting, listener):
            each.close()


def has_addresses(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    """Let the name "many.example" have one address of this machine for each port."""
    real = socket.getaddrinfo

    def answer(host: str, port: int, *rest: Any, **named: Any) -> Any:
        if host != "many.example":
            return real(host, port, *rest, **named)
        if named.get("flags"):
            raise socket.gaierror(socket.EAI_NONAME, "a name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", p)) for p in ports]

    monkeypatch.setattr(socket, "getaddrinfo", answer)


def test_all_addresses_of_a_name_share_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    with deaf() as port:
        has_addresses(monkeypatch, port, port, port, port)
        began = time.monotonic()
        with pytest.raises(TransportError, match="timed out"):
            TcpChannel.connect(Address("many.example", 1), began + 0.4)
        assert 0.39 <= time.monotonic() - began < 0.8


def test_an_address_that_answers_is_found_behind_those_that_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with deaf() as silent, listen("127.0.0.1", 0) as answers:
        has_addresses(monkeypatch, silent, free_address().port, answers.getsockname()[1])
        connected = dial("many.example", 1, time.monotonic() + 0.6)
        assert connected.getpeername() == answers.getsockname()
        connected.close()


def test_a_resolver_that_stands_still_is_left_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And asked once, however often somebody tries meanwhile; afterwards it is asked again."""
    real, asked, go = socket.getaddrinfo, list[str](), threading.Event()

    def answer(host: str, port: int, *rest: Any, **named: Any) -> Any:
        if host == "slow.example" and not named.get("flags"):
            asked.append(host)
            go.wait(10)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return real(host, port, *rest, **named)

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    for _ in range(3):
        began = time.monotonic()
        with pytest.raises(TransportError, match="not resolved in time"):
            TcpChannel.connect(Address("slow.example", 1), began + 0.05)
        assert time.monotonic() - began < 0.5
    assert asked == ["slow.example"]
    go.set()
    for each in threading.enumerate():
        if each.name == "draftwire-name":
            each.join(5)
    with pytest.raises(TransportError, match="no answer"):
        TcpChannel.connect(Address("slow.example", 1), time.monotonic() + 1)
    assert len(asked) == 2


@pytest.mark.parametrize("guarded", [False, True])
def test_an_empty_host_is_not_every_address(guarded: bool) -> None:
    with pytest.raises(TransportError, match="empty"):
        listen("", 0, guarded=guarded)
    with pytest.raises(TransportError, match="no name"):
        TcpChannel.connect(Address("", 9), time.monotonic() + 0.2)
