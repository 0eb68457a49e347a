"""One verifier's connection to its drafter: dialled when it is due, and lost without harm.

What comes over it goes to the request that it is for; whatever ends it ends the rounds in flight
under a named reason, and the next one that is due dials again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from draftwire.errors import (
    ConfigurationError,
    DrafterUnavailableError,
    ProtocolError,
    ProtocolErrorCode,
    RemoteError,
    TransportError,
)
from draftwire.session.link import Alive, Closed, Event, Link
from draftwire.session.proposal import Received
from draftwire.session.reasons import DropReason
from draftwire.session.slot_buffers import ReplySlots, SlotPlan
from draftwire.transport.channel import Channel
from draftwire.verifier.counters import ClientCounters
from draftwire.verifier.deadlines import Deadline
from draftwire.verifier.hello_exchange import FAREWELL_SECONDS, greet, say_why
from draftwire.verifier.log import ClientLog
from draftwire.verifier.pending_rounds import PendingRounds
from draftwire.verifier.reconnect import ConnectPacing, Silence
from draftwire.wire.agreement import Agreed
from draftwire.wire.messages import Complete, ErrorMessage, Hello, Reply
from draftwire.wire.registry import NONCE_BYTES

if TYPE_CHECKING:
    from draftwire.verifier.request import ClientRequest

QUIET_SECONDS: Final = 1.0  # without a word, and the end of a connection is looked for first
GLANCE_SECONDS: Final = 0.001
KEEP_SECONDS: Final = 30.0  # of silence here, after which a request that pauses says PING
_ANSWERS: Final = (Reply, Complete, ErrorMessage)


class Connected:
    """The half of :class:`~draftwire.verifier.client.DraftClient` that holds the connection.

    The arguments are that one's.
    """

    def __init__(
        self,
        dial: Callable[[float], Channel],
        hello: Hello,
        *,
        deadline: float | None,
        connect_timeout: float,
        clock: Callable[[], float],
        key: bytes,
        entropy: Callable[[int], bytes],
        slots: SlotPlan | None,
        name: str,
    ) -> None:
        """Check the times; nothing is dialled yet."""
        if not (math.isfinite(connect_timeout) and connect_timeout > 0):
            raise ConfigurationError(
                f"connect_timeout must be finite and above 0 seconds, not {connect_timeout}"
            )
        self._deadline = Deadline(deadline)
        self.connect_timeout = connect_timeout
        self.clock = clock
        self.counters = ClientCounters()
        self._log = ClientLog(name)
        self._dial = dial
        self._hello = hello
        self._key = key
        self._entropy = entropy
        self._channel: Channel | None = None
        self._link: Link | None = None
        self._pacing = ConnectPacing()
        self._silence = Silence()
        self._requests: dict[int, ClientRequest] = {}
        self._spoke_at = 0.0  # when something was last sent
        self._alive: float | None = None  # seconds of the last PING
        self._rounds = PendingRounds()
        self._plan = slots
        self.slots: ReplySlots | None = None  # of the present connection, or the last

    @property
    def agreed(self) -> Agreed | None:
        """What HELLO agreed on the present connection; None while there is none."""
        return None if self._link is None else self._link.agreed

    @property
    def deadline(self) -> float:
        """Seconds that the next round waits at most, if it follows others of its requests."""
        return self._deadline.seconds(opens=False)

    @property
    def vocab_size(self) -> int:
        """V of the target, which the drafter's must equal."""
        return self._hello.vocab_size

    def connect(self, until: float | None = None) -> Agreed:
        """Connect and agree, if that has not been done; a round does the same by itself.

        until: seconds of the clock, where less time is left than ``connect_timeout``. Raises
        TransportError (nobody there), ProtocolError (refused, or not a drafter).
        """
        if self._link is not None and self._link.agreed is not None:
            return self._link.agreed
        deadline = self.clock() + self.connect_timeout
        deadline = deadline if until is None else min(deadline, until)
        self._silence.heard()
        self._channel = self._dial(deadline)
        nonce = self._entropy(NONCE_BYTES) if self._key else b""
        self._link = Link(self._hello, self.clock(), self._key, nonce)
        try:
            agreed = greet(self._channel, self._link, deadline, self.clock)
            self.slots = ReplySlots.planned(agreed, self._plan, self.slots)
        except BaseException:
            self._disconnect()
            raise
        self._spoke_at = self.clock()
        self.counters.connections += 1
        self._log.found()
        for request in self._requests.values():
            request.connected(agreed, self.slots)
        return agreed

    def ping(self) -> float:
        """Return the seconds that one PING takes, connecting first if need be.

        Call it between rounds. Raises as ``connect`` does, and TransportError without an answer
        within the deadline of a round that opens a generation.
        """
        self.connect()
        channel, link = self._channel, self._link
        assert channel is not None
        assert link is not None
        deadline = self.clock() + self._deadline.seconds(opens=True)
        self._alive = None
        link.ping(int.from_bytes(self._entropy(8), "little"), self.clock())
        try:
            channel.send(link.outgoing(), deadline)
            while self._alive is None and self._link is link:
                self._receive(channel, link, deadline)
        except (TimeoutError, ConnectionError) as error:
            self._lost_connection(DropReason.DISCONNECTED, str(error))
        except BaseException:  # interrupted: half a message may be on its way
            self._disconnect()
            raise
        if self._alive is None:
            raise TransportError("the drafter does not answer PING within the deadline")
        return self._alive

    def reach(self, until: float | None = None) -> str | None:
        """Connect if need be and due; returns why there is no connection, or None if there is."""
        link = self._link
        if link is not None and self.clock() - link.heard_at >= QUIET_SECONDS:
            self._catch_up(link)
        if self._link is not None:
            return None
        if not self._may_try():
            return "not tried again yet"
        try:
            self.connect(until)
        except (
            TransportError,
            ProtocolError,
            DrafterUnavailableError,
            ConfigurationError,  # a drafter that came back with limits under the slots' plan
        ) as error:
            self.counters.unreachable += 1
            self.counters.error(error)
            self._log.away(error)
            self._pacing.failed(self.clock())
            return str(error)
        self._pacing.succeeded()
        return None

    def keep_lease(self) -> None:
        """Say PING where this side has long been silent; does not wait for the answer (P30).

        Requests do that in rounds that ask for nothing. A caller whose requests rest for longer
        than the drafter's lease may do it too, between rounds; otherwise a later round connects
        again and sends the prefix again.
        """
        now = self.clock()
        if self._link is None or now - self._spoke_at < KEEP_SECONDS:
            return
        self._spoke_at = now
        if now - self._link.heard_at >= QUIET_SECONDS:
            self._catch_up(self._link)
        link, channel = self._link, self._channel
        if link is None or channel is None:
            return
        link.ping(int.from_bytes(self._entropy(8), "little"), now)
        try:
            channel.send(link.outgoing(), self.clock() + min(FAREWELL_SECONDS, self.deadline))
        except (TimeoutError, ConnectionError) as error:
            self._lost_connection(DropReason.DISCONNECTED, str(error))

    # inside

    def _may_try(self) -> bool:
        """Whether to connect now."""
        return self._pacing.may_try(self.clock())

    def _catch_up(self, link: Link) -> None:
        """Read what came since the last round, which is long ago (QUIET_SECONDS).

        Mostly nothing, or that the drafter has ended the connection: found here, it costs no round.
        """
        channel, until = self._channel, self.clock() + GLANCE_SECONDS
        assert channel is not None  # it ends with its link
        try:
            while self._link is link:
                self._receive(channel, link, until)
        except TimeoutError:
            return
        except ConnectionError as error:
            self._lost_connection(DropReason.DISCONNECTED, str(error))

    def _receive(self, channel: Channel, link: Link, deadline: float) -> None:
        """Wait for bytes once, and follow every event that they complete."""
        count = channel.receive_into(link.buffer(), deadline)
        self._silence.heard()
        now = self.clock()
        event = link.filled(count, now)
        while event is not None:
            self._follow(link, event, now)
            if self._link is not link or link.idle():
                return
            event = link.filled(0, now)
        parts = link.outgoing()  # PONG
        if parts:
            try:
                channel.send(parts, deadline)
            except TimeoutError as error:  # half a PONG may be on its way: the framing is lost
                raise ConnectionResetError("the drafter takes no bytes") from error

    def _follow(self, link: Link, event: Event, now: float) -> None:
        if isinstance(event, Received) and isinstance(event.message, _ANSWERS):
            session, size = event.message.session, event.payload_bytes + link.frame_bytes
        else:
            if isinstance(event, Closed):
                self._closed_by(event)
            elif isinstance(event, Alive):
                self._alive = event.seconds
            return
        request = self._requests.get(session)
        if request is None:
            self.counters.strays += 1
            return
        self.counters.received += size
        result = request.take(event, size, now)
        if result is not None:
            self._rounds.settle(session, result)

    def _closed_by(self, event: Closed) -> None:
        """The framing broke, or the peer refused: the rounds are lost, and the connection."""
        error = event.error
        surprise = error is not None and error.code is ProtocolErrorCode.UNEXPECTED_MESSAGE
        reason = DropReason.UNEXPECTED if surprise else DropReason.CORRUPT
        if isinstance(error, RemoteError):
            leaving = error.code is ProtocolErrorCode.SHUTTING_DOWN
            reason = DropReason.DECLINED_SHUTTING_DOWN if leaving else DropReason.REFUSED
        self.counters.error(error)
        self._rounds.give_up(reason, str(error))
        self.counters.lost += 1
        self._log.lost(reason, str(error))
        link, channel = self._link, self._channel
        if link is not None and channel is not None:
            say_why(channel, link, self.clock)
        self._disconnect()

    def _lost_connection(self, reason: DropReason, detail: str) -> None:
        self._rounds.give_up(reason, detail)
        self.counters.lost += 1
        self._log.lost(reason, detail)
        self._disconnect()

    def _disconnect(self) -> None:
        channel, self._channel, self._link = self._channel, None, None
        if channel is not None:
            channel.close()
        for request in self._requests.values():
            request.asking.disconnected()
