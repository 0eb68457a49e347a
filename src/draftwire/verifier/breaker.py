"""Never slower than plain: drafting that measurably costs more than it brings pauses by itself.

Times are arguments; there is no clock, model or socket here.

**Whose loss it is.** What a round costs is the link's: the round trip, the drafting, the target's
pass, and proposals that are lost. What it brings, accepted drafts, is the request's. So there is a
circuit for each request, which weighs what its own drafts have brought against what a round usually
takes; one for each link, which opens for all requests together; and one for requests that have just
begun, which weighs what earlier requests have come to. Every loss is booked once. Of a round whose
proposal came, a request is charged up to twice the usual time, the link with the rest. The link
bears the whole of a round without its proposal, and of rounds that take longer than they bring even
to the best of the last requests that drafting paid for (or than all drafts of a round could bring,
where there is none): nothing is said by them of one request. What a request gains beyond its debt
pays debts of the link, then of the requests that have ended. What it owes when it ends, the next
ones' circuit does.

**Why this changes no law.** Write H for the history before a round of a request: the committed
texts, what every finished round drew and how long it took. :meth:`Breaker.admits` is a function of
H, and of which rounds of other requests are in flight; it is called before anything of the round is
drawn, and the round's words (A13: the address of every word names its request's key and its round)
are independent of all that. For a set A of whole texts let X = P(target alone writes a text in A |
committed prefix). A target-only round draws one token from p, so E[X after | H] = X; a drafted
round has the law of p over what it emits (A18 to A20), so the same holds. X is a martingale
whichever kind H chooses, its first value is the target's own probability of A and its last is 1 or
0: did the text fall into A. So the text has the law of the target. Given all words of the other
requests the argument is the same, so each text keeps its law whatever the others are, and they stay
independent. What this forbids is a decision that sees anything of the round it decides on, or of
another round of its request that is still in flight (law 4).

**What it may cost.** Let a be the seconds of a token from the target alone. A drafted round of t
seconds and n tokens has lost t - n a (1 + margin), or gained as much where that is below 0.
Losses are a debt that gains pay back, and pauses, a round of which is worth budget x a. A pause
that follows another without the debt having come to nothing in between lasts until it is paid, but
for what is left of its worst round: that may have been one stop of the machine. So beside the debt
that is still open drafting never costs more than the larger of margin and budget, as a share of
what the target alone would have taken, however short the texts are and however rare the long
rounds. The debt of a request or a link that is open before anything is known is that of two rounds
where one is dearer than any proposal is worth, of three to five where tokens cost twice as much, of
thirteen where it is less, and as much again after the short first pause; requests that begin
together find that out each for itself.

The *text of a seed* does depend on which rounds are drafted, since drafts and target-only tokens
are drawn with different words: with a breaker, times decide, so a seed does not repeat its text.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from draftwire.verifier.circuit import BreakerConfig, BreakerState, Circuit
from draftwire.verifier.link_estimate import LinkEstimate
from draftwire.verifier.miss import MissReason

__all__ = ["Breaker", "BreakerConfig", "BreakerState", "Choice", "Gain", "Paused", "RequestBreaker"]

_STOPPED: Final = 4096.0  # tokens of the target alone; the rest of a longer round was a stop
_USUAL: Final = 2.0  # times the usual time of a round, and the rest is the link's


class Choice(Enum):
    """What a round of a request is, as far as the breaker has a say."""

    DRAFT = "draft"
    SAMPLE = "sample"  # target-only, to know what that costs
    PAUSE = "pause"  # target-only, since drafting does not pay over this link
    PAUSE_REQUEST = "pause_request"  # target-only, since it does not pay for this request

    @property
    def paused(self) -> bool:
        """Whether the round is one of a pause."""
        return self in (Choice.PAUSE, Choice.PAUSE_REQUEST)

    @property
    def reason(self) -> MissReason:
        """Why such a round, not DRAFT, asks for no proposal."""
        return _REASONS[self]


_REASONS: Final = {
    Choice.SAMPLE: MissReason.BASELINE,
    Choice.PAUSE: MissReason.BREAKER_OPEN,
    Choice.PAUSE_REQUEST: MissReason.REQUEST_BREAKER_OPEN,
}


@dataclass(frozen=True, slots=True)
class Gain:
    """What a finished round has brought a request.

    tokens: emitted, 1 or more. most: that it could have emitted, all drafts and one. came: whether
    there was a whole proposal to verify; None = none was asked for, whoever decided that.
    """

    tokens: int
    most: int = 1
    came: bool | None = None


class RequestBreaker:
    """One request's part in the breaker of its drafter; made by ``Breaker.open``.

    Call :meth:`admits` once before a round and :meth:`finished` once after it, and :meth:`close`
    at the end.
    """

    def __init__(self, breaker: Breaker, config: BreakerConfig) -> None:
        """Begin without a round."""
        self.circuit = Circuit(config, block=config.block, probe=config.least)
        self.known = False  # whether its own circuit has said that drafting pays, or does not
        self.cold = True  # its next drafted round also pays for what was committed meanwhile
        self.since_sample = 0  # drafted rounds
        self.tokens = 0.0  # of the rounds that its circuit has weighed
        self.lost = 0.0
        self.recent: deque[int] = deque(maxlen=config.least * config.block)  # tokens of rounds
        self._breaker = breaker

    @property
    def scope(self) -> str:
        """Whose circuit it is, in logs."""
        return "request"

    @property
    def state(self) -> BreakerState:
        """What the request's own circuit does."""
        return self.circuit.state

    @property
    def pauses(self) -> int:
        """How often it has paused this request."""
        return self.circuit.pauses

    @property
    def sentence(self) -> str:
        """What to tell the user about the request's own circuit."""
        if self.state is BreakerState.OPEN:
            pause = f"paused for {self.circuit.paused_rounds} rounds"
            return f"drafting costs this request more than it brings: {pause}"
        return "drafting pays for this request"

    def admits(self) -> Choice:
        """Return what the next round is, from finished rounds alone."""
        return self._breaker.admits([self])[0]

    def finished(self, choice: Choice, seconds: float, gain: Gain, *, first: bool) -> list[Paused]:
        """Book a finished round of this request alone; see ``Breaker.finished``."""
        return self._breaker.finished([self], [choice], [gain], seconds, first=first)

    def close(self) -> None:
        """The request has ended; may be called twice."""
        self._breaker.close(self)


class Breaker:
    """Decides between rounds whether they are drafted, for the requests of one drafter.

    Any thread may call it. A round is one request's, or one of several requests that share a pass
    of the target; :meth:`admits` is called once before it and :meth:`finished` once after it. What
    it costs is known by how many requests it has: 1, 2 to 3, 4 to 7, and so on.
    """

    def __init__(self, config: BreakerConfig | None = None) -> None:
        """Begin drafting, with nothing measured."""
        self.config = config or BreakerConfig()
        self._lock = threading.Lock()
        self._estimates: dict[int, LinkEstimate] = {}
        self._latest = LinkEstimate(self.config)
        self._estimates[1] = self._latest
        self._newcomers = Circuit(self.config, block=1, probe=1, hasty=False)
        self._open: set[RequestBreaker] = set()
        self._closed: deque[RequestBreaker] = deque()  # that are still open here
        self._probers: dict[LinkEstimate, RequestBreaker] = {}  # whose round probes it now
        self._best: deque[float] = deque(maxlen=self.config.window)  # tokens a round
        self._since_sample = 0  # drafted rounds of requests that have ended
        self._request_pauses = 0

    @property
    def state(self) -> BreakerState:
        """What the link's circuit does, in rounds of the size that was last seen."""
        return self._latest.circuit.state

    @property
    def scope(self) -> str:
        """Whose circuit it is, in logs."""
        return "link"

    @property
    def pauses(self) -> int:
        """How often the link's circuit has paused all requests."""
        with self._lock:
            return sum(each.circuit.pauses for each in self._estimates.values())

    @property
    def pauses_by_scope(self) -> dict[str, int]:
        """How often drafting was paused: for all requests, for new ones, and for one alone."""
        return {
            "link": self.pauses,
            "new_requests": self._newcomers.pauses,
            "request": self._request_pauses,
        }

    @property
    def paused_rounds(self) -> int:
        """Rounds of the link's pause still to come."""
        return self._latest.circuit.paused_rounds

    @property
    def pauses_new_requests(self) -> bool:
        """Whether requests that begin now pause, since the last ones lost more than they gained."""
        with self._lock:
            self._settle()
            return self._newcomers.paused

    @property
    def paused_requests(self) -> int:
        """Open requests whose own circuit is open."""
        with self._lock:
            self._settle()
            return sum(each.circuit.paused for each in self._open)

    @property
    def unpaid(self) -> float:
        """What drafting has lost and neither gains nor rounds of pauses have paid yet.

        In tokens of the target alone: of the links, of open requests, and of those that have ended.
        """
        with self._lock:
            self._settle()
            circuits = [self._newcomers, *(each.circuit for each in self._estimates.values())]
            circuits += [each.circuit for each in self._open]
            return sum(each.unpaid for each in circuits)

    @property
    def alone(self) -> float | None:
        """Seconds for a token of the target alone; None before there are enough samples."""
        return self._latest.alone

    @property
    def drafted(self) -> float | None:
        """Seconds for a token with drafting, when it was last measured; None before that."""
        return self._latest.drafted

    @property
    def sentence(self) -> str:
        """What to tell the user about the link's present state."""
        if self.drafted is None or self.alone is None:
            return "drafting is being measured"
        times = f"{self.drafted * 1e3:.2f} ms a token, {self.alone * 1e3:.2f} ms without"
        if self.state is BreakerState.OPEN:
            pause = f"paused for {self.paused_rounds} rounds"
            return f"drafting costs more than it brings ({times}): {pause}"
        return f"drafting pays ({times})"

    def open(self) -> RequestBreaker:
        """Begin a request."""
        request = RequestBreaker(self, self.config)
        with self._lock:
            self._settle()
            self._open.add(request)
        return request

    def close(self, request: RequestBreaker) -> None:
        """End a request: what it owes, and what it has learned, is the next ones'."""
        self._closed.append(request)  # and no lock: a destructor may call this in any other call

    def admits(self, requests: Sequence[RequestBreaker], size: int | None = None) -> list[Choice]:
        """Return what the next round is for each request, from finished rounds alone.

        requests: those of the round that could be drafted for; at least one. size: requests of the
        round; None = these.
        """
        with self._lock:
            self._settle()
            choices = self._choose(requests, self._estimate(size or len(requests)))
            for request, choice in zip(requests, choices, strict=True):
                request.cold = request.cold or choice.paused
            return choices

    def finished(
        self,
        requests: Sequence[RequestBreaker],
        choices: Sequence[Choice],
        gains: Sequence[Gain],
        seconds: float,
        *,
        waited: float = 0.0,
        first: bool = False,
    ) -> list[Paused]:
        """Book a finished round; returns what has changed its state: this, or requests of it.

        choices: what ``admits`` said; of requests that could not be drafted for, SAMPLE. seconds:
        of the whole round. waited: of them, what all requests of a shared round have waited for
        proposals together; the rest is each one's own. first: of its requests; it reads the
        prompts, which no other round does, and ``seconds`` are then those of its proposals alone.
        They are weighed, but not compared.
        """
        with self._lock:
            self._settle()
            self._release(requests)
            return self._book(requests, choices, gains, seconds, waited, first)

    def _settle(self) -> None:
        """End what was closed meanwhile."""
        while self._closed:
            request = self._closed.popleft()
            if request in self._open:
                self._open.remove(request)
                self._release([request])
                self._since_sample += request.since_sample
                self._newcomers.owe(request.circuit.unpaid)
                if not request.known:
                    self._learn(request)

    def _choose(self, requests: Sequence[RequestBreaker], estimate: LinkEstimate) -> list[Choice]:
        self._release(requests)  # whose round was never finished
        if estimate.circuit.leaves_out():
            return [Choice.PAUSE] * len(requests)
        if estimate.alone is None:  # first, so that the first drafted round can be weighed
            return [Choice.SAMPLE] * len(requests)
        choices = [self._choose_alone(each) for each in requests]
        drafted = [
            each for each, choice in zip(requests, choices, strict=True) if choice is Choice.DRAFT
        ]
        if not drafted:
            return choices
        if estimate.circuit.state is BreakerState.HALF_OPEN:
            # One round looks for all. Whichever begins first, so no text waits for another's.
            if self._probers.setdefault(estimate, drafted[0]) is not drafted[0]:
                return [Choice.PAUSE if each is Choice.DRAFT else each for each in choices]
            return choices
        for each in drafted:
            each.since_sample += 1
        if max(each.since_sample for each in drafted) + self._since_sample >= (
            self.config.sample_every
        ):
            self._since_sample = 0
            for each in requests:
                each.since_sample = 0
            return [Choice.SAMPLE] * len(requests)
        return choices

    def _choose_alone(self, request: RequestBreaker) -> Choice:
        """Return what a round is over a link that pays; a new request does as the last ones did."""
        if request.known:
            return Choice.PAUSE_REQUEST if request.circuit.leaves_out() else Choice.DRAFT
        return Choice.PAUSE if self._newcomers.leaves_out() else Choice.DRAFT

    def _book(
        self,
        requests: Sequence[RequestBreaker],
        choices: Sequence[Choice],
        gains: Sequence[Gain],
        seconds: float,
        waited: float,
        first: bool,
    ) -> list[Paused]:
        estimate = self._estimate(len(requests))
        tokens = sum(each.tokens for each in gains) / len(gains)
        if tokens < 1:
            return []
        asked = [
            choice is Choice.DRAFT and gain.came is not None
            for choice, gain in zip(choices, gains, strict=True)
        ]
        if True not in asked:
            if not first and self._is_sample(requests, choices):
                estimate.took_alone(seconds)
            return []
        alone = estimate.alone
        if alone is None:
            return []
        if first:
            seconds += alone
        cold = any(each.cold for each, was in zip(requests, asked, strict=True) if was)
        compared = not first and not cold
        own = seconds - waited
        if compared:
            estimate.spent(seconds, tokens)
            if any(each.came for each in gains):
                estimate.took_usual(own)
        parts: list[Paused] = [self, *requests]
        before = [each.state for each in parts]
        lost = 0.0  # by the link
        took = min(seconds / alone, _STOPPED)
        for request, was_asked, gain in zip(requests, asked, gains, strict=True):
            part = took - gain.tokens * (1 + self.config.margin)
            if was_asked and gain.came:
                lost += part - self._charge(request, gain, estimate, own / alone, first=first)
            else:
                lost += max(part, 0.0)
            request.cold = request.cold and not was_asked
        self._charge_link(estimate, tokens, lost / len(requests), compared=compared)
        changed = [
            each for each, state in zip(parts, before, strict=True) if each.state is not state
        ]
        self._request_pauses += sum(
            isinstance(each, RequestBreaker) and each.circuit.paused for each in changed
        )
        return changed

    def _is_sample(self, requests: Sequence[RequestBreaker], choices: Sequence[Choice]) -> bool:
        """Whether a round without drafts says what the target alone takes.

        Of a request that pauses by itself no more rounds do than of others: its text may be longer.
        """
        if Choice.SAMPLE in choices or Choice.PAUSE in choices:
            return True
        for each in requests:
            each.since_sample += 1
        if max(each.since_sample for each in requests) < self.config.sample_every:
            return False
        for each in requests:
            each.since_sample = 0
        return True

    def _charge(
        self,
        request: RequestBreaker,
        gain: Gain,
        estimate: LinkEstimate,
        own: float,
        *,
        first: bool,
    ) -> float:
        """Charge a request with its part of a round; returns what that has added to its debt.

        own: its own time, in tokens of the target alone.
        """
        alone, usual = estimate.alone, estimate.usual
        assert alone is not None
        typical = own if usual is None else usual / alone
        paying = 1 + self.config.margin  # a token of a round is worth so much
        request.recent.append(gain.tokens)
        if len(request.recent) == request.recent.maxlen:
            mean = sum(request.recent) / len(request.recent)
            if mean * paying >= typical:
                self._best.append(mean)
                request.recent.clear()
        if typical > min(gain.most, max(self._best, default=gain.most)) * paying:
            return 0.0
        took = own if first or usual is None else min(own, _USUAL * typical)
        took = min(took, _STOPPED)
        lost = took - gain.tokens * paying
        circuit = request.circuit
        left = circuit.owe(lost)
        circuit.weigh(gain.tokens, lost, compared=not first and not request.cold)
        if not request.known:
            request.tokens += gain.tokens
            request.lost += lost
            if circuit.judged:
                request.known = True
                self._learn(request)
        return lost + left

    def _charge_link(
        self, estimate: LinkEstimate, tokens: float, lost: float, *, compared: bool
    ) -> None:
        """Charge the link with the rest of a round; what it gains beyond pays for ended requests.

        A round that also paid for what was committed meanwhile is compared where it pays all the
        same.
        """
        left = estimate.circuit.owe(lost)
        estimate.circuit.weigh(tokens, lost, compared=compared or lost <= 0)
        if left:
            self._newcomers.owe(-left)

    def _learn(self, request: RequestBreaker) -> None:
        """Let the next requests begin by what this one has come to."""
        if request.tokens:
            self._newcomers.weigh(request.tokens, request.lost, compared=True)

    def _estimate(self, requests: int) -> LinkEstimate:
        """Return what is known of rounds of so many requests."""
        size = requests.bit_length()
        if size not in self._estimates:
            self._estimates[size] = LinkEstimate(self.config)
        self._latest = self._estimates[size]
        return self._latest

    def _release(self, requests: Sequence[RequestBreaker]) -> None:
        """Let another round probe, if one of these requests' did."""
        for estimate, prober in list(self._probers.items()):
            if prober in requests:
                del self._probers[estimate]


Paused: TypeAlias = Breaker | RequestBreaker
"""What has a circuit that may pause: all requests of a drafter, or one."""
