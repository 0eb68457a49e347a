"""Frames to and from a byte stream (spec/protocol.md, P1-P4); no sockets, no messages.

The one sentence that the fuzz tests hold this module to: any bytes, in any split, are the same
frames followed by at most one :class:`ProtocolError`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.wire.checksum import crc32c
from draftwire.wire.registry import (
    FRAME_MAC_BYTES,
    HEADER_BYTES,
    MAGIC,
    TRAILER_BYTES,
    MessageType,
    WireVersion,
)

_PREFIX: Final = struct.Struct("<4sBBHI")  # magic, version, type, flags, payload length
_HEADER: Final = struct.Struct("<4sBBHII")  # and the checksum of those
_U32: Final = struct.Struct("<I")
_NONE: Final = (1, 0)  # least and most bytes of a type that may not come: no length is between
_TYPES: Final = {int(kind): kind for kind in MessageType}
_VERSIONS: Final = {int(version): version for version in WireVersion}
_DUE_FIELDS: Final = {MessageType.CHALLENGE: "nonce", MessageType.PROOF: "proof"}
_TLS_RECORDS: Final = frozenset({0x15, 0x16})  # alert and handshake: what a TLS peer says first

READ_AHEAD: Final = 1 << 16
"""Bytes read before a frame's length is known, and past its end; the most that is ever moved."""

SPEAKS_TLS: Final = "the peer speaks TLS, and this side was not told to"
"""What a BAD_MAGIC says where it is one."""

Opener: TypeAlias = Callable[[memoryview, memoryview], bool]
"""Says whether the MAC (second) is that of the next frame (first) of this stream."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which frames may come now: accepted versions, and least and most payload bytes by type.

    A type that is missing may not come now. Made by :func:`draftwire.wire.agreement.bounds`.
    ``read_ahead``: bytes taken past a frame's end, the most of them READ_AHEAD.
    """

    versions: frozenset[WireVersion]
    payload: Mapping[MessageType, tuple[int, int]]
    read_ahead: int = READ_AHEAD

    @property
    def largest_frame(self) -> int:
        """Bytes of the largest frame that may come."""
        most = max(most for _, most in self.payload.values())
        return HEADER_BYTES + most + TRAILER_BYTES


class Frame(NamedTuple):
    """One frame whose checksums hold. ``payload`` is read-only and valid until the next call."""

    version: WireVersion
    type: MessageType
    payload: memoryview
    checksum: int


def encode_frame(
    version: WireVersion, type: MessageType, *parts: bytes | memoryview
) -> list[bytes | memoryview]:
    """Return header, ``parts`` as they are, and trailer, for ``writev``/``sendmsg``."""
    length = 0
    checksum = 0
    for part in parts:
        length += len(part) if isinstance(part, bytes) else part.nbytes
        checksum = crc32c(part, checksum)
    return [frame_header(version, type, length), *parts, _U32.pack(checksum)]


def frame_header(version: WireVersion, type: MessageType, length: int) -> bytes:
    """Return the header of a frame with a payload of ``length`` bytes."""
    prefix = _PREFIX.pack(MAGIC, version, type, 0, length)
    return prefix + _U32.pack(crc32c(prefix))


def frame_checksum(parts: list[bytes | memoryview]) -> int:
    """Return the payload CRC32C of an encoded frame: its trailer."""
    return int.from_bytes(parts[-1], "little")


def frame_bytes(parts: list[bytes | memoryview]) -> bytes:
    """Return an encoded frame as one bytes object: for tests, vectors and small frames."""
    return b"".join(parts)


class FrameReader:
    """Cuts a byte stream into frames inside one preallocated buffer that is used again and again.

    Write into :meth:`buffer`, tell :meth:`filled` how much, and call ``filled(0)`` until it returns
    None. A frame's payload is a view of the buffer and valid until the next call of any method.
    After an error every further call raises that error again: the framing is lost (P3).
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._store = memoryview(bytearray(_capacity(bounds)))
        self._begin = 0  # first byte of the frame being read
        self._end = 0  # one past the last byte received
        self._consumed = 0  # bytes of the frame handed out last, released by the next call
        self._need = 0  # bytes of the frame being read, once its header holds; 0 before
        self._version = WireVersion.V2
        self._type = MessageType.HELLO
        self._error: ProtocolError | None = None
        self._opener: Opener | None = None

    def open_with(self, opener: Opener) -> None:
        """From the next frame on, expect a MAC behind each and ask ``opener`` about it (P22)."""
        self._release()
        self._opener = opener

    @property
    def bounds(self) -> Bounds:
        """The bounds in force."""
        return self._bounds

    @bounds.setter
    def bounds(self, bounds: Bounds) -> None:
        """Replace the bounds between two frames; the buffer grows if they need it, once."""
        self._release()
        self._bounds = bounds
        if _capacity(bounds) > len(self._store):
            store = memoryview(bytearray(_capacity(bounds)))
            store[: self._end - self._begin] = self._store[self._begin : self._end]
            self._end -= self._begin
            self._begin = 0
            self._store = store

    @property
    def capacity(self) -> int:
        """Bytes of the buffer."""
        return len(self._store)

    def buffer(self) -> memoryview:
        """Return where the next bytes go; never empty once ``filled(0)`` has returned None."""
        if self._consumed:
            self._release()
        if self._error is not None:
            raise self._error
        limit = self._begin + (self._need or HEADER_BYTES) + self._bounds.read_ahead
        if self._begin and limit > len(self._store):
            limit -= self._begin
            self.move_to_front()  # at most the bytes read ahead: a frame's place is made first
        return self._store[self._end : limit]

    def filled(self, count: int) -> Frame | None:
        """Take ``count`` new bytes and return the next whole frame, or None when more is needed."""
        if self._consumed:
            self._release()
        if self._error is not None:
            raise self._error
        if not 0 <= count <= len(self._store) - self._end:
            raise ValueError(f"{count} bytes do not fit into the buffer")
        self._end += count
        if self._begin == self._end:
            return None
        try:
            return self._next()
        except ProtocolError as error:
            self._error = error
            raise

    @property
    def unread(self) -> bool:
        """Whether bytes wait behind the frame that was handed out last."""
        return self._begin + self._consumed < self._end

    def feed(self, data: bytes | memoryview) -> Iterator[Frame]:
        """Copy ``data`` in and yield its frames; each is valid until the next is asked for."""
        view = memoryview(data)
        while len(view):
            room = self.buffer()
            count = min(len(room), len(view))
            room[:count] = view[:count]
            view = view[count:]
            frame = self.filled(count)
            while frame is not None:
                yield frame
                frame = self.filled(0)

    def finish(self) -> None:
        """The stream has ended; raises TRUNCATED if it ended inside a frame."""
        self._release()
        self._raise_again()
        if self._end > self._begin:
            received = self._end - self._begin
            self._error = ProtocolError(
                ProtocolErrorCode.TRUNCATED, f"the stream ended {received} bytes into a frame"
            )
            raise self._error

    def _next(self) -> Frame | None:
        available = self._end - self._begin
        if not self._need:
            if available < HEADER_BYTES:
                _check_magic(self._store[self._begin : min(self._end, self._begin + len(MAGIC))])
                return None
            header = self._store[self._begin : self._begin + HEADER_BYTES]
            self._version, self._type, length = _read_header(header, self._bounds)
            mac_bytes = 0 if self._opener is None else FRAME_MAC_BYTES
            self._need = HEADER_BYTES + length + TRAILER_BYTES + mac_bytes
        if available < self._need:
            return None
        begin = self._begin + HEADER_BYTES
        end = self._begin + self._need - TRAILER_BYTES
        if self._opener is not None:
            end -= FRAME_MAC_BYTES
            self._open(self._opener, end + TRAILER_BYTES)
        payload = self._store[begin:end]
        checksum = crc32c(payload)
        if checksum != _U32.unpack_from(self._store, end)[0]:
            raise ProtocolError(
                ProtocolErrorCode.BAD_PAYLOAD_CHECKSUM,
                f"the payload of a {self._type.name} frame fails its checksum",
            )
        self._consumed, self._need = self._need, 0
        return Frame(self._version, self._type, payload.toreadonly(), checksum)

    def _open(self, opener: Opener, end: int) -> None:
        """Refuse the frame that ends at ``end`` unless the MAC behind it is right."""
        mac = self._store[end : end + FRAME_MAC_BYTES]
        if not opener(self._store[self._begin : end], mac):
            raise ProtocolError(
                ProtocolErrorCode.AUTHENTICATION_FAILED,
                f"a {self._type.name} frame fails its MAC: it was changed, or comes from another",
            )

    def _release(self) -> None:
        self._begin += self._consumed
        self._consumed = 0
        if self._begin == self._end:
            self._begin = self._end = 0

    def _raise_again(self) -> None:
        if self._error is not None:
            raise self._error

    def move_to_front(self) -> None:
        """Move what is not yet read to the beginning of the buffer."""
        remainder = self._end - self._begin
        self._store[:remainder] = self._store[self._begin : self._end]
        self._begin, self._end = 0, remainder


def _capacity(bounds: Bounds) -> int:
    return bounds.largest_frame + FRAME_MAC_BYTES + bounds.read_ahead


def _check_magic(received: memoryview) -> None:
    if received != MAGIC[: len(received)]:
        tls = received[0] in _TLS_RECORDS
        raise ProtocolError(
            ProtocolErrorCode.BAD_MAGIC,
            SPEAKS_TLS if tls else "this is not a draftwire stream",
        )


def _read_header(header: memoryview, bounds: Bounds) -> tuple[WireVersion, MessageType, int]:
    """Return version, type and payload length of a header: validated at once, explained after."""
    magic, version_number, type_number, flags, length, checksum = _HEADER.unpack(header)
    version, kind = _VERSIONS.get(version_number), _TYPES.get(type_number)
    if version is not None and kind is not None and magic == MAGIC and not flags:
        least, most = bounds.payload.get(kind, _NONE)
        right = least <= length <= most and version in bounds.versions
        if right and checksum == crc32c(header[: _PREFIX.size]):
            return version, kind, length
    raise _header_error(header, bounds)


def _header_error(header: memoryview, bounds: Bounds) -> ProtocolError:
    """Return what is wrong with a header that is not right, in the order of P2."""
    _check_magic(header[: len(MAGIC)])
    _, version, type_number, flags, length, checksum = _HEADER.unpack(header)
    code = ProtocolErrorCode
    if crc32c(header[: _PREFIX.size]) != checksum:
        return ProtocolError(code.BAD_HEADER_CHECKSUM, "a frame header fails its checksum")
    if version not in bounds.versions:
        return ProtocolError(code.BAD_VERSION, f"wire version {version} is not accepted here")
    kind = _TYPES.get(type_number)
    if kind is None:
        return ProtocolError(code.BAD_TYPE, f"message type {type_number} is unknown")
    if flags:
        return ProtocolError(code.BAD_FLAGS, f"frame flags {flags:#06x} are not zero")
    if kind not in bounds.payload:
        return _unexpected(kind, bounds)
    least, most = bounds.payload[kind]
    if length > most:
        text = f"a {kind.name} payload of {length} bytes is over {most}"
        return ProtocolError(code.FRAME_TOO_LARGE, text)
    text = f"a {kind.name} payload of {length} bytes is under {least}"
    return ProtocolError(code.BAD_LENGTH, text)


def _unexpected(kind: MessageType, bounds: Bounds) -> ProtocolError:
    """Return the error for a message that may not come now; a key on one side only says so."""
    code = ProtocolErrorCode.AUTHENTICATION_FAILED
    for due, field in _DUE_FIELDS.items():
        if due in bounds.payload:
            text = f"a {kind.name} message came where a {due.name} is due"
            if due is MessageType.CHALLENGE and kind is MessageType.HELLO:
                text += " (was the peer given the key?)"
            return ProtocolError(code, text, field=field)
    if kind in _DUE_FIELDS:
        text = f"the peer sends {kind.name}, and no handshake is due (was this side given the key?)"
        return ProtocolError(code, text)
    return ProtocolError(
        ProtocolErrorCode.UNEXPECTED_MESSAGE, f"a {kind.name} message may not come now"
    )
