"""TCP: partial writes, deadlines, slow receivers, and errors that say what to do."""

from __future__ import annotations

import socket
import threading
import time
import zlib

import pytest

from draftwire.errors import TransportError
from draftwire.transport.queue import PARTS_A_CALL, OutQueue
from draftwire.transport.tcp import (
    Address,
    TcpChannel,
    accept,
    bound_address,
    free_address,
    is_loopback,
    listen,
)


def soon(seconds: float = 5.0) -> float:
    return time.monotonic() + seconds


def connected() -> tuple[TcpChannel, socket.socket]:
    listener = listen("127.0.0.1", 0)
    channel = TcpChannel.connect(bound_address(listener), soon())
    peer = accept(listener)
    listener.close()
    assert peer is not None
    return channel, peer


def read_slowly(peer: socket.socket, size: int) -> bytes:
    peer.setblocking(True)
    received = bytearray()
    while len(received) < size:
        piece = peer.recv(4099)
        assert piece
        received += piece
        if len(received) % 7 == 0:
            time.sleep(0.0005)
    return bytes(received)


def test_parts_arrive_in_order_and_whole() -> None:
    channel, peer = connected()
    parts = [b"a", b"", memoryview(b"bc"), bytearray(b"def")]
    channel.send(parts, soon())
    assert read_slowly(peer, 6) == b"abcdef"
    channel.close()
    peer.close()


def test_more_parts_than_one_call_takes() -> None:
    channel, peer = connected()
    parts = [bytes([index % 251]) for index in range(3 * PARTS_A_CALL + 5)]
    channel.send(parts, soon())
    assert read_slowly(peer, len(parts)) == b"".join(parts)
    channel.close()
    peer.close()


def test_x39_large_frame_then_small_frame_to_a_slow_receiver() -> None:
    """Both a blocking and a queued sender: every byte arrives, though the buffers fill up."""
    large, small = bytes(range(256)) * 40_000, b"the last, small one"
    whole = large + small
    channel, peer = connected()
    sender = threading.Thread(target=lambda: [channel.send([p], soon(30)) for p in (large, small)])
    sender.start()
    assert zlib.crc32(read_slowly(peer, len(whole))) == zlib.crc32(whole)
    sender.join()
    peer.setblocking(False)

    queue, received = OutQueue(), bytearray()
    queue.push([large])
    blocked = not queue.flush(peer)
    queue.push([small])
    assert blocked
    assert queue.size > len(small)
    store = memoryview(bytearray(5003))
    while len(received) < len(whole):
        received += store[: channel.receive_into(store, soon())]
        queue.flush(peer)
    assert not queue
    assert queue.size == 0
    assert bytes(received) == whole
    channel.close()
    peer.close()


def test_receive_ends_at_its_deadline_and_not_before() -> None:
    channel, peer = connected()
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        channel.receive_into(memoryview(bytearray(8)), began + 0.05)
    assert 0.05 <= time.monotonic() - began < 1.0
    with pytest.raises(TimeoutError):
        channel.receive_into(memoryview(bytearray(8)), began)
    channel.close()
    peer.close()


def test_send_to_a_receiver_that_never_reads_ends_at_its_deadline() -> None:
    channel, peer = connected()
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        channel.send([bytes(64 << 20)], began + 0.1)
    assert time.monotonic() - began < 2.0
    channel.close()
    peer.close()


def test_an_ended_connection_is_a_connection_error() -> None:
    channel, peer = connected()
    peer.close()
    with pytest.raises(ConnectionError):
        channel.receive_into(memoryview(bytearray(8)), soon())
    with pytest.raises(ConnectionError):
        while True:
            channel.send([bytes(1 << 16)], soon())
    channel.close()
    channel.close()
    with pytest.raises(ConnectionError):
        channel.send([b"x"], soon())


def test_nobody_there_says_what_to_do() -> None:
    listener = listen("127.0.0.1", 0)
    address = bound_address(listener)
    listener.close()
    with pytest.raises(TransportError, match="draftwire serve"):
        TcpChannel.connect(address, soon())


def test_port_in_use_says_what_to_do() -> None:
    listener = listen("127.0.0.1", 0)
    with pytest.raises(TransportError, match=r"in use.*choose another port"):
        listen("127.0.0.1", bound_address(listener).port)
    listener.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.invalid"])
def test_only_loopback_is_listened_on(host: str) -> None:
    with pytest.raises(TransportError, match="authenticates no peer"):
        listen(host, 0)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("", False)],
)
def test_loopback_addresses(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_addresses_are_written_as_they_are_read() -> None:
    assert str(Address("127.0.0.1", 7711)) == "127.0.0.1:7711"
    assert str(Address("::1", 7711)) == "[::1]:7711"


def test_nothing_to_accept_is_none() -> None:
    listener = listen("127.0.0.1", 0)
    assert accept(listener) is None
    listener.close()


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "\N{SNOWMAN}" * 70])
def test_a_name_that_no_host_can_have_is_an_address_that_cannot_be_reached(host: str) -> None:
    with pytest.raises(TransportError, match="no name that a host can have"):
        TcpChannel.connect(Address(host, 9), soon(0.2))
    with pytest.raises(TransportError, match="no name that a host can have"):
        listen(host, 0, guarded=True)


@pytest.mark.parametrize("seconds", [1e10, 1e300])
def test_a_deadline_beyond_the_systems_clock_is_only_far_away(seconds: float) -> None:
    far = time.monotonic() + seconds
    listener = listen("127.0.0.1", 0)
    channel = TcpChannel.connect(bound_address(listener), far)
    channel.send([b"x"], far)
    peer = accept(listener)
    assert peer is not None
    peer.sendall(b"y")
    assert channel.receive_into(memoryview(bytearray(1)), far) == 1
    for each in (channel, peer, listener):
        each.close()


def test_a_free_address_can_be_listened_on_at_once() -> None:
    address = free_address()
    with listen(*address) as listener:
        assert bound_address(listener) == address
