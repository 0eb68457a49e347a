"""P1 to P4: frames out of any split of any bytes, in one buffer, with at most one error."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.wire.agreement import bounds, handshake_bounds
from draftwire.wire.checksum import crc32c
from draftwire.wire.frames import (
    READ_AHEAD,
    Bounds,
    FrameReader,
    encode_frame,
    frame_bytes,
    frame_checksum,
)
from draftwire.wire.messages import Cancel, Ping, Pong, Reset
from draftwire.wire.registry import MAGIC, MessageType, Role, WireVersion
from spec.oracle import frames as oracle
from testing.harness.messages import AGREED, COMPLETE, EXAMPLES, REPLY, STEP, VERIFIER, framed

Seen = tuple[list[tuple[int, int, bytes, int]], tuple[int, str | None, str] | None]

ROOMY = Bounds(frozenset({WireVersion.V2}), dict.fromkeys(MessageType, (0, 64)))


def read(pieces: Iterable[bytes], limits: Bounds, *, ended: bool = True) -> Seen:
    """Feed the pieces and return the frames, copied, and the error that ended them."""
    reader = FrameReader(limits)
    frames = []
    try:
        for piece in pieces:
            for frame in reader.feed(piece):
                frames.append((frame.version, frame.type, bytes(frame.payload), frame.checksum))
        if ended:
            reader.finish()
    except ProtocolError as error:
        with pytest.raises(ProtocolError) as again:
            reader.filled(0)
        assert again.value is error
        return frames, (error.code, error.field, str(error))
    return frames, None


def code_of(seen: Seen) -> ProtocolErrorCode | None:
    return None if seen[1] is None else ProtocolErrorCode(seen[1][0])


def header(
    magic: bytes = MAGIC, version: int = 2, kind: int = 9, flags: int = 0, length: int = 8
) -> bytes:
    prefix = magic + struct.pack("<BBHI", version, kind, flags, length)
    return prefix + struct.pack("<I", crc32c(prefix))


def test_header_layout_is_the_registry_s() -> None:
    parts = encode_frame(WireVersion.V2, MessageType.PING, b"12345678")
    assert frame_bytes(parts) == header() + b"12345678" + struct.pack("<I", crc32c(b"12345678"))
    assert frame_checksum(parts) == crc32c(b"12345678")


def test_parts_are_handed_on_as_they_are() -> None:
    """A dense reply is never concatenated: what goes in is what comes out, for writev."""
    large = memoryview(bytearray(100_000))
    parts = encode_frame(WireVersion.V2, MessageType.REPLY, b"head", large, b"tail")
    assert parts[2] is large
    assert frame_checksum(parts) == crc32c(b"head" + bytes(large) + b"tail")


STREAMS: list[bytes] = [
    framed(Ping(1)) + framed(Reset(1, 2, 3)) + framed(Cancel(7, 1)),
    framed(Ping(1)) + framed(Pong(2))[:-1],
    framed(Ping(1)) + b"GET / HTTP/1.1",
    framed(Ping(1)) + header(flags=1) + b"more",
    framed(Ping(1)) + header(length=9) + b"more",
    framed(Ping(1))[:-1] + b"\x00" + framed(Pong(2)),
    b"",
]


@pytest.mark.parametrize("stream", STREAMS)
def test_all_splits_in_up_to_three_pieces_give_the_same(stream: bytes) -> None:
    limits = bounds(AGREED)
    expected = read([stream], limits)
    assert read((stream[i : i + 1] for i in range(len(stream))), limits) == expected
    for first, second in itertools.combinations_with_replacement(range(len(stream) + 1), 2):
        pieces = (stream[:first], stream[first:second], stream[second:])
        assert read(pieces, limits) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 64, 1000])
def test_pieces_of_one_size_give_every_message(size: int) -> None:
    stream = b"".join(framed(message) for message in EXAMPLES) * 3
    pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
    frames, error = read(pieces, bounds(AGREED))
    assert error is None
    assert len(frames) == 3 * len(EXAMPLES)
    assert (frames, error) == read([stream], bounds(AGREED))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_bytes_are_frames_and_at_most_one_protocol_error(data: st.DataObject) -> None:
    """Whole and byte by byte alike, and as the reader that was written from SPEC alone says."""
    known = st.sampled_from([framed(message) for message in EXAMPLES])
    pieces = data.draw(st.lists(st.one_of(known, st.binary(max_size=40)), max_size=4))
    stream = bytearray(b"".join(pieces))
    for _ in range(data.draw(st.integers(0, 2))):
        if stream:
            stream[data.draw(st.integers(0, len(stream) - 1))] ^= data.draw(st.integers(1, 255))
    limits = bounds(AGREED)
    whole = read([bytes(stream)], limits)
    assert read((bytes([byte]) for byte in stream), limits) == whole
    names = {kind.name: most for kind, (_, most) in limits.payload.items()}
    frames, refusal = [], None
    try:
        for frame in oracle.read_frames(bytes(stream), 2, names):
            frames.append((MessageType[frame.type], frame.payload))
    except oracle.Refused as refused:
        refusal = refused.code
    assert [(kind, payload) for _, kind, payload, _ in whole[0]] == frames
    assert (whole[1] and ProtocolErrorCode(whole[1][0]).name) == refusal


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (header(magic=b"DWIS"), ProtocolErrorCode.BAD_MAGIC),
        (header()[:-1] + b"\x00", ProtocolErrorCode.BAD_HEADER_CHECKSUM),
        (header(version=3), ProtocolErrorCode.BAD_VERSION),
        (header(version=1), ProtocolErrorCode.BAD_VERSION),
        (header(kind=0), ProtocolErrorCode.BAD_TYPE),
        (header(kind=13), ProtocolErrorCode.BAD_TYPE),
        (header(kind=MessageType.CHALLENGE, length=32), ProtocolErrorCode.AUTHENTICATION_FAILED),
        (header(kind=MessageType.PROOF, length=32), ProtocolErrorCode.AUTHENTICATION_FAILED),
        (header(flags=1), ProtocolErrorCode.BAD_FLAGS),
        (header(length=9), ProtocolErrorCode.FRAME_TOO_LARGE),
        (header(length=2**32 - 1), ProtocolErrorCode.FRAME_TOO_LARGE),
        (header(length=7), ProtocolErrorCode.BAD_LENGTH),
        (header(kind=MessageType.STEP, length=95), ProtocolErrorCode.BAD_LENGTH),
        (header(kind=MessageType.REPLY, length=1025), ProtocolErrorCode.FRAME_TOO_LARGE),
    ],
)
def test_a_bad_header_is_refused_at_its_last_byte(head: bytes, code: ProtocolErrorCode) -> None:
    """Not one byte of the payload is waited for; the magic is refused even earlier."""
    assert code_of(read([head], bounds(AGREED), ended=False)) == code
    if code != ProtocolErrorCode.BAD_MAGIC:
        assert read([head[:-1]], bounds(AGREED), ended=False) == ([], None)


def test_the_order_of_the_checks_is_that_of_p2() -> None:
    broken = [
        ("magic", b"DWIS", ProtocolErrorCode.BAD_MAGIC),
        ("version", 9, ProtocolErrorCode.BAD_VERSION),
        ("kind", 99, ProtocolErrorCode.BAD_TYPE),
        ("flags", 1, ProtocolErrorCode.BAD_FLAGS),
        ("length", 2**31, ProtocolErrorCode.FRAME_TOO_LARGE),
    ]
    for first in range(len(broken)):
        fields = {name: value for name, value, _ in broken[first:]}
        assert code_of(read([header(**fields)], bounds(AGREED))) == broken[first][2]


def test_every_flipped_bit_of_a_frame_is_found() -> None:
    whole = framed(COMPLETE)
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        frames, error = read([bytes(changed)], bounds(AGREED))
        assert frames == []
        assert error is not None


@pytest.mark.parametrize(
    "stream",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x80\x04\x95\x0f\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00",
        bytes(range(256)),
    ],
)
def test_x40_another_program_on_the_port_is_one_bounded_error(stream: bytes) -> None:
    reader = FrameReader(bounds(None))
    capacity = reader.capacity
    assert code_of(read([stream], bounds(None), ended=False)) == ProtocolErrorCode.BAD_MAGIC
    with pytest.raises(ProtocolError):
        list(reader.feed(stream))
    assert reader.capacity == capacity < READ_AHEAD + 512


def test_before_hello_only_hello_and_error_have_a_bound() -> None:
    limits = bounds(None)
    assert set(limits.payload) == {MessageType.HELLO, MessageType.ERROR}
    assert read([framed(VERIFIER)], limits)[1] is None
    for kind in MessageType:
        if kind not in limits.payload:
            code = code_of(read([header(kind=kind)], limits, ended=False))
            handshake = kind in (MessageType.CHALLENGE, MessageType.PROOF)
            assert (code == ProtocolErrorCode.AUTHENTICATION_FAILED) is handshake
            assert handshake or code == ProtocolErrorCode.UNEXPECTED_MESSAGE


@pytest.mark.parametrize("due", [MessageType.CHALLENGE, MessageType.PROOF])
def test_before_a_key_is_proved_only_what_is_due_has_a_bound(due: MessageType) -> None:
    """P20, P23: the oracle names the same code, and the reader stays small."""
    limits = handshake_bounds(due, WireVersion.V2)
    assert set(limits.payload) == {due, MessageType.ERROR}
    assert FrameReader(limits).capacity < 1200
    names = {kind.name: most for kind, (_, most) in limits.payload.items()}
    for kind in MessageType:
        if kind not in limits.payload:
            head = header(kind=kind, length=0)
            assert code_of(read([head], limits)) == ProtocolErrorCode.AUTHENTICATION_FAILED
            with pytest.raises(oracle.Refused, match="AUTHENTICATION_FAILED"):
                list(oracle.read_frames(head, 2, names))


def test_a_receiver_takes_only_what_its_peer_may_send() -> None:
    code = ProtocolErrorCode.UNEXPECTED_MESSAGE
    assert code_of(read([framed(STEP)], bounds(AGREED, receiver=Role.VERIFIER))) == code
    assert code_of(read([framed(REPLY)], bounds(AGREED, receiver=Role.DRAFTER))) == code
    assert read([framed(STEP)], bounds(AGREED, receiver=Role.DRAFTER))[1] is None
    assert read([framed(REPLY)], bounds(AGREED, receiver=Role.VERIFIER))[1] is None


def test_configured_versions_alone_are_accepted() -> None:
    hello = framed(VERIFIER)
    only_v1 = bounds(None, versions=frozenset({WireVersion.V1}))
    assert code_of(read([hello], only_v1)) == ProtocolErrorCode.BAD_VERSION
    assert read([hello], bounds(None, versions=frozenset({WireVersion.V2})))[1] is None


@pytest.mark.parametrize("cut", range(1, len(framed(Ping(1)))))
def test_a_stream_that_ends_inside_a_frame_is_truncated(cut: int) -> None:
    seen = read([framed(Ping(1))[:cut]], bounds(AGREED))
    assert code_of(seen) == ProtocolErrorCode.TRUNCATED


def receive(
    reader: FrameReader, stream: Sequence[int] | bytes, sizes: Iterable[int]
) -> list[bytes]:
    """Receive as from a socket: whatever fits ``buffer()``, no more than the next size."""
    payloads = []
    view = memoryview(bytes(stream))
    for size in sizes:
        room = reader.buffer()
        assert len(room)
        count = min(size, len(room), len(view))
        room[:count] = view[:count]
        view = view[count:]
        frame = reader.filled(count)
        while frame is not None:
            payloads.append(bytes(frame.payload))
            frame = reader.filled(0)
        if not len(view):
            return payloads
    raise AssertionError("sizes ran out")


def test_x39_a_large_frame_and_a_small_one_through_a_slow_receiver() -> None:
    """Every checksum matches, whatever the sizes read; one buffer, never replaced."""
    limits = Bounds(frozenset({WireVersion.V2}), dict.fromkeys(MessageType, (0, 300_000)))
    large = bytes(range(251)) * 1000
    frames = [
        frame_bytes(encode_frame(WireVersion.V2, MessageType.REPLY, large)),
        frame_bytes(encode_frame(WireVersion.V2, MessageType.COMPLETE, b"last")),
    ] * 3
    for sizes in ([1 << 30], [70_000, 1], [65_536, 16, 3], [251], [7, 400_000]):
        reader = FrameReader(limits)
        store = reader.buffer().obj
        got = receive(reader, b"".join(frames), itertools.cycle(sizes))
        assert got == [large, b"last"] * 3
        assert reader.buffer().obj is store


def test_little_is_moved_and_the_buffer_never_runs_full() -> None:
    """Of each frame at most READ_AHEAD bytes are moved inside the buffer, once."""
    moved: list[int] = []

    class Watched(FrameReader):
        def move_to_front(self) -> None:
            moved.append(self._end - self._begin)
            super().move_to_front()

    limits = Bounds(frozenset({WireVersion.V2}), dict.fromkeys(MessageType, (0, 500_000)))
    frame = frame_bytes(encode_frame(WireVersion.V2, MessageType.REPLY, bytes(499_000)))
    reader = Watched(limits)
    assert len(receive(reader, frame * 20, itertools.repeat(1 << 30))) == 20
    assert len(moved) <= 20
    assert max(moved, default=0) <= READ_AHEAD


def test_a_payload_is_a_read_only_view_and_valid_until_the_next_call() -> None:
    reader = FrameReader(bounds(AGREED))
    (frame, *rest) = itertools.islice(reader.feed(framed(Ping(3)) * 2), 1)
    assert not rest
    assert frame.payload.readonly
    assert frame.payload.obj is reader.buffer().obj


def test_the_buffer_grows_once_when_hello_agrees_more_and_keeps_what_follows() -> None:
    reader = FrameReader(bounds(None))
    small = reader.capacity
    stream = memoryview(framed(VERIFIER) + framed(REPLY) * 2)
    reader.buffer()[: len(stream)] = stream
    first = reader.filled(len(stream))
    assert first is not None
    assert first.type == MessageType.HELLO
    reader.bounds = Bounds(frozenset({WireVersion.V2}), {MessageType.REPLY: (0, 1 << 20)})
    assert reader.capacity > small
    grown = reader.buffer().obj
    for _ in range(2):
        frame = reader.filled(0)
        assert frame is not None
        assert frame.type == MessageType.REPLY
    assert reader.filled(0) is None
    reader.bounds = bounds(AGREED)
    assert reader.buffer().obj is grown


def test_a_count_beyond_the_buffer_is_our_own_bug() -> None:
    reader = FrameReader(ROOMY)
    for count in (-1, reader.capacity + 1):
        with pytest.raises(ValueError, match="do not fit"):
            reader.filled(count)
