"""The delaying line in virtual time, and the relay around it over real sockets."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.twohosts.delay import DelayLine
from benchmarks.twohosts.relay import Relay
from draftwire.transport.tcp import Address, bound_address, listen


def drained(line: DelayLine, now: float, most: int = 1 << 30) -> bytes:
    out = b""
    while (piece := line.head(now)) is not None:
        taken = bytes(piece[:most])
        line.delivered(len(taken))
        out += taken
    return out


def test_every_byte_comes_the_delay_later_and_not_before() -> None:
    line = DelayLine(5.0)
    line.put(b"one", 0.0)
    line.put(b"two", 1.0)
    assert line.due == 5.0
    assert drained(line, 4.999) == b""
    assert drained(line, 5.0) == b"one"
    assert line.due == 6.0
    assert drained(line, 5.999) == b""
    assert drained(line, 6.0) == b"two"
    assert line.due is None


@pytest.mark.parametrize("most", [1, 7, 1000])
def test_order_is_kept_whatever_the_sink_takes_at_once(most: int) -> None:
    line = DelayLine(0.25)
    sent = bytes(range(256)) * 4
    for at in range(0, len(sent), 100):
        line.put(sent[at : at + 100], at / 1000)
    assert drained(line, 10.0, most) == sent


def test_the_delay_takes_nothing_from_the_rate() -> None:
    """A thousand pieces in one second, ten seconds late: the last is there after eleven."""
    line = DelayLine(10.0)
    arrived = []
    for now in (tick / 1000 for tick in range(12_001)):
        if now < 1.0:
            line.put(b"x" * 1000, now)
        if piece := drained(line, now):
            arrived.append((now, len(piece)))
    assert sum(size for _, size in arrived) == 1_000_000
    assert arrived[0][0] == pytest.approx(10.0)
    assert arrived[-1][0] == pytest.approx(10.999, abs=2e-3)


def test_the_end_travels_behind_the_last_byte() -> None:
    line = DelayLine(1.0)
    line.put(b"last", 0.5)
    line.end(0.5)
    assert not line.ended(1.5)  # not delivered yet
    assert drained(line, 1.5) == b"last"
    assert line.ended(1.5)
    with pytest.raises(ValueError, match="ended"):
        line.put(b"more", 2.0)


def test_what_is_on_its_way_is_bounded() -> None:
    line = DelayLine(1.0, most=10)
    line.put(b"12345", 0.0)
    assert not line.full
    line.put(b"67890", 0.0)
    assert line.full
    line.delivered(1)
    assert not line.full


@pytest.mark.parametrize("wrong", [-1.0, float("nan")])
def test_a_delay_that_is_none_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="delay"):
        DelayLine(wrong)


@contextmanager
def relayed(seconds: float) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield both ends of a connection that goes through a relay in a thread of this process."""
    behind = listen("127.0.0.1", 0)
    behind.setblocking(True)
    before = listen("127.0.0.1", 0)
    address: Address = bound_address(before)
    reading, writing = os.pipe()
    relay = Relay(before, bound_address(behind), seconds)
    thread = threading.Thread(target=relay.run, args=(reading,))
    thread.start()
    near = socket.create_connection(address)
    far, _ = behind.accept()
    try:
        yield near, far
    finally:
        for each in (near, far, behind):
            each.close()
        os.close(writing)
        thread.join(10)
        os.close(reading)
        assert not thread.is_alive()


def received(peer: socket.socket) -> bytes:
    parts = []
    while part := peer.recv(1 << 20):
        parts.append(part)
    return b"".join(parts)


def test_a_round_trip_through_the_relay_takes_the_delay_twice() -> None:
    with relayed(0.05) as (near, far):
        began = time.monotonic()
        near.sendall(b"there")
        assert far.recv(5) == b"there"
        assert time.monotonic() - began >= 0.05
        far.sendall(b"back")
        assert near.recv(4) == b"back"
        assert time.monotonic() - began >= 0.1


def test_a_stream_through_the_relay_is_whole_and_ends_both_ways() -> None:
    sent = os.urandom(4 << 20)
    with relayed(0.02) as (near, far):

        def send() -> None:
            far.sendall(sent)
            far.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        assert received(near) == sent
        sender.join()
        near.sendall(b"still open this way")
        near.shutdown(socket.SHUT_WR)
        assert received(far) == b"still open this way"


def test_a_peer_that_goes_away_takes_the_other_end_with_it() -> None:
    with relayed(0.0) as (near, far):
        near.close()
        assert received(far) == b""
