"""Slots: fixed places for replies, and who may write into and read out of one when (law 3).

A slot's life is one table of data. A caller gets a :class:`Claim` on a slot: its number and its
epoch. Everything that is done with the slot names the claim, and a claim of another epoch
is refused. The epoch moves on whenever the slot becomes free, because its consumer is done or its
round is given up, and before it can be given again. So a reply that comes late is neither
read into a slot that has a new owner nor out of it, and a buffer is not reused under a consumer.

A slot has one consumer, the caller of the session that asked: ranks that judge together are sent
copies, never the buffer. Knows no bytes, no clock and no model: buffers are whatever the owner of
the slots made them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

from draftwire.session.state_table import StateTable

Buffer = TypeVar("Buffer")


class SlotState(StrEnum):
    """Where one slot stands; the value is its meaning."""

    FREE = "no round holds it"
    ASKED = "its round is asked; nothing has come"
    ARRIVING = "its reply is being put into the buffer, or checked"
    READY = "the whole reply is there and valid; its consumer may read it"


class SlotInput(StrEnum):
    """What can happen to a slot; the value is its meaning."""

    ASK = "a round takes the slot"
    ARRIVE = "bytes of its reply are there"
    VALIDATE = "the whole reply has arrived and everything about it holds"
    RELEASE = "the consumer is done: the round is committed"
    GIVE_UP = "the round is given up: late, refused, withdrawn or cut off"


SLOT: Final = StateTable(
    SlotState,
    SlotInput,
    {
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
    },
)
"""The whole life of a slot; an input that is missing here is refused."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Who may use a slot: the round that it was given to in this epoch."""

    number: int
    epoch: int


@dataclass(slots=True)
class Slot(Generic[Buffer]):
    """A place for one reply: its buffer, where it stands, and how often it was given."""

    buffer: Buffer
    state: SlotState = SlotState.FREE
    epoch: int = 1


class Slots(Generic[Buffer]):
    """A fixed number of slots with a buffer each; none is made later, and none is lost.

    What a claim may not do, because it is over or because it is not its turn, does nothing.
    """

    on_release: Callable[[Buffer], None] | None = None
    """Called with the buffer of a slot that becomes free, before another round can be given it."""

    def __init__(self, buffers: Iterable[Buffer]) -> None:
        """Take over the buffers, all there will ever be."""
        self.entries = [Slot(buffer) for buffer in buffers]

    def __len__(self) -> int:
        """How many slots there are."""
        return len(self.entries)

    @property
    def free(self) -> int:
        """How many of them no round holds."""
        return sum(slot.state is SlotState.FREE for slot in self.entries)

    def ask(self) -> Claim | None:
        """Give a round a slot; None = all are taken."""
        for number, slot in enumerate(self.entries):
            following = SLOT.following(slot.state, SlotInput.ASK)
            if following is not None:
                slot.state = following
                return Claim(number, slot.epoch)
        return None

    def happened(self, claim: Claim, what: SlotInput) -> Buffer | None:
        """Move the slot of a claim on, and return its buffer; None = the claim may not do that."""
        slot = self.entries[claim.number]
        following = SLOT.following(slot.state, what)
        if following is None or slot.epoch != claim.epoch:
            return None
        slot.epoch += following is SlotState.FREE  # before another round can be given the slot
        if following is SlotState.FREE and self.on_release is not None:
            self.on_release(slot.buffer)
        slot.state = following
        return slot.buffer
