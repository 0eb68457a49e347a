"""Every state of a world of sessions over slots, each entered once.

A world is copied for each thing that may happen in it. The copies are checked by a replay of
the way to a state without any (``test_slot_worlds``).
"""

from __future__ import annotations

import copy
from array import array
from collections import Counter
from dataclasses import dataclass, field, replace

from draftwire.kernels.rows import RowBlock
from draftwire.session.acked_prefix import AckedPrefix
from draftwire.session.prefix import Prefix
from draftwire.session.proposal import Proposal
from draftwire.session.slot_buffers import ReplySlots, SlotBuffer, SlotHandle
from draftwire.session.slots import Slot
from draftwire.session.verifier_session import VerifierSession
from tests.session.slot_worlds import Move, Request, World


class _Copier:
    """Copies a world; deepcopy takes too long, cannot copy a digest, and loses what a row views."""

    def __init__(self, world: World) -> None:
        self._slots: dict[int, ReplySlots] = {}
        self._proposals: dict[int, Proposal] = {}
        self.world = copy.copy(world)
        self.world.slots = self._of_slots(world.slots)
        self.world.sessions = [self._session(each) for each in world.sessions]
        self.world.requests = [self._request(each) for each in world.requests]

    def _of_slots(self, slots: ReplySlots) -> ReplySlots:
        made = self._slots.get(id(slots))
        if made is None:
            made = self._slots[id(slots)] = ReplySlots.__new__(ReplySlots)
            made.__dict__.update(slots.__dict__)
            made.entries = [
                Slot(
                    SlotBuffer(None if s.buffer.rows is None else s.buffer.rows.copy()),
                    s.state,
                    s.epoch,
                )
                for s in slots.entries
            ]
        return made

    def _session(self, session: VerifierSession) -> VerifierSession:
        made = VerifierSession.__new__(VerifierSession)
        made.__dict__.update(
            session.__dict__, drops=Counter(), _acked=AckedPrefix.__new__(AckedPrefix)
        )
        made._acked.__dict__.update(session._acked.__dict__)
        made._prefix = Prefix.__new__(Prefix)
        made._prefix._tokens = array("i", session._prefix._tokens)
        made._prefix._hash = session._prefix._hash.copy()
        hold = made._handle = SlotHandle(self._of_slots(session._handle.slots))
        held = session._handle._held
        if held is not None:
            hold._held = (self._of_slots(held[0]), held[1])
        if session._pending is not None:
            made._pending = copy.copy(session._pending)
            made._pending.rows = self._copied(session._pending.rows, hold)
        if session._proposal is not None:
            rows = self._copied(session._proposal.rows, hold)
            made._proposal = replace(session._proposal, rows=rows)
            self._proposals[id(session._proposal)] = made._proposal
        return made

    def _copied(self, rows: RowBlock | None, hold: SlotHandle) -> RowBlock | None:
        """Rows in the slot's memory are those in the copy of it, under the lease of the copy."""
        if rows is None or rows.lease is None:
            return rows
        hold.lease.over = rows.lease.over
        slots, claim = hold._held
        counts = slots.entries[claim.number].buffer.rows[: len(rows)]
        return replace(rows, counts=counts, lease=hold.lease)

    def _request(self, request: Request) -> Request:
        made = Request(request.phase, None, request.came, request.answer, request.late)
        if request.slots is not None:
            made.slots = self._of_slots(request.slots)
        if request.proposal is not None:
            made.proposal = self._proposals[id(request.proposal)]
        return made


@dataclass
class Explored:
    """Every state that can be reached, each with the shortest way there."""

    ways: dict[object, tuple[Move, ...]] = field(default_factory=dict)
    steps: int = 0


def explore(begin: World) -> Explored:
    """Enter every state that can be reached; BrokenInvariantError at the first that must not be."""
    found = Explored({begin.key(): ()})
    waiting = [begin]
    for world in waiting:
        way = found.ways[world.key()]
        following, before = _Copier(world).world, world.key()
        for move in list(world.moves()):
            following.do(move)
            found.steps += 1
            key = following.key()
            if key == before:
                continue  # nothing has changed: what is tried next begins here as well
            if key not in found.ways:
                found.ways[key] = (*way, move)
                waiting.append(following)
            following = _Copier(world).world
    return found
