"""Sessions over shared slots, in every order of what can happen to them: the real objects.

A world is a few ``VerifierSession`` of one group over ``ReplySlots``, with all that a caller, a
network, a watchdog and a connection may do next. Beside each session stands what it must come to,
written down once more and from outside (:class:`Request`). After every step the two are compared,
the slots are held against who ought to own them, and free memory is poisoned. There is no drafter
in it: a joined pair could not say any of its answers at any time, nor be copied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import numpy as np

from draftwire.errors import (
    ConfigurationError,
    DraftwireError,
    ProtocolError,
    ReleasedError,
)
from draftwire.session.proposal import Dropped, Proposal
from draftwire.session.session_states import State
from draftwire.session.slot_buffers import ReplySlots, SlotBuffer, SlotPlan
from draftwire.session.slots import SlotState
from draftwire.session.verifier_session import VerifierSession
from draftwire.wire.messages import ProposalPolicy, Step
from draftwire.wire.registry import Layout, Outcome
from testing.harness.joined import KEY, PROMPT, agreement
from tests.session.slot_replies import FORGED, REPLIES, WHOLE, Answer, answer_to

DENSE: Final = ProposalPolicy(Layout.DENSE, depth=2, temperature=1.0)
SPARSE: Final = ProposalPolicy(Layout.SPARSE, depth=2, temperature=1.0, support=3)
AGREED: Final = agreement(max_slots=3)
PLANS: Final = (SlotPlan(1, 2, depth=2), SlotPlan(1, 2, depth=3))
"""Two slots, and two of another shape, as for a drafter that comes back with other limits."""
POISON: Final = -1
EACH: Final = (
    *("ask", "skip", "give up", "accept", "correct", "alone"),
    *("reset", "cancel", "open"),
)
"""What a caller may do with a session; "cancel" ends it, and "open" puts another in its place."""
_LATE: Final = (WHOLE, f"end of {WHOLE}", "error")
"""What may still come for a round that is over; what is in it is not looked at."""
_REFUSED: Final = (ProtocolError, ConfigurationError, ValueError)

Move = tuple[str, int, str]
"""What happens, to which session, and what comes for it if something does."""


class BrokenInvariantError(Exception):
    """What must never be has happened."""


def must(holds: bool, what: str) -> None:
    if not holds:
        raise BrokenInvariantError(what)


class Phase(Enum):
    """Where a request stands as seen from outside."""

    BETWEEN = "between two rounds"
    ASKED = "asked"
    REPLIED = "a reply is there, not its end"
    PROPOSED = "the caller reads the proposal"
    ALONE = "target-only"
    ENDED = "over"


SLOT_IN: Final = {
    Phase.ASKED: SlotState.ASKED,
    Phase.REPLIED: SlotState.ARRIVING,
    Phase.PROPOSED: SlotState.READY,
}
"""The state of the slot that a request holds; in the other phases it holds none."""


STATES: Final = {
    Phase.BETWEEN: (State.IDLE, State.OPEN),
    Phase.ASKED: (State.ASKED,),
    Phase.REPLIED: (State.REPLIED,),
    Phase.PROPOSED: (State.PROPOSED,),
    Phase.ALONE: (State.TARGET_ONLY,),
    Phase.ENDED: (State.ENDED,),
}


@dataclass
class Request:
    """What the world outside knows of one session; it is never asked of the session.

    slots: those that its round lies in. came: the reply that has come, by name. late: all that may
    still come for a round that is over.
    """

    phase: Phase = Phase.BETWEEN
    slots: ReplySlots | None = None
    came: str = ""
    answer: Answer | None = None
    late: Answer | None = None
    proposal: Proposal | None = None

    def over(self, phase: Phase) -> None:
        """The round has no slot any more."""
        if self.answer is not None:
            self.late = self.answer
        self.phase, self.slots, self.came, self.answer, self.proposal = phase, None, "", None, None


class World:
    """Sessions of one group, and what has happened to them."""

    def __init__(
        self,
        sessions: int = 2,
        only: frozenset[str] | None = None,
        policy: ProposalPolicy = DENSE,
    ) -> None:
        """Begin connected, with nothing asked. only: names of what may happen, None = all."""
        self.only = only
        self.policy = policy
        self.plan = 0
        self.slots = ReplySlots.planned(AGREED, PLANS[0])
        self.connected = True
        self.opened = 0
        self.requests: list[Request] = []
        self.sessions: list[VerifierSession] = []
        for _ in range(sessions):
            self.sessions.append(self._open(len(self.sessions)))
            self.requests.append(Request())

    # what may happen

    def moves(self) -> Iterator[Move]:
        """Everything that may happen next, whether or not it will be taken."""
        for what, index, name in self._all_moves():
            if self.only is None or (name or what) in self.only:
                yield what, index, name

    def _all_moves(self) -> Iterator[Move]:
        for what in ("disconnect", "connect", "connect otherwise"):
            yield what, -1, ""
        for index, request in enumerate(self.requests):
            for what in EACH:
                yield what, index, ""
            for name in () if request.answer is None else request.answer.messages:
                yield "current", index, name
            for name in () if request.late is None else request.late.messages:
                if name in _LATE:
                    yield "late", index, name

    def do(self, move: Move) -> None:
        """Let it happen; BrokenInvariantError if anything is as it must not be afterwards."""
        what, index, name = move
        before = {id(stage): stage.rows.tobytes() for stage in self._stages()}
        written = None
        if index < 0:
            getattr(self, what.replace(" ", "_"))()
        else:
            session, request = self.sessions[index], self.requests[index]
            proposal = request.proposal
            due = what == "current" and request.phase is Phase.ASKED
            if due and name in REPLIES and self.policy is DENSE:
                written = self._own(session)
            if what in EACH:
                self._called(what, index, session, request)
            else:
                self._came(session, request, what, name)
            if proposal is not None and request.proposal is None:
                self._gone(proposal)
        self._check(before, written)

    def disconnect(self) -> None:
        for session, request in zip(self.sessions, self.requests, strict=True):
            dropped = session.disconnected()
            lost = request.phase in (Phase.ASKED, Phase.REPLIED)
            must((dropped is not None) is lost, "what a connection takes with it is another thing")
            if lost:
                request.over(Phase.ALONE)
        self.connected = False

    def connect(self) -> None:
        if self.connected:
            return
        self.connected = True
        self.slots = ReplySlots.planned(AGREED, PLANS[self.plan], self.slots)
        for session in self.sessions:
            session.connected(AGREED, self.slots)

    def connect_otherwise(self) -> None:
        self.plan = self.plan if self.connected else 1 - self.plan
        self.connect()

    # inside

    def _open(self, index: int) -> VerifierSession:
        self.opened += 1
        agreed = AGREED if self.connected else None
        prompt = (*PROMPT, self.opened % 7)
        return VerifierSession(self.opened, index, prompt, KEY, agreed, slots=self.slots)

    def _called(self, what: str, index: int, session: VerifierSession, request: Request) -> None:
        phase = request.phase
        if what == "open":
            if phase is Phase.ENDED:
                self.sessions[index], self.requests[index] = self._open(index), Request()
            return
        allowed = {
            "ask": phase is Phase.BETWEEN and self.connected and self._owned(self.slots) < 2,
            "skip": phase is Phase.BETWEEN,
            "give up": phase in SLOT_IN,
            "reset": phase is not Phase.ENDED,
            "cancel": True,
            "accept": phase is Phase.PROPOSED,
            "correct": phase is Phase.PROPOSED,
            "alone": phase is Phase.ALONE,
        }[what]
        try:
            result = _CALLS[what](session, self.policy)
        except _REFUSED as error:
            must(not allowed, f"{what} is refused: {error}")
            return
        must(allowed, f"{what} is not refused")
        if what == "ask":
            request.late = request.late if request.answer is None else request.answer
            request.phase, request.slots = Phase.ASKED, self.slots
            assert isinstance(result, Step)
            request.answer = answer_to(result, session.tokens, AGREED)
        else:
            after = {"skip": Phase.ALONE, "give up": Phase.ALONE, "cancel": Phase.ENDED}
            request.over(after.get(what, Phase.BETWEEN))

    def _came(self, session: VerifierSession, request: Request, what: str, name: str) -> None:
        answer = request.answer if what == "current" else request.late
        assert answer is not None
        try:
            result = session.take(answer.messages[name], 0.5)
        except DraftwireError as error:
            raise BrokenInvariantError(f"what came has raised {error}") from error
        following = request.phase
        if what == "current":
            following, request.came = _following(request.phase, request.came, name)
        if following is Phase.PROPOSED and request.phase is not Phase.PROPOSED:
            must(isinstance(result, Proposal), "a whole proposal is not handed out")
            assert isinstance(result, Proposal)
            must(result.tokens == answer.tokens, "other tokens than were drawn")
            request.proposal = result
        elif following is Phase.ALONE and request.phase in SLOT_IN:
            must(isinstance(result, Dropped), "a round goes on that has lost its proposal")
            request.over(Phase.ALONE)
        else:
            must(result is None, "what came late, twice or in part has changed something")
        request.phase = following

    def _own(self, session: VerifierSession) -> int:
        held = session._handle._held
        must(held is not None, "a round that is asked holds no slot")
        assert held is not None
        return id(held[0].entries[held[1].number].buffer)

    def _gone(self, proposal: Proposal) -> None:
        """A consumer that goes on reading is told so."""
        for row in proposal.rows:
            try:
                row.of(0)
            except ReleasedError:
                must(row.ids is None, "a row is withdrawn that has memory of its own")
            else:
                must(row.ids is not None, "a row can be read after its slot was given back")

    # what must be

    def _all_slots(self) -> list[ReplySlots]:
        found = [self.slots]
        for session in self.sessions:
            held = session._handle._held
            if held is not None and all(held[0] is not each for each in found):
                found.append(held[0])
        for request in self.requests:
            if request.slots is not None and all(request.slots is not each for each in found):
                found.append(request.slots)
        return found

    def _stages(self) -> Iterator[SlotBuffer]:
        for slots in self._all_slots():
            yield from (slot.buffer for slot in slots.entries)

    def _owned(self, slots: ReplySlots) -> int:
        return sum(request.slots is slots for request in self.requests)

    def _check(self, before: dict[int, bytes], written: int | None) -> None:
        owners: Counter[int] = Counter()
        for session, request in zip(self.sessions, self.requests, strict=True):
            must(session.state in STATES[request.phase], f"{session.state} while {request.phase}")
            held = session._handle._held
            wanted = SLOT_IN.get(request.phase)
            must((held is None) is (wanted is None), "a round has no slot, or a slot no round")
            if held is None:
                continue
            slots, claim = held
            slot = slots.entries[claim.number]
            must(slots is request.slots, "a round has moved into other slots")
            must(slot.epoch == claim.epoch, "a slot has a new epoch under its owner")
            must(slot.state is wanted, f"a slot is {slot.state} where its round is {request.phase}")
            owners[id(slot)] += 1
            must(owners[id(slot)] == 1, "a slot has two owners")
            if request.proposal is not None:
                self._reads(request, slot.buffer)
        for slots in self._all_slots():
            must(slots.free == len(slots) - self._owned(slots), "a slot is lost")
            for slot in slots.entries:
                self._check_memory(slot, before, written)

    def _reads(self, request: Request, stage: SlotBuffer) -> None:
        """The consumer sees its own reply, and in its own slot."""
        assert request.answer is not None
        assert request.proposal is not None
        for row, drawn in zip(request.proposal.rows, request.answer.rows, strict=True):
            same = np.array_equal(row.counts, drawn.counts)
            must(same, "a buffer was overwritten under its consumer")
            shared = np.shares_memory(row.counts, stage.rows)
            must(shared is (row.ids is None), "a row lies in another slot, or a sparse one in any")

    def _check_memory(self, slot: Any, before: dict[int, bytes], written: int | None) -> None:
        """Only a reply that was due writes, and into its own slot; what is free is poisoned."""
        rows, stage = slot.buffer.rows, id(slot.buffer)
        free = slot.state is SlotState.FREE
        if stage in before and stage != written and not (free and (rows == POISON).all()):
            must(rows.tobytes() == before[stage], "a slot was written by what was not due there")
        if free:
            rows.fill(POISON)

    # what makes it quick

    def key(self) -> object:
        """What decides all that can follow; numbers that only grow are left out."""
        rows = []
        for session, request in zip(self.sessions, self.requests, strict=True):
            held = session._handle._held
            hold = None if held is None else (held[0] is self.slots, held[1].number)
            inside = (session.state, session._pending is None, session._proposal is None, hold)
            mind = (session.opens, session._agreed is None, session._handle.slots is self.slots)
            outside = (request.phase, request.came, request.late is None, request.slots is None)
            rows.append((inside, mind, outside))
        states = tuple(tuple(s.state for s in slots.entries) for slots in self._all_slots())
        return self.connected, states, frozenset(Counter(rows).items())  # whose is whose is alike


def _following(phase: Phase, came: str, name: str) -> tuple[Phase, str]:
    """What a round is, and which reply it has, after a message that is for it."""
    if phase is Phase.ASKED:
        return (Phase.REPLIED, name) if name in (WHOLE, FORGED) else (Phase.ALONE, "")
    if phase is Phase.REPLIED:
        if name == came:
            return phase, came
        whole = came == WHOLE and name == f"end of {WHOLE}"
        return (Phase.PROPOSED if whole else Phase.ALONE), ""
    return phase, came


_CALLS: Final = {
    "ask": lambda session, policy: session.ask(policy, 0.0, 1.0),
    "skip": lambda session, _: session.skip(),
    "give up": lambda session, _: session.give_up(),
    "accept": lambda session, _: session.commit(2, Outcome.BONUS, 0),
    "correct": lambda session, _: session.commit(0, Outcome.CORRECTION, 0),
    "alone": lambda session, _: session.commit(0, Outcome.TARGET_ONLY, 0),
    "reset": lambda session, _: session.reset(),
    "cancel": lambda session, _: session.cancel(),
}
