"""Turns of verifiers: who waits is drawn for within a bound, whatever the others have asked for."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from draftwire.drafter.turns import Turns
from draftwire.session.proposal import DraftTask
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout

POLICY = ProposalPolicy(Layout.DENSE, 3, 1.0)


def task(session: int, round: int = 1) -> DraftTask:
    return DraftTask(session, 0, 1, round, POLICY, 7, 0, (1,), 1, 0)


@pytest.mark.parametrize("batch", [1, 2, 3, 4])
@pytest.mark.parametrize("busy", [1, 2, 3, 5])
def test_one_task_is_drawn_within_the_turns_of_its_peers_whatever_they_ask(
    busy: int, batch: int
) -> None:
    """Every number of tasks of the others up to 6 each, all of which ask again at once."""
    for counts in itertools.product((1, 6), repeat=busy):
        turns: Turns[str] = Turns()
        for owner, count in enumerate(counts):
            for session in range(count):
                turns.put(f"busy {owner}", task(session))
        turns.put("single", task(1))
        owners = busy + 1
        single, turn = False, 0
        while not single:
            turn += 1
            drawn = turns.take(batch)
            assert len(drawn) == min(batch, sum(counts) + 1)
            single = any(owner == "single" for owner, _ in drawn)
            for owner, each in drawn:
                turns.put(owner, task(each.session, each.round + 1))
        assert turn <= -(-owners // batch)


def test_an_owner_is_drawn_once_a_turn_and_its_oldest_task_first() -> None:
    turns: Turns[str] = Turns()
    for session in (3, 1, 2):
        turns.put("a", task(session))
    turns.put("b", task(9))
    turns.put("c", task(5))
    turns.put("c", task(4))
    assert [(owner, each.session) for owner, each in turns.take(4)] == [
        ("a", 3),
        ("b", 9),
        ("c", 5),
        ("a", 1),
    ]
    assert len(turns) == 2
    assert [(owner, each.session) for owner, each in turns.take(9)] == [("c", 4), ("a", 2)]
    assert not turns
    assert turns.take(1) == []


Operation = tuple[str, int, int]
OPERATIONS: list[Operation] = [
    *(("put", owner, session) for owner in (0, 1) for session in (0, 1)),
    *(("drop", owner, session) for owner in (0, 1) for session in (0, 1)),
    ("leave", 0, 0),
    ("leave", 1, 0),
    ("take", 1, 0),
    ("take", 2, 0),
]


def test_every_sequence_of_four_operations_loses_nothing_and_draws_nothing_twice() -> None:
    """Beside the plainest model: one task at most for each owner and session."""
    for operations in itertools.product(OPERATIONS, repeat=4):
        follow(operations)


def follow(operations: Sequence[Operation]) -> None:
    turns: Turns[int] = Turns()
    model: dict[tuple[int, int], DraftTask] = {}
    for round, (what, owner, session) in enumerate(operations, 1):
        if what == "put":
            replaced = (owner, session) in model
            model[owner, session] = task(session, round)
            assert turns.put(owner, model[owner, session]) == replaced
        elif what == "drop":
            assert turns.drop(owner, session) == ((owner, session) in model)
            model.pop((owner, session), None)
        elif what == "leave":
            gone = [key for key in model if key[0] == owner]
            assert turns.drop(owner) == len(gone)
            for key in gone:
                del model[key]
        else:
            drawn = turns.take(owner)
            assert len(drawn) == min(owner, len(model))
            if len({key[0] for key in model}) == len(drawn) == 2:
                assert {each for each, _ in drawn} == {0, 1}
            for each, drawn_task in drawn:
                assert model.pop((each, drawn_task.session)) is drawn_task
        assert len(turns) == len(model)
        for each in (0, 1):
            waiting = {t.session: t for t in turns.of(each)}
            assert waiting == {key[1]: t for key, t in model.items() if key[0] == each}
