"""Slots: fixed places for replies, and who may write into and read out of one when (law 3).

A slot's life is one table of data. Whoever asks gets a :class:`Claim` on a slot: its number and its
tenure. Everything that is done with the slot names the claim, and a claim of another tenure
is refused. The tenure moves on when the slot is released *and* when its round is given up, in
both cases before anybody else can be given the slot. So a reply that comes late is neither read
into a slot that has a new owner nor out of it, and a buffer is not reused under a consumer.

Knows no bytes, no clock and no model: buffers are whatever the owner of the slots made them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, NamedTuple, TypeVar

Buffer = TypeVar("Buffer")


class SlotState(Enum):
    """Where one slot stands; the value is its meaning."""

    __hash__ = object.__hash__  # Enum's own is interpreted, and every round looks several up

    FREE = "nobody's"
    ASKED = "its round is asked; nothing has come"
    ARRIVING = "its reply is being put into the buffer, or checked"
    READY = "the whole reply is there and valid; nobody reads it yet"
    CONSUMED = "consumers read it"
    DRAINING = "its round was given up; consumers that read it have not let go yet"


class SlotInput(Enum):
    """What can happen to a slot; the value is its meaning."""

    __hash__ = object.__hash__

    ASK = "a round takes the slot"
    ARRIVE = "bytes of its reply are there"
    VALIDATE = "the whole reply has arrived and everything about it holds"
    CONSUME = "one more consumer reads it"
    RELEASE = "a consumer is done, and others are not"
    LAST_RELEASE = "the last consumer is done"
    TIME_OUT = "the watchdog gives the round up, or the reply was refused"
    CANCEL = "the session withdraws the round"


SLOT_TRANSITIONS: Final[dict[SlotState, dict[SlotInput, SlotState]]] = {
    SlotState.FREE: {SlotInput.ASK: SlotState.ASKED},
    SlotState.ASKED: {
        SlotInput.ARRIVE: SlotState.ARRIVING,
        SlotInput.TIME_OUT: SlotState.FREE,
        SlotInput.CANCEL: SlotState.FREE,
    },
    SlotState.ARRIVING: {
        SlotInput.ARRIVE: SlotState.ARRIVING,
        SlotInput.VALIDATE: SlotState.READY,
        SlotInput.TIME_OUT: SlotState.FREE,
        SlotInput.CANCEL: SlotState.FREE,
    },
    SlotState.READY: {
        SlotInput.CONSUME: SlotState.CONSUMED,
        SlotInput.TIME_OUT: SlotState.FREE,
        SlotInput.CANCEL: SlotState.FREE,
    },
    SlotState.CONSUMED: {
        SlotInput.CONSUME: SlotState.CONSUMED,
        SlotInput.RELEASE: SlotState.CONSUMED,
        SlotInput.LAST_RELEASE: SlotState.FREE,
        SlotInput.TIME_OUT: SlotState.DRAINING,
        SlotInput.CANCEL: SlotState.DRAINING,
    },
    SlotState.DRAINING: {
        SlotInput.RELEASE: SlotState.DRAINING,
        SlotInput.LAST_RELEASE: SlotState.FREE,
    },
}
"""The whole life of a slot; an input that is missing here is refused."""

_OVER: Final = frozenset({SlotState.FREE, SlotState.DRAINING})
"""States that no claim outlives: entering one of them begins the next tenure."""


class Claim(NamedTuple):
    """Who may use a slot: the round that it was given to under this tenure."""

    number: int
    tenure: int


@dataclass(slots=True)
class _Slot(Generic[Buffer]):
    buffer: Buffer
    state: SlotState = SlotState.FREE
    tenure: int = 1
    readers: int = 0


class Slots(Generic[Buffer]):
    """A fixed number of slots with a buffer each; none is made later, and none is lost.

    What a claim may not do, because it is over or because it is not its turn, does nothing and
    returns None or False.
    """

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
            if self._move(slot, SlotInput.ASK):
                return Claim(number, slot.tenure)
        return None

    def arrive(self, claim: Claim) -> Buffer | None:
        """Return where the reply goes; None = the claim may write nothing there."""
        slot = self._current(claim)
        return slot.buffer if slot is not None and self._move(slot, SlotInput.ARRIVE) else None

    def publish(self, claim: Claim) -> bool:
        """The whole reply has arrived and is valid: consumers may read it from now on."""
        slot = self._current(claim)
        return slot is not None and self._move(slot, SlotInput.VALIDATE)

    def consume(self, claim: Claim) -> Buffer | None:
        """Return what a consumer reads until it calls ``release``; None = it may not."""
        slot = self._current(claim)
        if slot is None or not self._move(slot, SlotInput.CONSUME):
            return None
        slot.readers += 1
        return slot.buffer

    def release(self, claim: Claim) -> bool:
        """A consumer of the claim is done, whether or not the round was given up meanwhile."""
        slot = self._slots[claim.number]
        draining = slot.state is SlotState.DRAINING
        if not slot.readers or claim.tenure + draining != slot.tenure:
            return False
        last = slot.readers == 1
        if not self._move(slot, SlotInput.LAST_RELEASE if last else SlotInput.RELEASE):
            return False
        slot.readers -= 1
        return True

    def time_out(self, claim: Claim) -> bool:
        """The watchdog gives the round up; nothing of the claim is written or read any more."""
        slot = self._current(claim)
        return slot is not None and self._move(slot, SlotInput.TIME_OUT)

    def cancel(self, claim: Claim) -> bool:
        """The session withdraws the round; otherwise as ``time_out``."""
        slot = self._current(claim)
        return slot is not None and self._move(slot, SlotInput.CANCEL)

    def _current(self, claim: Claim) -> _Slot[Buffer] | None:
        slot = self._slots[claim.number]
        return slot if slot.tenure == claim.tenure else None

    def _move(self, slot: _Slot[Buffer], happened: SlotInput) -> bool:
        following = SLOT_TRANSITIONS[slot.state].get(happened)
        if following is None:
            return False
        if following in _OVER and slot.state is not SlotState.DRAINING:
            slot.tenure += 1  # before anybody can be given the slot
        slot.state = following
        return True
