"""The verifier's end of a connection: rounds asked under a deadline, over any channel.

Nothing that a drafter or a network does raises out of a round: it costs the round its proposal,
under a named reason, and a later round tries again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Final, Self, TypeAlias

from draftwire.rows.prepare import prepare
from draftwire.session.proposal import Dropped, Parts, Proposal
from draftwire.session.reasons import DropReason
from draftwire.session.slot_buffers import SlotPlan
from draftwire.session.verifier_session import VerifierSession
from draftwire.transport.channel import Channel
from draftwire.transport.queue import size_of
from draftwire.verifier.breaker import Breaker
from draftwire.verifier.connected import Connected
from draftwire.verifier.drafter import Drafted, Miss, MissReason
from draftwire.verifier.hello_exchange import FAREWELL_SECONDS
from draftwire.verifier.request import ClientRequest
from draftwire.verifier.totals import Totals
from draftwire.wire.agreement import Agreed
from draftwire.wire.messages import Hello, ProposalPolicy

__all__ = ["ClientRequest", "DraftClient"]

Asked: TypeAlias = tuple[ClientRequest, VerifierSession, ProposalPolicy]
"""A request that asks now, with its session and the policy at the depth that it may."""

_ASKED: Final = Miss(MissReason.NO_CONNECTION)  # stands where a result will


class DraftClient(Connected):
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
        super().__init__(
            dial,
            hello,
            deadline=deadline,
            connect_timeout=connect_timeout,
            clock=clock,
            key=key,
            entropy=entropy,
            slots=slots,
            name=name,
        )
        prepare()
        self.audit = audit
        self.breaker = breaker
        self.totals = Totals()
        self._opened = 0

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close."""
        self.close()

    def open(self, prompt: Sequence[int], proposal_key: int) -> ClientRequest:
        """Begin drafting for one request from ``prompt``; nothing is sent yet."""
        self._opened += 1
        taken = {request.asking.slot for request in self._requests.values()}
        slot = next(slot for slot in range(len(taken) + 1) if slot not in taken)
        asking = VerifierSession(
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

    @property
    def open_requests(self) -> int:
        """How many requests are open."""
        return len(self._requests)

    @property
    def awaits_rounds(self) -> bool:
        """Whether a round was asked for and has no result yet."""
        return self._rounds.waiting()

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
        drafted: list[Drafted] = []
        sent: list[Asked] = []
        places: list[int] = []
        # Looked for once: a connection that ends between two looks would leave a request behind
        # that was let through on it.
        agreed: Agreed | Miss | None = None
        for request, policy in asked:
            miss = request.pauses()
            if miss is None:
                agreed = agreed or self.agreement(until)
                miss, policy = request.allowed(policy, agreed)
            if miss is None:
                places.append(len(drafted))
                sent.append((request, request.asking, policy))
            else:
                request.asking.skip()
            drafted.append(miss or _ASKED)
        if not sent:
            self.keep_lease()
            return drafted
        results = self._ask(sent, until)
        for at, (request, _, _), result in zip(places, sent, results, strict=True):
            drafted[at] = request.drafted(result)
        return drafted

    # for requests

    def agreement(self, until: float | None) -> Agreed | Miss:
        """Return what is agreed with the drafter, connecting if need be, or why none may ask."""
        before = self._link
        away = self.reach(until)
        link = self._link
        agreed = None if link is None else link.agreed
        if away is not None or agreed is None:
            return Miss(MissReason.NO_CONNECTION, away or "")
        if link is not before and until is not None and self.clock() >= until:
            return Miss(MissReason.NO_CONNECTION, "connecting took the time of this round")
        return agreed

    def _ask(self, asked: Sequence[Asked], until: float | None) -> list[Proposal | Dropped]:
        """Send a STEP for each request and wait for the proposals until the deadline."""
        now = self.clock()
        opens = False
        for _, asking, _ in asked:
            opens |= asking.opens
        whole = now + self._deadline.seconds(opens=opens)
        deadline = whole if until is None else min(whole, until)
        try:
            self._say(asked, now, deadline)
            if not self._listen(deadline):
                self._too_late()
        except BaseException:
            self._interrupted()
            raise
        results = []
        trips = []
        for _, asking, _ in asked:
            results.append(self._rounds.take(asking.session))
            trips.append(asking.round_trip)
        self._deadline.finished(results, trips, opens=opens, cut=deadline < whole)
        return results

    def _say(self, asked: Sequence[Asked], now: float, deadline: float) -> None:
        """Send a STEP for each request; nothing else is in flight then."""
        channel, link = self._channel, self._link
        if channel is None or link is None:
            raise ConnectionError("there is no connection to ask on")
        rounds: dict[int, ClientRequest] = {}
        parts: Parts = []
        steps: list[Parts] = []
        for request, asking, policy in asked:
            rounds[asking.session] = request
            link.send(asking.ask(policy, now, deadline))
            step = link.outgoing()
            steps.append(step)
            parts += step
        self._rounds.ask(rounds)
        try:
            channel.send(parts, deadline)
        except TimeoutError as error:  # half a STEP may be on its way: the framing is lost
            self._lost_connection(DropReason.MISSED_DEADLINE, str(error))
        except ConnectionError as error:
            self._lost_connection(DropReason.DISCONNECTED, str(error))
        # Booked while the drafter is at work.
        self._spoke_at = now
        self._silence.asked(now)
        for (request, _, _), step in zip(asked, steps, strict=True):
            size = sum(map(size_of, step))
            request.traffic.sent += size
            self.counters.sent += size

    def _listen(self, until: float) -> bool:
        """Follow what comes until each round has a result; False where the time is over first."""
        while self._rounds.waiting():
            channel, link = self._channel, self._link
            assert channel is not None  # its end is the end of every round
            assert link is not None
            try:
                self._receive(channel, link, until)
            except TimeoutError:
                return False
            except ConnectionError as error:
                self._lost_connection(DropReason.DISCONNECTED, str(error))
        return True

    def _too_late(self) -> None:
        """Drop what has not come; a connection that says nothing any more is given up as well."""
        self._rounds.give_up(DropReason.MISSED_DEADLINE)
        if self._silence.too_long(self.clock(), self.deadline):
            self._lost_connection(DropReason.DISCONNECTED, "nothing is heard of it")

    def _interrupted(self) -> None:
        """What was half sent or read cannot be gone on with."""
        self._rounds.ask({})
        self._disconnect()

    def lost_round(self, dropped: Dropped) -> None:
        """Tell the operator of a proposal that was asked for and is lost."""
        self._log.dropped(dropped.reason, dropped.detail)

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
        except BaseException:  # interrupted: half a message may be on its way
            self._disconnect()
            raise
