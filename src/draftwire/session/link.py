"""One connection without its socket: HELLO, frames, PING, and one ERROR before it closes (P1-P8).

With a key, both sides first prove that they hold it, and every frame after has a MAC (P20-P22).

Both roles run the same link. Bytes go in by ``buffer``/``filled`` (or ``feed``), events come out;
bytes to be written gather in ``outgoing``. A protocol error of the framing or of the agreement ends
the link; what only concerns a session is the session's business and leaves it up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from draftwire.errors import ProtocolError, RemoteError
from draftwire.session.frame_mac import Sealer
from draftwire.session.handshake import Handshake
from draftwire.session.link_states import LinkInput, LinkState, advance
from draftwire.session.proposal import Parts, Received
from draftwire.wire import agreement, codec
from draftwire.wire.agreement import Agreed
from draftwire.wire.fields import FIELD_NAMES
from draftwire.wire.frames import Bounds, Frame, FrameReader, encode_frame
from draftwire.wire.messages import (
    Challenge,
    ErrorMessage,
    Hello,
    Message,
    Ping,
    Pong,
    Proof,
)
from draftwire.wire.registry import (
    FRAME_MAC_BYTES,
    HANDSHAKE_TYPES,
    HEADER_BYTES,
    TRAILER_BYTES,
    MessageType,
    Role,
)

FRAME_BYTES: Final = HEADER_BYTES + TRAILER_BYTES

_OF_SESSIONS: Final = frozenset(MessageType) - {
    MessageType.HELLO,
    MessageType.ERROR,
    MessageType.PING,
    MessageType.PONG,
    *HANDSHAKE_TYPES,
}
"""Messages that never concern the connection itself."""


@dataclass(frozen=True, slots=True)
class AgreedEvent:
    """Both HELLOs are there; sessions may begin."""

    agreed: Agreed


@dataclass(frozen=True, slots=True)
class Alive:
    """The peer has answered a PING after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Closed:
    """The link is over: write what is outgoing, then close. error: None = the stream just ended."""

    error: ProtocolError | None


Event: TypeAlias = AgreedEvent | Received | Alive | Closed
"""A :class:`Received` is for the session that its message names."""


class Link:
    """One connection. mine: this side's HELLO; its layouts decide the one version spoken (P5).

    key, nonce: the secret that both sides share, and 32 fresh random bytes; without them there is
    no handshake, and none is accepted.
    heard_at: when the peer's last whole frame came. sent, received: messages by type. frames: all
    that were received.
    """

    def __init__(self, mine: Hello, now: float, key: bytes = b"", nonce: bytes = b"") -> None:
        self.state = LinkState.KEYED if key else LinkState.FRESH
        self.agreed: Agreed | None = None
        self.theirs: Hello | None = None
        self.heard_at = now
        self.sent = dict.fromkeys(MessageType, 0)
        self.received = dict.fromkeys(MessageType, 0)
        self.frames = 0
        self._mine = mine
        self._version = agreement.version_of(mine.layouts)
        self._handshake = Handshake(mine.role, key, nonce, self._version) if key else None
        self._sealer: Sealer | None = None
        self._reader = FrameReader(self._bounds())
        self.buffer = self._reader.buffer
        """Return where received bytes go; not after the end."""
        self._out: Parts = []
        self._pings: dict[int, float] = {}

    @property
    def role(self) -> Role:
        """This side's role."""
        return self._mine.role

    @property
    def frame_bytes(self) -> int:
        """Bytes of a frame beside its payload, as frames come now: a MAC belongs to them."""
        return FRAME_BYTES if self._sealer is None else FRAME_BYTES + FRAME_MAC_BYTES

    @property
    def closed(self) -> bool:
        """Whether the link is over."""
        return self.state is LinkState.CLOSED

    def start(self) -> None:
        """Speak first, if this side is the verifier (P6)."""
        if self._handshake is not None:
            for message in self._handshake.start():
                self._put(message)
        else:
            self._send_hello()

    def send(self, message: Message) -> None:
        """Encode a message into ``outgoing``; ProtocolError unless both HELLOs are agreed."""
        if self.state is not LinkState.AGREED:  # where a message changes nothing
            self.state = advance(self.state, LinkInput.MESSAGE)
        self._put(message)

    def send_parts(self, parts: Parts) -> None:
        """Put frames that are encoded already into ``outgoing``, as they are."""
        if parts:
            if self.state is not LinkState.AGREED:
                self.state = advance(self.state, LinkInput.MESSAGE)
            self._out.extend(parts if self._sealer is None else self._sealer.seal(parts))

    def with_outgoing(self, parts: Parts) -> Parts:
        """Return everything that is ``outgoing``, with these frames behind it, and forget it."""
        if not self._out and self._sealer is None and self.state is LinkState.AGREED:
            return parts
        self.send_parts(parts)
        return self.outgoing()

    def ping(self, nonce: int, now: float) -> None:
        """Ask whether the peer is there; :class:`Alive` follows. One PING is open at a time."""
        self._pings = {nonce: now}
        self.send(Ping(nonce))

    def outgoing(self) -> Parts:
        """Return the bytes to be written, in order, and forget them."""
        out, self._out = self._out, []
        return out

    def idle(self) -> bool:
        """Whether every byte that came is accounted for by an event, and none is ``outgoing``."""
        return not self._out and not self._reader.unread

    def filled(self, count: int, now: float) -> Event | None:
        """Take ``count`` new bytes and return the next event; call with 0 until None comes.

        Views in an event are valid until the next call.
        """
        while self.state is not LinkState.CLOSED:
            try:
                frame = self._reader.filled(count)
                if frame is None:
                    return None
                event = self._take(frame, now)
            except ProtocolError as error:
                return self._fail(error)
            if event is not None:
                return event
            count = 0
        return None

    def feed(self, data: bytes | memoryview, now: float) -> Iterator[Event]:
        """Copy ``data`` in and yield its events; views in one are valid until the next."""
        view = memoryview(data)
        while not self.closed:
            room = self.buffer()
            count = min(len(room), len(view))
            room[:count] = view[:count]
            view = view[count:]
            event = self.filled(count, now)
            while event is not None:
                yield event
                event = self.filled(0, now)
            if not len(view):
                return

    def finished(self) -> Closed:
        """The stream has ended at the peer's side."""
        try:
            if not self.closed:
                self._reader.finish()
        except ProtocolError as error:
            return self._fail(error)
        self.state = advance(self.state, LinkInput.END)
        return Closed(None)

    def refuse(self, error: ProtocolError) -> Closed:
        """End the link here because of what the peer does; one ERROR says why."""
        return self._fail(error)

    def close(self) -> None:
        """End the link here; ``outgoing`` may still be written."""
        self.state = advance(self.state, LinkInput.END)

    # inside

    def _take(self, frame: Frame, now: float) -> Event | None:
        self.heard_at = now
        self.received[frame.type] += 1
        self.frames += 1
        message = codec.decode(frame.type, frame.version, frame.payload, self.agreed)
        if frame.type in _OF_SESSIONS:
            if self.state is not LinkState.AGREED:
                self.state = advance(self.state, LinkInput.MESSAGE)
            return Received(message, frame.payload.nbytes, frame.checksum)
        if isinstance(message, ErrorMessage) and not message.session:
            named = f" ({message.field})" if message.field else ""
            raise RemoteError(
                message.code, f"the peer refused: {message.code.name}{named}", field=message.field
            )
        if isinstance(message, Hello):
            return self._hello(message)
        if isinstance(message, Challenge | Proof):
            self._shake(message)
            return None
        self.state = advance(self.state, LinkInput.MESSAGE)
        if isinstance(message, Ping):
            self._put(Pong(message.nonce))
            return None
        if isinstance(message, Pong):
            asked_at = self._pings.pop(message.nonce, None)
            return None if asked_at is None else Alive(now - asked_at)
        return Received(message, frame.payload.nbytes, frame.checksum)

    def _shake(self, message: Challenge | Proof) -> None:
        """Follow the key's handshake; a side's frames after its own PROOF are sealed (P22)."""
        assert self._handshake is not None  # the bounds let none of these through otherwise
        for answer in self._handshake.take(message):
            self._put(answer)
            if isinstance(answer, Proof):
                self._sealer = self._handshake.sealer()
        if self._handshake.proved:
            self._reader.open_with(self._handshake.opener().opens)
            self._handshake = None
            self.state = advance(self.state, LinkInput.PROVED)
            self._send_hello()
        self._reader.bounds = self._bounds()

    def _send_hello(self) -> None:
        if self.role is Role.VERIFIER:
            self.state = advance(self.state, LinkInput.HELLO)
            self._put(self._mine)

    def _hello(self, theirs: Hello) -> Event:
        self.state = advance(self.state, LinkInput.HELLO)
        agreed = agreement.agree(self._mine, theirs)
        self.theirs = theirs
        if self.role is Role.DRAFTER:
            self._put(agreement.answer(self._mine, agreed))
            self.state = advance(self.state, LinkInput.HELLO)
        self.agreed = agreed
        self._reader.bounds = self._bounds()
        return AgreedEvent(agreed)

    def _fail(self, error: ProtocolError) -> Closed:
        """Say once why, unless the peer said it, and close (P3)."""
        if not isinstance(error, RemoteError):
            field = error.field if error.field in FIELD_NAMES else None
            self._put(ErrorMessage(error.code, field=field or ""))
        self.state = advance(self.state, LinkInput.FAULT)
        return Closed(error)

    def _put(self, message: Message) -> None:
        kind = codec.message_type(message)
        self.sent[kind] += 1
        frame = encode_frame(self._version, kind, *codec.encode(message))
        self._out.extend(frame if self._sealer is None else self._sealer.seal(frame))

    def _bounds(self) -> Bounds:
        if self._handshake is not None:
            return agreement.handshake_bounds(self._handshake.due, self._version)
        return agreement.bounds(
            self.agreed, versions=frozenset({self._version}), receiver=self._mine.role
        )
