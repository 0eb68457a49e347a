"""Slots: every interleaving for two of them, to closure, and the mutants that it must catch.

The explorer drives the real ``Slots`` by everything that a client, a network and a watchdog can do
in any order: three rounds in two slots, so that one is reused; replies that come late, twice or
broken; claims that are used long after their round. A state that was seen is not entered again, so
histories of any length are covered. Buffers are lists of one entry: which round was written last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from draftwire.session import slots
from draftwire.session.slots import (
    SLOT,
    Claim,
    Slot,
    SlotInput,
    Slots,
    SlotState,
)
from draftwire.session.state_table import StateTable

ROUNDS = 3


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
    over: bool = False  # given up, or released by its consumer


class World:
    """Two slots and what has happened to them."""

    def __init__(self) -> None:
        self.slots = Slots[list[int]]([-1] for _ in range(2))
        self.rounds: list[Round] = []

    def copy(self) -> World:
        """Return the same world once more; deepcopy takes ten times as long."""
        other = World.__new__(World)
        other.slots = Slots(())
        other.slots.entries = [Slot(list(s.buffer), s.state, s.epoch) for s in self.slots.entries]
        other.rounds = [replace(each) for each in self.rounds]
        return other

    def buffer(self, round: Round) -> list[int]:
        return self.slots.entries[round.claim.number].buffer

    def key(self) -> object:
        inside = tuple((s.buffer[0], s.state, s.epoch) for s in self.slots.entries)
        outside = tuple((r.claim, r.arrived, r.validated, r.over) for r in self.rounds)
        return inside, outside

    def moves(self) -> Iterator[tuple[str, int]]:
        if len(self.rounds) < ROUNDS:
            yield "ask", -1
        for index in range(len(self.rounds)):
            for name in ("arrive", "publish", "release", "give_up"):
                yield name, index

    def do(self, name: str, index: int) -> None:
        if name == "ask":
            claim = self.slots.ask()
            owned = {r.claim.number for r in self.rounds if not r.over}
            must((claim is None) is (len(owned) == 2), "a slot is lost, or given away twice")
            if claim is not None:
                must(claim.number not in owned, "a slot was given away that is in use")
                must(claim not in [r.claim for r in self.rounds], "a claim was made twice")
                self.rounds.append(Round(claim))
            return
        getattr(self, name)(index, self.rounds[index])

    def arrive(self, index: int, round: Round) -> None:
        """The network delivers the reply of a round, which may be over for long."""
        buffer = self.slots.happened(round.claim, SlotInput.ARRIVE)
        must((buffer is None) is (round.over or round.arrived), "a wrong place to write")
        if buffer is not None:
            must(buffer is self.buffer(round), "another slot's buffer")
            buffer[0] = index
            round.arrived = True

    def publish(self, index: int, round: Round) -> None:
        """The reply was checked and holds; who says so though nothing came must be refused."""
        published = self.slots.happened(round.claim, SlotInput.VALIDATE) is not None
        expected = round.arrived and not round.validated and not round.over
        must(published is expected, "published at another time than when it was validated")
        round.validated |= published

    def release(self, index: int, round: Round) -> None:
        released = self.slots.happened(round.claim, SlotInput.RELEASE) is not None
        must(
            released is (round.validated and not round.over),
            "released without a cause, or not at all",
        )
        round.over |= released

    def give_up(self, index: int, round: Round) -> None:
        given_up = self.slots.happened(round.claim, SlotInput.GIVE_UP) is not None
        must(given_up is not round.over, "given up late, or not at all")
        round.over = True

    def check(self) -> None:
        for index, round in enumerate(self.rounds):
            if round.validated and not round.over:
                must(self.buffer(round)[0] == index, "a buffer was overwritten under its consumer")
        busy = {r.claim.number for r in self.rounds if not r.over}
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
    assert explore() > 400


RIGHT = Slots.happened


def with_transition(state: SlotState, happened: SlotInput, following: SlotState) -> object:
    table = {each: dict(row) for each, row in SLOT.transitions.items()}
    table[state][happened] = following
    return StateTable(SlotState, SlotInput, table)


def no_epoch_check(self: Slots[list[int]], claim: Claim, happened: SlotInput) -> list[int] | None:
    return RIGHT(self, replace(claim, epoch=self.entries[claim.number].epoch), happened)


def no_new_epoch(self: Slots[list[int]], claim: Claim, happened: SlotInput) -> list[int] | None:
    moved = RIGHT(self, claim, happened)
    self.entries[claim.number].epoch = 1
    return moved


def arrives_whatever(self: Slots[list[int]], claim: Claim, happened: SlotInput) -> list[int] | None:
    buffer = RIGHT(self, claim, happened)
    return self.entries[claim.number].buffer if happened is SlotInput.ARRIVE else buffer


S, IN = SlotState, SlotInput
MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "ready before it was validated": lambda patch: patch.setattr(
        slots, "SLOT", with_transition(S.ASKED, IN.ARRIVE, S.READY)
    ),
    "ready though nothing has come": lambda patch: patch.setattr(
        slots, "SLOT", with_transition(S.ASKED, IN.VALIDATE, S.READY)
    ),
    "released while it arrives": lambda patch: patch.setattr(
        slots, "SLOT", with_transition(S.ARRIVING, IN.RELEASE, S.FREE)
    ),
    "written again while it is checked": lambda patch: patch.setattr(
        slots, "SLOT", with_transition(S.ARRIVING, IN.ARRIVE, S.ARRIVING)
    ),
    "written again once it is ready": lambda patch: patch.setattr(
        slots, "SLOT", with_transition(S.READY, IN.ARRIVE, S.ARRIVING)
    ),
    "given to another before its consumer is done": lambda patch: patch.setattr(
        slots, "SLOT", with_transition(S.READY, IN.ASK, S.ASKED)
    ),
    "no epoch is checked": lambda patch: patch.setattr(Slots, "happened", no_epoch_check),
    "no epoch ever ends": lambda patch: patch.setattr(Slots, "happened", no_new_epoch),
    "a reply arrives whatever its claim": lambda patch: patch.setattr(
        Slots, "happened", arrives_whatever
    ),
    "a slot that was given up is never free again": lambda patch: patch.setattr(
        slots, "SLOT", with_transition(S.ASKED, IN.GIVE_UP, S.ARRIVING)
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_mutants_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises(BrokenInvariantError):
        explore()
