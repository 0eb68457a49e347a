"""Where replies lie: preflighted before it is allocated, one proposal a slot, given back always."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.errors import ConfigurationError, ReleasedError
from draftwire.session.slot_buffers import ReplySlots, SlotPlan
from draftwire.session.slots import SlotState
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.miss import Miss, MissReason
from draftwire.wire.agreement import Agreed
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout, LayoutSet, Outcome
from testing.harness.paths import drafting
from testing.toys.models import ToyDrafter, ToyTarget, mixed
from tests.conftest import POISON

V = 11
DENSE = ProposalPolicy(Layout.DENSE, 4, 1.0)


def agreed_of(**changes: object) -> Agreed:
    engine, target = ToyDrafter(mixed(V, 1), V), ToyTarget(mixed(V, 1), V)
    with LocalDrafter(DrafterProgram(engine, DrafterConfig()), target) as client:
        return replace(client.connect(), **changes)  # type: ignore[arg-type]


def reserved(slots: ReplySlots) -> int:
    """Bytes of all slots' dense replies."""
    rows = [slot.buffer.rows for slot in slots.entries]
    return sum(each.nbytes for each in rows if each is not None)


def test_the_default_reserves_what_is_used_and_the_origins_plan_has_its_size() -> None:
    """20,684,800 bytes for two dense batches of four requests, depth five, 129,280 tokens.

    A session has one proposal in flight, so one batch is what is reserved by itself: half of that.
    """
    assert SlotPlan() == SlotPlan(in_flight=1, requests=4, depth=5)
    for plan, size in ((SlotPlan(), 20_684_800 // 2), (SlotPlan(in_flight=2), 20_684_800)):
        assert reserved(ReplySlots.planned(agreed_of(vocab_size=129_280), plan)) == size
    assert len(ReplySlots.planned(agreed_of(), SlotPlan(in_flight=2))) == 8
    slots = ReplySlots.planned(agreed_of(), SlotPlan())
    assert len(slots) == slots.free == 4
    rows = [slot.buffer.rows for slot in slots.entries]
    assert all(each is not None and each.shape == (5, V) for each in rows)
    assert reserved(slots) == 4 * 5 * V * 4  # slots, positions, ids, bytes of a count


@pytest.mark.parametrize(
    ("plan", "changes", "says"),
    [
        (SlotPlan(requests=5), {}, "max_sessions of 4"),
        (SlotPlan(requests=4), {"max_slots": 3}, "max_slots of 3"),
        (SlotPlan(depth=9), {}, "max_depth of 8"),
    ],
)
def test_a_plan_over_the_agreed_limits_is_refused_before_anything_is_allocated(
    plan: SlotPlan, changes: dict[str, int], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed = agreed_of(**changes)
    monkeypatch.setattr(np, "empty", None)
    with pytest.raises(ConfigurationError, match=says):
        ReplySlots.planned(agreed, plan)
    for name in ("in_flight", "requests", "depth"):
        with pytest.raises(ConfigurationError, match=name):
            SlotPlan(**{name: 0})


def test_the_slots_stay_when_a_connection_comes_back_with_the_same_shape() -> None:
    agreed = agreed_of()
    slots = ReplySlots.planned(agreed)
    assert ReplySlots.planned(agreed, None, slots) is slots
    assert ReplySlots.planned(replace(agreed, max_depth=3), None, slots) is not slots
    sparse = ReplySlots.planned(replace(agreed, layouts=LayoutSet.SPARSE), None, slots)
    assert all(slot.buffer.rows is None for slot in sparse.entries)


def test_a_dense_proposal_lies_in_its_slot_until_its_round_is_over() -> None:
    """Committed, given up, cancelled or cut off: every slot is free afterwards."""
    target, engine = ToyTarget(mixed(V, 1), V), ToyDrafter(mixed(V, 1), V)
    with drafting("memory", engine, target) as client:
        requests = [client.open((1, n), n) for n in range(4)]
        for _ in range(3):
            proposals = client.propose_all([(each, DENSE) for each in requests])
            slots = client.slots
            assert slots is not None and slots.free == len(slots) - 4
            bases = {id(slot.buffer.rows) for slot in slots.entries}
            for proposal in proposals:
                assert not isinstance(proposal, Miss)
                assert all(
                    any(np.shares_memory(row.counts, slot.buffer.rows) for slot in slots.entries)
                    for row in proposal.rows
                )
            used = [s.state for s in slots.entries if s.state is not SlotState.FREE]
            assert used == [SlotState.READY] * 4 and len(bases) == len(slots)
            for request, proposal in zip(requests, proposals, strict=True):
                assert not isinstance(proposal, Miss)
                request.commit(Outcome.BONUS, 4, [*proposal.tokens, 1])
            assert slots.free == len(slots)
        requests[0].propose(DENSE)
        requests[0].asking.give_up()
        requests[0].asking.commit(0, Outcome.TARGET_ONLY, 1)
        requests[1].propose(DENSE)
        requests[1].close()
        requests[2].propose(DENSE)
        requests[2].asking.reset()
        assert slots.free == len(slots)
        assert client.slots is slots


def test_a_request_more_than_the_slots_were_planned_for_is_target_only() -> None:
    target, engine = ToyTarget(mixed(V, 1), V), ToyDrafter(mixed(V, 1), V)
    plan = SlotPlan(requests=1, depth=2)
    with LocalDrafter(DrafterProgram(engine, DrafterConfig()), target, slots=plan) as client:
        first, second = client.open((1,), 1), client.open((1,), 2)
        shallow = first.propose(DENSE)
        assert not isinstance(shallow, Miss) and len(shallow.tokens) == 2
        with pytest.raises(ConfigurationError, match="depth is 3, and the slots hold 2"):
            second.asking.ask(replace(DENSE, depth=3), 0.0, 1.0)
        refused = second.propose(DENSE)
        assert isinstance(refused, Miss) and refused.reason is MissReason.NO_SLOT


@pytest.mark.parametrize("ends", ["committed", "given up", "reset", "closed"])
def test_a_dense_row_is_not_read_when_its_round_is_over(ends: str) -> None:
    """Not by its row; an array that was taken out of it is spoiled in every test of this suite."""
    target, engine = ToyTarget(mixed(V, 1), V), ToyDrafter(mixed(V, 1), V)
    with drafting("memory", engine, target) as client:
        request = client.open((1, 2), 7)
        proposal = request.propose(DENSE)
        assert not isinstance(proposal, Miss)
        taken = [row.counts for row in proposal.rows]
        assert [int(counts.sum()) for counts in taken] == [1 << 24] * 4
        match ends:
            case "committed":
                request.commit(Outcome.BONUS, 4, [*proposal.tokens, 1])
            case "given up":
                request.asking.give_up()
            case "reset":
                request.asking.reset()
            case _:
                request.close()
        for row, counts in zip(proposal.rows, taken, strict=True):
            with pytest.raises(ReleasedError):
                row.of(0)
            assert (counts == POISON).all()


def test_a_sparse_row_stays_when_its_round_is_over() -> None:
    """It has memory of its own, whatever the slots are for."""
    target, engine = ToyTarget(mixed(V, 1), V), ToyDrafter(mixed(V, 1), V)
    with drafting("memory", engine, target) as client:
        request = client.open((1, 2), 7)
        proposal = request.propose(ProposalPolicy(Layout.SPARSE, 4, 1.0, support=4))
        assert not isinstance(proposal, Miss)
        before = [row.exact() for row in proposal.rows]
        request.commit(Outcome.BONUS, 4, [*proposal.tokens, 1])
        assert [row.exact() for row in proposal.rows] == before
