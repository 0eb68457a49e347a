"""Slots: fixed places for replies, and who may write into and read out of one when (law 3).

A slot's life is one table of data. Whoever asks gets a :class:`Claim` on a slot: its number and its
tenure. Everything that is done with the slot names the claim, and a claim of another tenure
is refused. The tenure moves on whenever the slot becomes free, because its consumer is done or its
round is given up, and before anybody else can be given it. So a reply that comes late is neither
read into a slot that has a new owner nor out of it, and a buffer is not reused under a consumer.

A slot has one consumer, the caller of the session that asked: ranks that judge together are sent
copies, never the buffer. Knows no bytes, no clock and no model: buffers are whatever the owner of
the slots made them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

Buffer = TypeVar("Buffer")


class SlotState(Enum):
    """Where one slot stands; the value is its meaning."""

    __hash__ = object.__hash__  # Enum's own is interpreted, and every round looks several up

    FREE = "nobody's"
    ASKED = "its round is asked; nothing has come"
    ARRIVING = "its reply is being put into the buffer, or checked"
    READY = "the whole reply is there and valid; its consumer may read it"


class SlotInput(Enum):
    """What can happen to a slot; the value is its meaning."""

    __hash__ = object.__hash__

    ASK = "a round takes the slot"
    ARRIVE = "bytes of its reply are there"
    VALIDATE = "the whole reply has arrived and everything about it holds"
    RELEASE = "the consumer is done: the round is committed"
    GIVE_UP = "the round is given up: late, refused, withdrawn or cut off"


SLOT_TRANSITIONS: Final[dict[SlotState, dict[SlotInput, SlotState]]] = {
    SlotState.FREE: {SlotInput.ASK: SlotState.ASKED},
    SlotState.ASKED: {
        SlotInput.ARRIVE: SlotState.ARRIVING,
        SlotInput.GIVE_UP: SlotState.FREE,
    },
    SlotState.ARRIVING: {
        SlotInput.VALIDATE: SlotState.READY,
        SlotInput.GIVE_UP: SlotState.FREE,
    },
    SlotState.READY: {
        SlotInput.RELEASE: SlotState.FREE,
        SlotInput.GIVE_UP: SlotState.FREE,
    },
}
"""The whole life of a slot; an input that is missing here is refused."""


# Looked up once: a member of an enumeration costs several times what a global does.
_FREE: Final = SlotState.FREE
_ASK: Final = SlotInput.ASK


@dataclass(frozen=True, slots=True)
class Claim:
    """Who may use a slot: the round that it was given to under this tenure."""

    number: int
    tenure: int


@dataclass(slots=True)
class _Slot(Generic[Buffer]):
    buffer: Buffer
    state: SlotState = SlotState.FREE
    tenure: int = 1


class Slots(Generic[Buffer]):
    """A fixed number of slots with a buffer each; none is made later, and none is lost.

    What a claim may not do, because it is over or because it is not its turn, does nothing.
    """

    on_release: Callable[[Buffer], None] | None = None
    """Called with the buffer of a slot that becomes free, before another round can be given it."""

    def __init__(self, buffers: Iterable[Buffer]) -> None:
        """Take over the buffers, all there will ever be."""
        self._slots = [_Slot(buffer) for buffer in buffers]

    def __len__(self) -> int:
        """How many slots there are."""
        return len(self._slots)

    @property
    def free(self) -> int:
        """How many of them are nobody's."""
        return sum(slot.state is SlotState.FREE for slot in self._slots)

    def ask(self) -> Claim | None:
        """Give a round a slot; None = all are taken."""
        for number, slot in enumerate(self._slots):
            following = SLOT_TRANSITIONS[slot.state].get(_ASK)
            if following is not None:
                slot.state = following
                return Claim(number, slot.tenure)
        return None

    def happened(self, claim: Claim, what: SlotInput) -> Buffer | None:
        """Move the slot of a claim on, and return its buffer; None = the claim may not do that."""
        slot = self._slots[claim.number]
        following = SLOT_TRANSITIONS[slot.state].get(what)
        if following is None or slot.tenure != claim.tenure:
            return None
        slot.tenure += following is _FREE  # before anybody can be given the slot
        if following is _FREE and self.on_release is not None:
            self.on_release(slot.buffer)
        slot.state = following
        return slot.buffer
