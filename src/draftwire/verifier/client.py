"""The verifier's end of a connection: rounds asked under a deadline, over any channel.

Nothing that a drafter or a network does raises out of a round: it costs the round its proposal,
under a named reason, and a later round tries again.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Final, Self

from draftwire.errors import (
    ConfigurationError,
    DrafterUnavailableError,
    ProtocolError,
    ProtocolErrorCode,
    RemoteError,
    TransportError,
)
from draftwire.kernels.prepare import prepare
from draftwire.session.asking import AskingSession
from draftwire.session.link import Alive, Closed, Event, Link
from draftwire.session.proposal import Dropped, Matched, Parts, Proposal, Received
from draftwire.session.reasons import DropReason
from draftwire.session.staging import ReplySlots, SlotPlan
from draftwire.transport.channel import Channel
from draftwire.transport.queue import size_of
from draftwire.verifier.breaker import Breaker
from draftwire.verifier.counters import ClientCounters
from draftwire.verifier.deadlines import Deadline
from draftwire.verifier.drafting import Drafted
from draftwire.verifier.greeting import FAREWELL_SECONDS, greet, say_why
from draftwire.verifier.inflight import InFlight
from draftwire.verifier.journal import ClientJournal
from draftwire.verifier.pacing import ConnectPacing, Silence
from draftwire.verifier.request import ClientRequest
from draftwire.verifier.totals import Totals
from draftwire.wire.agreement import Agreed
from draftwire.wire.messages import Complete, ErrorMessage, Hello, ProposalPolicy, Reply
from draftwire.wire.registry import NONCE_BYTES

__all__ = ["ClientRequest", "DraftClient"]

QUIET_SECONDS: Final = 1.0  # without a word, and the end of a connection is looked for first
GLANCE_SECONDS: Final = 0.001
KEEP_SECONDS: Final = 30.0  # of silence here, after which a request that pauses says PING
_ANSWERS: Final = (Reply, Complete, ErrorMessage)


class DraftClient:
    """A drafter at the other end of a channel; several requests may share it.

    A request has one round in flight at a time; ``propose_all`` has one of several requests.

    dial: opens a channel, given the time it may take until; raises TransportError. deadline: for a
    round, in seconds, finite and positive; None = derived from the rounds before. connect_timeout:
    for connecting and for HELLO. audit: recompute every draw (A22). clock: seconds, monotonic. key:
    what both sides prove that they hold (P20); none = no handshake. entropy: makes its nonces.
    breaker: pauses drafting that does not pay; None = never. slots: for replies; None = what HELLO
    agrees on. name: of the drafter, in logs. Raises ConfigurationError.
    """

    def __init__(
        self,
        dial: Callable[[float], Channel],
        hello: Hello,
        *,
        deadline: float | None,
        connect_timeout: float,
        audit: bool = True,
        clock: Callable[[], float] = time.monotonic,
        key: bytes = b"",
        entropy: Callable[[int], bytes] = os.urandom,
        breaker: Breaker | None = None,
        slots: SlotPlan | None = None,
        name: str = "the drafter",
    ) -> None:
        """Check the times and compile the arithmetic; nothing is dialled yet."""
        if not (math.isfinite(connect_timeout) and connect_timeout > 0):
            raise ConfigurationError(
                f"connect_timeout must be finite and above 0 seconds, not {connect_timeout}"
            )
        self._deadline = Deadline(deadline)
        prepare()
        self.connect_timeout = connect_timeout
        self.audit = audit
        self.clock = clock
        self.breaker = breaker
        self.counters = ClientCounters()
        self.totals = Totals()
        self._journal = ClientJournal(name)
        self._dial = dial
        self._hello = hello
        self._key = key
        self._entropy = entropy
        self._channel: Channel | None = None
        self._link: Link | None = None
        self._pacing = ConnectPacing()
        self._silence = Silence()
        self._requests: dict[int, ClientRequest] = {}
        self._opened = 0
        self._spoke_at = 0.0  # when something was last sent
        self._alive: float | None = None  # seconds of the last PING
        self._rounds = InFlight()
        self._plan = slots
        self.slots: ReplySlots | None = None  # of the present connection, or the last

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close."""
        self.close()

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
        self._journal.found()
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
        if self._alive is None:
            raise TransportError("the drafter does not answer PING within the deadline")
        return self._alive

    def open(self, prompt: Sequence[int], proposal_key: int) -> ClientRequest:
        """Begin drafting for one request from ``prompt``; nothing is sent yet."""
        self._opened += 1
        taken = {request.asking.slot for request in self._requests.values()}
        slot = next(slot for slot in range(len(taken) + 1) if slot not in taken)
        asking = AskingSession(
            self._opened,
            slot,
            prompt,
            proposal_key,
            self.agreed,
            audit=self.audit,
            clock=time.perf_counter,
            slots=self.slots,
        )
        asking.drops = self.counters.drops
        request = ClientRequest(self, asking)
        self._requests[asking.session] = request
        return request

    def close(self) -> None:
        """End every request and the connection; may be called twice."""
        for request in list(self._requests.values()):
            request.close()
        self._disconnect()

    def propose_all(
        self,
        asked: Sequence[tuple[ClientRequest, ProposalPolicy]],
        until: float | None = None,
    ) -> list[Drafted]:
        """Begin the next round of each request and ask for all of them in one go.

        asked: different requests of this client. until: when the call returns at the latest, in
        seconds of the clock, connecting included; None = ``connect_timeout`` for connecting. The
        rounds' deadline counts from then on, if it is earlier. What has not come by then is lost
        for its own request alone.
        """
        drafted: list[Drafted | None] = []
        sent: list[tuple[ClientRequest, ProposalPolicy]] = []
        for request, policy in asked:
            miss, allowed = request.allowed(policy, until)
            if miss is None:
                sent.append((request, allowed))
            else:
                request.skip()
            drafted.append(miss)
        results = iter(self._ask(sent, until) if sent else ())
        return [
            request.drafted(next(results)) if miss is None else miss
            for (request, _), miss in zip(asked, drafted, strict=True)
        ]

    # for requests

    def reach(self, until: float | None = None) -> str | None:
        """Connect if need be and due; returns why there is no connection, or None if there is."""
        self._catch_up()
        if self._link is not None:
            return None
        now = self.clock()
        if not self._pacing.may_try(now):
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
            self._journal.away(error)
            self._pacing.failed(self.clock())
            return str(error)
        self._pacing.succeeded()
        return None

    def _ask(
        self, asked: Sequence[tuple[ClientRequest, ProposalPolicy]], until: float | None
    ) -> list[Proposal | Dropped]:
        """Send a STEP for each request and wait for the proposals until the deadline."""
        channel, link = self._channel, self._link
        assert channel is not None
        assert link is not None
        self._spoke_at = now = self.clock()
        self._silence.asked(now)
        opens = any(request.asking.opens for request, _ in asked)
        deadline = now + self._deadline.seconds(opens=opens)
        deadline = deadline if until is None else min(deadline, until)
        self._rounds = InFlight()
        link.expect({})
        parts: Parts = []
        for request, policy in asked:
            link.send(request.asking.ask(policy, now, deadline))
            step = link.outgoing()
            size = sum(map(size_of, step))
            request.traffic.sent += size
            self.counters.sent += size
            parts += step
            self._rounds.ask(request)
        try:
            channel.send(parts, deadline)
        except TimeoutError as error:  # half a STEP may be on its way: the framing is lost
            self._lost_connection(DropReason.MISSED_DEADLINE, str(error))
        except ConnectionError as error:
            self._lost_connection(DropReason.DISCONNECTED, str(error))
        # While the drafter is at work: what its answers begin with.
        link.expect(
            {
                head: answer
                for request, _ in asked
                for head, answer in request.asking.expected().items()
            }
        )
        while self._rounds:
            try:
                self._receive(channel, link, deadline)
            except TimeoutError:
                self._rounds.give_up(DropReason.MISSED_DEADLINE)
                if self._silence.too_long(self.clock(), self.deadline):
                    self._lost_connection(DropReason.DISCONNECTED, "nothing is heard of it")
            except ConnectionError as error:
                self._lost_connection(DropReason.DISCONNECTED, str(error))
        results = self._rounds.take(request for request, _ in asked)
        if until is None:
            trips = [request.asking.round_trip for request, _ in asked]
            self._deadline.finished(results, trips, opens=opens)
        return results

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
        self._catch_up()
        link, channel = self._link, self._channel
        if link is None or channel is None:
            return
        link.ping(int.from_bytes(self._entropy(8), "little"), now)
        try:
            channel.send(link.outgoing(), self.clock() + min(FAREWELL_SECONDS, self.deadline))
        except (TimeoutError, ConnectionError) as error:
            self._lost_connection(DropReason.DISCONNECTED, str(error))

    def lost_round(self, dropped: Dropped) -> None:
        """Tell the operator of a proposal that was asked for and is lost."""
        self._journal.dropped(dropped.reason, dropped.detail)

    def farewell(self, request: ClientRequest) -> None:
        """End a request here and tell the drafter, so that it frees what it holds."""
        if self._requests.pop(request.asking.session, None) is None:
            return
        messages = request.asking.finish()
        if self._link is None or self._channel is None:
            return
        for message in messages:
            self._link.send(message)
        parts = self._link.outgoing()
        size = sum(map(size_of, parts))
        request.traffic.sent += size
        self.counters.sent += size
        try:
            if parts:
                self._channel.send(parts, self.clock() + min(FAREWELL_SECONDS, self.deadline))
        except (TimeoutError, ConnectionError):
            self._disconnect()

    # inside

    def _catch_up(self) -> None:
        """Read what came since the last round, if that is long ago.

        Mostly nothing, or that the drafter has ended the connection: found here, it costs no round.
        """
        channel, link, now = self._channel, self._link, self.clock()
        if channel is None or link is None or now - link.heard_at < QUIET_SECONDS:
            return
        try:
            while self._link is link:
                self._receive(channel, link, now + GLANCE_SECONDS)
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
            if self._link is not link:
                return
            event = link.filled(0, now)
        parts = link.outgoing()  # PONG
        if parts:
            try:
                channel.send(parts, deadline)
            except TimeoutError as error:  # half a PONG may be on its way: the framing is lost
                raise ConnectionResetError("the drafter takes no bytes") from error

    def _follow(self, link: Link, event: Event, now: float) -> None:
        if isinstance(event, Closed):
            self._closed_by(event)
            return
        if isinstance(event, Alive):
            self._alive = event.seconds
        if isinstance(event, Matched):
            session = event.expected.session
        elif isinstance(event, Received) and isinstance(event.message, _ANSWERS):
            session = event.message.session
        else:
            return
        request = self._requests.get(session)
        if request is None:
            self.counters.strays += 1
            return
        size = event.payload_bytes + link.frame_bytes
        request.traffic.received += size
        self.counters.received += size
        result = request.asking.take(event, now)
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
        self._journal.lost(reason, str(error))
        link, channel = self._link, self._channel
        if link is not None and channel is not None:
            say_why(channel, link, self.clock)
        self._disconnect()

    def _lost_connection(self, reason: DropReason, detail: str) -> None:
        self._rounds.give_up(reason, detail)
        self.counters.lost += 1
        self._journal.lost(reason, detail)
        self._disconnect()

    def _disconnect(self) -> None:
        channel, self._channel, self._link = self._channel, None, None
        if channel is not None:
            channel.close()
        for request in self._requests.values():
            request.asking.disconnected()
