"""Sessions over shared slots: every order of events to the end, and the mutants it must catch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from draftwire.errors import ReleasedError
from draftwire.kernels.rows import Lease, QRow
from draftwire.session.pending_round import PendingRound
from draftwire.session.proposal import Dropped
from draftwire.session.reasons import DropReason
from draftwire.session.slot_buffers import ReplySlots, SlotBuffer, SlotHandle
from draftwire.session.slots import SLOT, Claim, SlotInput, Slots, SlotState
from draftwire.session.verifier_session import VerifierSession
from tests.session.slot_explorer import Explored, explore
from tests.session.slot_replies import WHOLE
from tests.session.slot_worlds import SPARSE, BrokenInvariantError, Move, World

CONTENDED = frozenset({"ask", "give up", "accept", "cancel", "open", WHOLE, f"end of {WHOLE}"})
"""What happens among three sessions that share two slots."""


@cache
def two_sessions() -> tuple[Explored, frozenset[tuple[SlotState, SlotInput]]]:
    """All that can become of two sessions over two slots; and what was seen to happen to slots."""
    happened: set[tuple[SlotState, SlotInput]] = set()
    ask, move = Slots.ask, Slots.happened

    def asked(self: Slots[Any]) -> Claim | None:
        states = [slot.state for slot in self.entries]
        claim = ask(self)
        if claim is not None:
            happened.add((states[claim.number], SlotInput.ASK))
        return claim

    def seen(self: Slots[Any], claim: Claim, what: SlotInput) -> Any:
        state = self.entries[claim.number].state
        moved = move(self, claim, what)
        if moved is not None:
            happened.add((state, what))
        return moved

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Slots, "ask", asked)
        patch.setattr(Slots, "happened", seen)
        return explore(World()), frozenset(happened)


def test_two_sessions_over_two_slots_keep_every_invariant_whatever_happens() -> None:
    """The search ends by itself: nothing leads out of the states that it has entered."""
    found, _ = two_sessions()
    assert len(found.ways) > 500


def test_three_sessions_share_two_slots_and_whoever_finds_none_is_told() -> None:
    found = explore(World(3, CONTENDED))
    assert len(found.ways) > 500


def test_sparse_replies_have_memory_of_their_own() -> None:
    found = explore(World(policy=SPARSE))
    assert len(found.ways) > 500


def test_every_entry_of_the_table_is_used_by_real_sessions() -> None:
    """Every part of it is needed."""
    _, happened = two_sessions()
    assert happened == {(s, what) for s, row in SLOT.transitions.items() for what in row}
    assert {what for _, what in happened} == set(SlotInput)


def test_the_states_are_those_of_worlds_that_were_never_copied() -> None:
    """The explorer copies worlds; each state is reached again without, and is the same."""
    found, _ = two_sessions()
    key_of = {way: key for key, way in found.ways.items()}
    inner = {way[:-1] for way in key_of if way}
    for way in key_of:
        if way not in inner:
            _replay(way, key_of)


def _replay(way: Sequence[Move], key_of: dict[tuple[Move, ...], object]) -> None:
    world = World()
    for end, move in enumerate(way, 1):
        world.do(move)
        assert world.key() == key_of[tuple(way[:end])]


# mutants


def _before(owner: type, name: str, extra: Callable[[Any], None]) -> Callable[..., Any]:
    """A method that does something else first."""
    method = getattr(owner, name)

    def changed(self: Any, *arguments: Any, **named: Any) -> Any:
        extra(self)
        return method(self, *arguments, **named)

    return changed


def _after(owner: type, name: str, extra: Callable[[Any], None]) -> Callable[..., Any]:
    """A method that does something else afterwards."""
    method = getattr(owner, name)

    def changed(self: Any, *arguments: Any, **named: Any) -> Any:
        result = method(self, *arguments, **named)
        extra(self)
        return result

    return changed


def _free(hold: SlotHandle) -> None:
    assert hold._held is not None
    slots, claim = hold._held
    slots.happened(claim, SlotInput.RELEASE)


def _forget(hold: SlotHandle) -> None:
    hold._held, hold.lease = None, Lease()


def _end_without(step: str) -> Callable[[SlotHandle, SlotInput], None]:
    def end(self: SlotHandle, how: SlotInput) -> None:
        if self._held is None:
            return
        if step != "withdraw":
            self.lease.end()
        if step != "free":
            slots, claim = self._held
            slots.happened(claim, how)
        if step != "forget":
            self._held = None
        self.lease = Lease()

    return end


def _moved_with_the_connection(self: VerifierSession, agreed: Any, slots: ReplySlots) -> None:
    if self._handle._held is not None:
        self._handle._held = (slots, self._handle._held[1])
    self._agreed, self._handle.slots = agreed, slots


def _everything_gone(self: VerifierSession) -> Dropped | None:
    gone = self._pending is not None or self._proposal is not None
    dropped = self.give_up(DropReason.DISCONNECTED) if gone else None
    self._acked.end()
    self._agreed = None
    return dropped


def _nothing_gone(self: VerifierSession) -> Dropped | None:
    self._acked.end()
    self._agreed = None
    return None


def _cleared(slots: ReplySlots) -> ReplySlots:
    for slot in slots.entries:
        slot.state, slot.epoch = SlotState.FREE, slot.epoch + 1
    return slots


def _as_new(agreed: Any, plan: Any, before: ReplySlots | None = None) -> ReplySlots:
    """The slots of the connection before, for the next one, held or not."""
    slots = _PLANNED(agreed, plan, before)
    return _cleared(slots) if slots is before else slots


_PLANNED = ReplySlots.planned
_ARRIVE = SlotHandle.arrive


def _anywhere(self: SlotHandle) -> SlotBuffer:
    """Always into the first slot's memory."""
    _ARRIVE(self)
    return self.slots.entries[0].buffer


def _without_memory(
    self: PendingRound, reply: Any, received: Any, out: Any = None, lease: Any = None
) -> None:
    _HOLD(self, reply, received, None, lease)


def _without_lease(
    self: PendingRound, reply: Any, received: Any, out: Any = None, lease: Any = None
) -> None:
    _HOLD(self, reply, received, out, None)


_HOLD = PendingRound.hold

MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "a slot is taken before it is known that the round may be asked": (
        VerifierSession,
        "ask",
        _before(VerifierSession, "ask", lambda session: session._handle.slots.ask()),
    ),
    "two rounds are given one slot": (
        Slots,
        "ask",
        _before(Slots, "ask", lambda slots: setattr(slots.entries[0], "state", SlotState.FREE)),
    ),
    "released as soon as it is ready": (
        SlotHandle,
        "publish",
        _after(SlotHandle, "publish", _free),
    ),
    "ready when the reply is there and its end is not": (
        SlotHandle,
        "arrive",
        _after(
            SlotHandle,
            "arrive",
            lambda hold: hold._held[0].happened(hold._held[1], SlotInput.VALIDATE),
        ),
    ),
    "ready before it was audited": (VerifierSession, "_audit_draws", lambda self, flight: None),
    "a COMPLETE for another reply is as good": (
        PendingRound,
        "check_whole",
        lambda self, complete: None,
    ),
    "another reply to the same round is a duplicate": (
        PendingRound,
        "check_same",
        lambda self, received: None,
    ),
    "a duplicate is put into the slot again": (
        VerifierSession,
        "_is_again",
        lambda self, *_: False,
    ),
    "what is late is taken for the round in flight": (
        VerifierSession,
        "_is_stale",
        lambda self, _: False,
    ),
    "giving up forgets to release": (SlotHandle, "give_up", _forget),
    "a commit forgets to release": (SlotHandle, "release", _forget),
    "the slot of a round that is over is not freed": (SlotHandle, "_end", _end_without("free")),
    "the hold outlives its round": (SlotHandle, "_end", _end_without("forget")),
    "rows are lent beyond their round": (SlotHandle, "_end", _end_without("withdraw")),
    "rows in a slot do not know that they are lent": (PendingRound, "hold", _without_lease),
    "a withdrawn round keeps its slot": (VerifierSession, "_withdraw", lambda self: None),
    "a lost round keeps its slot": (
        VerifierSession,
        "_forget",
        lambda self: self.__dict__.update(_pending=None, _proposal=None),
    ),
    "a connection takes whole proposals with it": (
        VerifierSession,
        "disconnected",
        _everything_gone,
    ),
    "a connection takes nothing with it": (VerifierSession, "disconnected", _nothing_gone),
    "a hold moves into the next connection's slots": (
        VerifierSession,
        "connected",
        _moved_with_the_connection,
    ),
    "the next connection begins with every slot free": (
        ReplySlots,
        "planned",
        staticmethod(_as_new),
    ),
    "every reply lies in the first slot": (SlotHandle, "arrive", _anywhere),
    "a reply does not lie in its slot": (PendingRound, "hold", _without_memory),
    "no slot is ever full": (Slots, "free", property(lambda self: len(self))),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_mutants_of_sessions_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[name])
    with pytest.raises(BrokenInvariantError):
        explore(World())


SPARSE_MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "an answer is not audited": (PendingRound, "audit", lambda self: 0),
    "it is not late either": (VerifierSession, "_is_stale", lambda self, _: False),
    "it needs no slot": (SlotHandle, "arrive", lambda self: SlotBuffer()),
}


@pytest.mark.parametrize("name", SPARSE_MUTANTS)
def test_the_mutants_of_sparse_sessions_are_caught(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*SPARSE_MUTANTS[name])
    with pytest.raises(BrokenInvariantError):
        explore(World(policy=SPARSE))


# a row that was lent


def test_a_withdrawn_row_says_why_it_cannot_be_read() -> None:
    lease = Lease()
    row = QRow(2, None, np.array([1 << 23, 1 << 23], np.int32), lease)
    assert row.of(0) == 1 << 23
    lease.end()
    for read in (lambda: row.counts, lambda: row.of(0), row.exact):
        with pytest.raises(ReleasedError, match="round that is over"):
            read()
    with pytest.raises(AttributeError):
        row.nothing  # type: ignore[attr-defined]  # noqa: B018
