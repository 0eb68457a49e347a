"""Slots: every interleaving for two of them, to closure, and the mutants that it must catch.

The explorer drives the real ``Slots`` by everything that a client, a network and a watchdog can do
in any order: three rounds in two slots, so that one is reused; replies that come late, twice or
broken; two consumers a round. A state that was seen is not entered again, so histories of any
length are covered. Buffers are lists of one entry: which round was written last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from draftwire.session import slots
from draftwire.session.slots import (
    SLOT_TRANSITIONS,
    Claim,
    SlotInput,
    Slots,
    SlotState,
    _Slot,
)

ROUNDS = 3
CONSUMERS = 2


class BrokenInvariantError(Exception):
    """What must never be has happened."""


def must(holds: bool, what: str) -> None:
    if not holds:
        raise BrokenInvariantError(what)


@dataclass
class Round:
    """What the world outside knows of one round; never asked of the slots."""

    claim: Claim
    arrived: bool = False  # a whole reply was put into its buffer
    validated: bool = False
    over: bool = False  # given up, withdrawn, or released by the last consumer
    taken: int = 0  # consumers that have ever read it
    reading: int = 0  # consumers that read it now


class World:
    """Two slots and what has happened to them."""

    def __init__(self) -> None:
        self.slots = Slots[list[int]]([-1] for _ in range(2))
        self.rounds: list[Round] = []

    def copy(self) -> World:
        """Return the same world once more; deepcopy takes ten times as long."""
        other = World.__new__(World)
        other.slots = Slots(())
        other.slots._slots = [
            _Slot(list(s.buffer), s.state, s.tenure, s.readers) for s in self.slots._slots
        ]
        other.rounds = [replace(each) for each in self.rounds]
        return other

    def buffer(self, round: Round) -> list[int]:
        return self.slots._slots[round.claim.number].buffer

    def key(self) -> object:
        inside = tuple((s.buffer[0], s.state, s.tenure, s.readers) for s in self.slots._slots)
        outside = tuple(
            (r.claim, r.arrived, r.validated, r.over, r.taken, r.reading) for r in self.rounds
        )
        return inside, outside

    def moves(self) -> Iterator[tuple[str, int]]:
        if len(self.rounds) < ROUNDS:
            yield "ask", -1
        for index in range(len(self.rounds)):
            for name in ("arrive", "publish", "consume", "release", "time_out", "cancel"):
                yield name, index

    def do(self, name: str, index: int) -> None:
        if name == "ask":
            claim = self.slots.ask()
            owned = {r.claim.number for r in self.rounds if not r.over or r.reading}
            must((claim is None) is (len(owned) == 2), "a slot is lost, or given away twice")
            if claim is not None:
                must(claim.number not in owned, "a slot was given away that is in use")
                must(claim not in [r.claim for r in self.rounds], "a claim was made twice")
                self.rounds.append(Round(claim))
            return
        getattr(self, name)(index, self.rounds[index])

    def arrive(self, index: int, round: Round) -> None:
        """The network delivers the reply of a round, which may be over for long."""
        buffer = self.slots.arrive(round.claim)
        must((buffer is not None) is not (round.over or round.validated), "a wrong place to write")
        if buffer is not None:
            must(buffer is self.buffer(round), "another slot's buffer")
            buffer[0] = index
            round.arrived = True

    def publish(self, index: int, round: Round) -> None:
        """The reply was checked and holds; who says so though nothing came must be refused."""
        published = self.slots.publish(round.claim)
        expected = round.arrived and not round.validated and not round.over
        must(published is expected, "published at another time than when it was validated")
        round.validated |= published

    def consume(self, index: int, round: Round) -> None:
        if round.taken == CONSUMERS:
            return
        buffer = self.slots.consume(round.claim)
        must((buffer is not None) is (round.validated and not round.over), "read at a wrong time")
        if buffer is not None:
            must(buffer is self.buffer(round), "another slot's buffer")
            round.taken += 1
            round.reading += 1

    def release(self, index: int, round: Round) -> None:
        released = self.slots.release(round.claim)
        must(released is (round.reading > 0), "released by nobody, or not at all")
        if released:
            round.reading -= 1
            round.over |= not round.reading

    def time_out(self, index: int, round: Round) -> None:
        must(self.slots.time_out(round.claim) is not round.over, "the watchdog is late, or lost")
        round.over = True

    def cancel(self, index: int, round: Round) -> None:
        must(self.slots.cancel(round.claim) is not round.over, "a cancel is late, or lost")
        round.over = True

    def check(self) -> None:
        for index, round in enumerate(self.rounds):
            if round.reading:
                must(self.buffer(round)[0] == index, "a buffer was overwritten under its consumer")
        busy = {r.claim.number for r in self.rounds if not r.over or r.reading}
        must(self.slots.free == 2 - len(busy), "a slot is free that is in use, or the reverse")


def explore() -> int:
    """Enter every state that can be reached; returns how many there are."""
    begin = World()
    seen, waiting = {begin.key()}, [begin]
    while waiting:
        world = waiting.pop()
        for name, index in world.moves():
            following = world.copy()
            following.do(name, index)
            following.check()
            key = following.key()
            if key not in seen:
                seen.add(key)
                waiting.append(following)
    return len(seen)


def test_every_interleaving_of_two_slots_keeps_every_invariant() -> None:
    assert explore() > 1000


def with_transition(state: SlotState, happened: SlotInput, following: SlotState) -> object:
    table = {each: dict(row) for each, row in SLOT_TRANSITIONS.items()}
    table[state][happened] = following
    return table


def no_tenure_check(self: Slots[list[int]], claim: Claim) -> object:
    return self._slots[claim.number]


def no_new_tenure(self: Slots[list[int]], slot: object, happened: SlotInput) -> bool:
    following = SLOT_TRANSITIONS[slot.state].get(happened)  # type: ignore[attr-defined]
    if following is not None:
        slot.state = following  # type: ignore[attr-defined]
    return following is not None


def any_release_is_the_last(self: Slots[list[int]], claim: Claim) -> bool:
    slot = self._slots[claim.number]
    if not slot.readers or slot.tenure - claim.tenure not in (0, 1):
        return False
    slot.readers = 0
    return self._move(slot, SlotInput.LAST_RELEASE)


S, IN = SlotState, SlotInput
MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "reused before its consumers are done": lambda patch: patch.setattr(
        slots, "SLOT_TRANSITIONS", with_transition(S.CONSUMED, IN.TIME_OUT, S.FREE)
    ),
    "cancelled and reused before its consumers are done": lambda patch: patch.setattr(
        slots, "SLOT_TRANSITIONS", with_transition(S.CONSUMED, IN.CANCEL, S.FREE)
    ),
    "ready before it was validated": lambda patch: patch.setattr(
        slots, "SLOT_TRANSITIONS", with_transition(S.ASKED, IN.ARRIVE, S.READY)
    ),
    "read while it arrives": lambda patch: patch.setattr(
        slots, "SLOT_TRANSITIONS", with_transition(S.ARRIVING, IN.CONSUME, S.CONSUMED)
    ),
    "written again once it is ready": lambda patch: patch.setattr(
        slots, "SLOT_TRANSITIONS", with_transition(S.READY, IN.ARRIVE, S.ARRIVING)
    ),
    "no tenure is checked": lambda patch: patch.setattr(Slots, "_current", no_tenure_check),
    "giving up begins no tenure": lambda patch: patch.setattr(Slots, "_move", no_new_tenure),
    "one consumer's release is everybody's": lambda patch: patch.setattr(
        Slots, "release", any_release_is_the_last
    ),
    "a slot that was given up is never free again": lambda patch: patch.setattr(
        slots, "SLOT_TRANSITIONS", with_transition(S.ASKED, IN.TIME_OUT, S.DRAINING)
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_mutants_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises(BrokenInvariantError):
        explore()
