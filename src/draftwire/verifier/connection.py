"""One verifier's connection to its drafter: opened when it is due, kept alive, lost without harm.

Knows no request. What comes over it, and its end, are events; the client that holds it acts. The
client's lock is held by whoever calls; while bytes are waited for it is let go, so that other
threads send meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, TypeAlias

from draftwire.errors import (
    ConfigurationError,
    DrafterUnavailableError,
    PairMismatchError,
    ProtocolError,
    ProtocolErrorCode,
    RemoteError,
    TransportError,
)
from draftwire.session.link import Alive, Closed, Link
from draftwire.session.proposal import Parts, Received
from draftwire.session.reasons import DropReason
from draftwire.session.slot_buffers import ReplySlots
from draftwire.transport.channel import Channel
from draftwire.transport.queue import size_of
from draftwire.verifier.config import VerifierConfig
from draftwire.verifier.counters import ClientCounters
from draftwire.verifier.handshake import CLOSING_SECONDS, handshake, send_final_error
from draftwire.verifier.log import ClientLog
from draftwire.verifier.reconnect import ConnectPacing, Silence
from draftwire.verifier.states import TargetStates, require_states
from draftwire.wire.agreement import Agreed
from draftwire.wire.hello import without_features
from draftwire.wire.messages import Hello, Message
from draftwire.wire.registry import NONCE_BYTES

QUIET_SECONDS: Final = 1.0  # without a word, and the end of a connection is looked for first
GLANCE_SECONDS: Final = 0.001
KEEP_SECONDS: Final = 30.0  # of silence here, after which a request that pauses says PING


class ClientLock(Protocol):
    """A reentrant lock, as of ``threading``."""

    def acquire(self) -> bool:
        """Wait for it."""

    def release(self) -> None:
        """Let it go."""

    def __enter__(self) -> bool:
        """Wait for it."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let it go."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection has ended; the rounds in flight are lost for this reason."""

    reason: DropReason
    detail: str


ConnectionEvent: TypeAlias = Received | Alive | Lost
"""A :class:`Lost` is the last of its connection; views in a Received are valid until the next."""


class Connection:
    """The channel, the link on it and the slots for its replies; one after another.

    open_channel: opens a channel, given the time it may take until; raises TransportError. clock:
    seconds, monotonic. entropy: makes nonces. counters, log: what is counted and told here. lock:
    the client's. target_states: what the target has of them, None = none. reading: whether a
    thread waits for bytes; no other may then.
    """

    def __init__(
        self,
        open_channel: Callable[[float], Channel],
        hello: Hello,
        config: VerifierConfig,
        *,
        clock: Callable[[], float],
        entropy: Callable[[int], bytes],
        counters: ClientCounters,
        log: ClientLog,
        lock: ClientLock,
        target_states: TargetStates | None = None,
    ) -> None:
        self.config = config
        self.lock = lock
        self.reading = False
        self.slots: ReplySlots | None = None  # of the present connection, or the last
        self.open_channel = open_channel
        self._hello = hello
        self._target_states = target_states
        self._clock = clock
        self._entropy = entropy
        self._counters = counters
        self._log = log
        self._channel: Channel | None = None
        self._link: Link | None = None
        self._pacing = ConnectPacing()
        self._silence = Silence()
        self._sent_at = 0.0  # when something was last sent

    @property
    def agreed(self) -> Agreed | None:
        """What HELLO agreed on the present connection; None while there is none."""
        return None if self._link is None else self._link.agreed

    @property
    def channel(self) -> Channel | None:
        """The present channel, if there is one."""
        return self._channel

    @property
    def heard_at(self) -> float:
        """When the last whole frame came."""
        return 0.0 if self._link is None else self._link.heard_at

    @property
    def frame_bytes(self) -> int:
        """Bytes of a frame beside its payload."""
        return 0 if self._link is None else self._link.frame_bytes

    def open(self, until: float | None = None) -> Agreed:
        """Connect and agree, if that has not been done.

        until: seconds of the clock, where less time is left than ``connect_timeout``. Raises
        TransportError (unreachable), ProtocolError (refused, or not a drafter), ConfigurationError
        (limits under the slots' plan).
        """
        if self._link is not None and self._link.agreed is not None:
            return self._link.agreed
        deadline = self._clock() + self.config.connect_timeout
        deadline = deadline if until is None else min(deadline, until)
        try:
            agreed = self._agree(self._hello, deadline)
        except RemoteError as error:
            if (error.code, error.field) != (ProtocolErrorCode.BAD_PADDING, "features"):
                raise
            # A drafter of an earlier version, which knows the byte as reserved (P33).
            agreed = self._agree(without_features(self._hello), deadline)
        self._sent_at = self._clock()
        self._counters.connections += 1
        self._log.found()
        return agreed

    def _agree(self, hello: Hello, deadline: float) -> Agreed:
        """Open a channel and agree on it, with the slots for its replies."""
        self._silence.heard()
        self._channel = self.open_channel(deadline)
        nonce = self._entropy(NONCE_BYTES) if self.config.key else b""
        self._link = Link(hello, self._clock(), self.config.key, nonce)
        try:
            agreed = handshake(self._channel, self._link, deadline, self._clock)
            self._require_states(self._channel, self._link, agreed)
            self.slots = ReplySlots.planned(agreed, self.config.slots, self.slots)
        except BaseException:
            self.close()
            raise
        return agreed

    def _require_states(self, channel: Channel, link: Link, agreed: Agreed) -> None:
        """Refuse a drafter that reads states which the target has not, and tell it the field."""
        try:
            require_states(self._target_states, self.config.state_projection, agreed)
        except PairMismatchError as error:
            code = ProtocolErrorCode.HELLO_REFUSED
            link.refuse(ProtocolError(code, str(error), field=error.field))
            send_final_error(channel, link, self._clock)
            raise

    def may_try(self) -> bool:
        """Whether an attempt to connect is due."""
        return self._pacing.may_try(self._clock())

    def try_open(self, until: float | None) -> str | None:
        """Connect; returns why that failed, or None where there is a connection now."""
        try:
            self.open(until)
        except (
            TransportError,
            ProtocolError,
            DrafterUnavailableError,
            ConfigurationError,  # a drafter that came back with limits under the slots' plan
        ) as error:
            self._counters.unreachable += 1
            self._counters.error(error)
            self._log.unreachable(error)
            self._pacing.failed(self._clock())
            return str(error)
        self._pacing.succeeded()
        return None

    def encode(self, message: Message) -> Parts:
        """Return the bytes of a message of this connection, to be sent in this order."""
        assert self._link is not None
        self._link.send(message)
        return self._link.outgoing()

    def send(self, parts: Parts, deadline: float) -> Lost | None:
        """Send a round's STEPs; returns the loss of the connection where that fails."""
        if self._channel is None:
            raise ConnectionError("there is no connection to ask on")
        try:
            self._channel.send(parts, deadline)
        except TimeoutError as error:  # half a STEP may be on its way: the framing is lost
            return self._lost(DropReason.MISSED_DEADLINE, str(error))
        except ConnectionError as error:
            return self._lost(DropReason.DISCONNECTED, str(error))
        return None

    def asked(self, now: float) -> None:
        """Book that a round was asked: called while the drafter is at work."""
        self._sent_at = now
        self._silence.asked(now)

    def receive(self, deadline: float) -> Iterator[ConnectionEvent]:
        """Wait for bytes once and yield every event that they complete. Raises TimeoutError."""
        channel, link = self._channel, self._link
        assert channel is not None
        assert link is not None
        try:
            count = self._wait(channel, link, deadline)
        except ConnectionError as error:
            if self._link is link:  # otherwise another thread has ended it, and told so
                yield self._lost(DropReason.DISCONNECTED, str(error))
            return
        if self._link is not link:
            return
        self._silence.heard()
        now = self._clock()
        event = link.filled(count, now)
        while event is not None:
            if isinstance(event, Closed):
                yield self._closed_by(event)
                return
            if isinstance(event, Received | Alive):
                yield event
            if self._link is not link or link.idle():
                return
            event = link.filled(0, now)
        parts = link.outgoing()  # PONG
        if parts:
            try:
                channel.send(parts, deadline)
            except (TimeoutError, ConnectionError) as error:  # half of it may be on its way
                yield self._lost(DropReason.DISCONNECTED, f"the drafter takes no bytes: {error}")

    def ping(self, deadline: float) -> Lost | None:
        """Say PING; an :class:`Alive` is received later."""
        assert self._link is not None
        return self._say_ping(self._link, self._clock(), deadline)

    def unanswered(self, error: TimeoutError) -> Lost | None:
        """Give a connection up that has not answered PING."""
        return None if self._link is None else self._lost(DropReason.DISCONNECTED, str(error))

    def catch_up(self) -> Iterator[ConnectionEvent]:
        """Yield what came since the last round, if that is long ago (QUIET_SECONDS).

        Mostly nothing, or that the drafter has ended the connection: found here, it costs no round.
        """
        link = self._link
        if link is None or self.reading or self._clock() - link.heard_at < QUIET_SECONDS:
            return
        until = self._clock() + GLANCE_SECONDS
        try:
            while self._link is link:
                yield from self.receive(until)
        except TimeoutError:
            return

    def keep_alive(self, deadline: float) -> Iterator[ConnectionEvent]:
        """Say PING where this side has long been silent; does not wait for the answer (P30).

        deadline: seconds of a round now, which is also the longest that sending may take.
        """
        now = self._clock()
        if self._link is None or now - self._sent_at < KEEP_SECONDS:
            return
        self._sent_at = now
        yield from self.catch_up()
        if self._link is None:
            return
        until = self._clock() + min(CLOSING_SECONDS, deadline)
        lost = self._say_ping(self._link, now, until)
        if lost is not None:
            yield lost

    def too_silent(self, deadline: float) -> Lost | None:
        """Give a connection up that says nothing any more; deadline: seconds of a round now."""
        if self._link is None or not self._silence.too_long(self._clock(), deadline):
            return None
        return self._lost(DropReason.DISCONNECTED, "nothing is heard of it")

    def close_gracefully(self, messages: Sequence[Message], seconds: float) -> int:
        """Tell the drafter that a request is over, where there is a connection.

        Returns the bytes that were sent; the connection has ended where that failed. seconds: the
        longest that it may take.
        """
        if self._link is None or self._channel is None:
            return 0
        for message in messages:
            self._link.send(message)
        parts = self._link.outgoing()
        try:
            if parts:
                self._channel.send(parts, self._clock() + min(CLOSING_SECONDS, seconds))
        except (TimeoutError, ConnectionError):
            self.close()
        except BaseException:  # interrupted: half a message may be on its way
            self.close()
            raise
        return sum(map(size_of, parts))

    def queue(self, message: Message) -> None:
        """Let a message go out with the next STEP; nothing happens without a connection."""
        if self._link is not None:
            self._link.send(message)

    def close(self) -> None:
        """End the connection; may be called twice."""
        channel, self._channel, self._link = self._channel, None, None
        if channel is not None:
            channel.close()

    def forked(self) -> None:
        """In the child of a fork: leave the connection to the parent, and say nothing on it."""
        channel, self._channel, self._link = self._channel, None, None
        self.reading = False
        connected = getattr(channel, "raw_socket", None)
        if connected is not None:
            os.close(connected.detach())  # no shutdown and no farewell of TLS: those are shared

    # inside

    def _wait(self, channel: Channel, link: Link, deadline: float) -> int:
        """Wait for bytes, the lock let go; returns how many came into the link's buffer."""
        buffer = link.buffer()
        self.reading = True
        self.lock.release()
        try:
            return channel.receive_into(buffer, deadline)
        finally:
            self.lock.acquire()
            self.reading = False

    def _say_ping(self, link: Link, now: float, until: float) -> Lost | None:
        link.ping(int.from_bytes(self._entropy(8), "little"), now)
        assert self._channel is not None
        try:
            self._channel.send(link.outgoing(), until)
        except (TimeoutError, ConnectionError) as error:
            return self._lost(DropReason.DISCONNECTED, str(error))
        return None

    def _closed_by(self, event: Closed) -> Lost:
        """The framing broke, or the peer refused."""
        error = event.error
        surprise = error is not None and error.code is ProtocolErrorCode.UNEXPECTED_MESSAGE
        reason = DropReason.UNEXPECTED if surprise else DropReason.CORRUPT
        if isinstance(error, RemoteError):
            leaving = error.code is ProtocolErrorCode.SHUTTING_DOWN
            reason = DropReason.DECLINED_SHUTTING_DOWN if leaving else DropReason.REFUSED
        self._counters.error(error)
        if self._link is not None and self._channel is not None:
            send_final_error(self._channel, self._link, self._clock)
        return self._lost(reason, str(error))

    def _lost(self, reason: DropReason, detail: str) -> Lost:
        self._counters.lost += 1
        self._log.lost(reason, detail)
        self.close()
        return Lost(reason, detail)
