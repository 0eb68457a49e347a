"""The memory of a session group's slots: how much, checked against HELLO before it is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from draftwire.errors import ConfigurationError, ProtocolError, ProtocolErrorCode
from draftwire.kernels.rows import Lease
from draftwire.session.slots import Claim, SlotInput, Slots
from draftwire.wire.agreement import Agreed
from draftwire.wire.registry import LayoutSet

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """How many replies a session group holds at once, and of what shape.

    in_flight: for each request; a session has one, so more is memory without a use. requests: of
    the group. depth: the deepest proposal.
    """

    in_flight: int = 1
    requests: int = 4
    depth: int = 5

    def __post_init__(self) -> None:
        """Refuse a plan under which nothing could be asked."""
        for name in ("in_flight", "requests", "depth"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"the slots' {name} must be 1 or more")

    @classmethod
    def as_agreed(cls, agreed: Agreed) -> SlotPlan:
        """Return the plan that holds whatever HELLO lets this side ask for."""
        return cls(requests=min(agreed.max_sessions, agreed.max_slots), depth=agreed.max_depth)

    def require_agreed(self, agreed: Agreed) -> None:
        """Raise ConfigurationError for slots that HELLO's limits leave without a use."""
        for name, ours, field, theirs in (
            ("requests", self.requests, "max_sessions", agreed.max_sessions),
            ("requests", self.requests, "max_slots", agreed.max_slots),
            ("depth", self.depth, "max_depth", agreed.max_depth),
        ):
            if ours > theirs:
                raise ConfigurationError(
                    f"slots of {name} {ours} do not fit HELLO's {field} of {theirs}: plan fewer, or"
                    " start the drafter with more"
                )


@dataclass(frozen=True, slots=True, eq=False)
class SlotBuffer:
    """The memory of one slot. rows: int32 (depth, V), or None where replies bring their own."""

    rows: NDArray[np.int32] | None = None

    def out(self, depth: int) -> NDArray[np.int32] | None:
        """Return where the counts of a dense reply of this depth go; None = memory of its own."""
        return None if self.rows is None else self.rows[:depth]


class ReplySlots(Slots[SlotBuffer]):
    """The slots of one session group, their memory allocated once.

    requests, depth: the limits of the plan; None = those of HELLO.
    """

    def __init__(
        self, stages: list[SlotBuffer], plan: SlotPlan | None = None, width: int = 0
    ) -> None:
        """Take over the stages; see :meth:`planned`. width: V of their rows, 0 = none."""
        super().__init__(stages)
        self.requests = None if plan is None else plan.requests
        self.depth = None if plan is None else plan.depth
        self._shape = (plan, width)

    @classmethod
    def planned(
        cls, agreed: Agreed, plan: SlotPlan | None = None, before: ReplySlots | None = None
    ) -> ReplySlots:
        """Check the plan against what HELLO agreed, then allocate; no plan = as agreed.

        before: the slots of the connection before, which stay where their shape is the same.
        Raises ConfigurationError; nothing has been allocated then.
        """
        if plan is None:
            plan = SlotPlan.as_agreed(agreed)
        plan.require_agreed(agreed)
        width = agreed.vocab_size if LayoutSet.DENSE in agreed.layouts else 0
        if before is not None and before._shape == (plan, width):
            return before
        count = plan.in_flight * plan.requests
        if not width:
            return cls([SlotBuffer() for _ in range(count)], plan)
        rows = np.empty((count, plan.depth, width), np.int32)  # resident only once it is used
        return cls([SlotBuffer(each) for each in rows], plan, width)

    @classmethod
    def alone(cls) -> ReplySlots:
        """Return the slot of a session outside any group, whose replies bring memory."""
        return cls([SlotBuffer()])


class SlotHandle:
    """One session's hold on a slot, for one round after another; it has one at a time.

    slots: those of its group; others may take their place while a round still holds one of these.
    """

    def __init__(self, slots: ReplySlots) -> None:
        """Begin without a slot."""
        self.slots = slots
        self._held: tuple[ReplySlots, Claim] | None = None
        self.lease = Lease()  # of the slot's memory, for the rows of this round

    def require_room(self, depth: int) -> None:
        """Raise ConfigurationError for a proposal that is deeper than the slots."""
        if self.slots.depth is not None and depth > self.slots.depth:
            raise ConfigurationError(f"the depth is {depth}, and the slots hold {self.slots.depth}")

    def take(self) -> None:
        """Take a slot for a round; ConfigurationError when none is free."""
        claim = self.slots.ask()
        if claim is None:
            raise ConfigurationError("every slot holds a round that is not over")
        self._held = (self.slots, claim)

    def arrive(self) -> SlotBuffer:
        """Return the memory of the slot, where the reply is now; ProtocolError if it may not be."""
        held = self._held
        stage = None if held is None else held[0].happened(held[1], SlotInput.ARRIVE)
        if stage is None:
            raise _another()
        return stage

    def publish(self) -> None:
        """The reply is whole and valid, and the session's caller reads it from now on."""
        held = self._held
        if held is None or held[0].happened(held[1], SlotInput.VALIDATE) is None:
            raise _another()

    def give_up(self) -> None:
        """The round is over without a proposal, or without one that is used."""
        self._end(SlotInput.GIVE_UP)

    def release(self) -> None:
        """The consumer of the proposal is done."""
        self._end(SlotInput.RELEASE)

    def _end(self, how: SlotInput) -> None:
        held = self._held
        if held is None:
            return
        self.lease.end()  # before the slot is another round's
        held[0].happened(held[1], how)
        self._held, self.lease = None, Lease()


def _another() -> ProtocolError:
    return ProtocolError(ProtocolErrorCode.STALE, "the slot of this round is another's now")
