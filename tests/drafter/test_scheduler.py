"""Turns of verifiers: who waits is drawn for within a bound, whatever the others have asked for."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from draftwire.drafter.scheduler import BatchScheduler
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
        turns: BatchScheduler[str] = BatchScheduler()
        for owner, count in enumerate(counts):
            for session in range(count):
                turns.put(f"busy {owner}", task(session))
        turns.put("single", task(1))
        owners = busy + 1
        single, turn = False, 0
        while not single:
            turn += 1
            drawn, _ = turns.take(batch)
            assert len(drawn) == min(batch, sum(counts) + 1)
            single = any(owner == "single" for owner, _ in drawn)
            for owner, each in drawn:
                turns.put(owner, task(each.session, each.round + 1))
        assert turn <= -(-owners // batch)


def test_an_owner_is_drawn_once_a_turn_and_its_oldest_task_first() -> None:
    turns: BatchScheduler[str] = BatchScheduler()
    for session in (3, 1, 2):
        turns.put("a", task(session))
    turns.put("b", task(9))
    turns.put("c", task(5))
    turns.put("c", task(4))
    assert [(owner, each.session) for owner, each in turns.take(4)[0]] == [
        ("a", 3),
        ("b", 9),
        ("c", 5),
        ("a", 1),
    ]
    assert len(turns) == 2
    assert [(owner, each.session) for owner, each in turns.take(9)[0]] == [("c", 4), ("a", 2)]
    assert not turns
    assert turns.take(1) == ([], None)


def heavy(session: int, tokens: int, round: int = 1) -> DraftTask:
    return DraftTask(session, 0, 1, round, POLICY, 7, 0, (1,) * tokens, 1, 0)


@pytest.mark.parametrize("batch", [2, 3, 5])
def test_a_batch_feeds_a_bounded_number_of_tokens_and_long_ones_take_turns(batch: int) -> None:
    """Every choice of up to four owners' tasks, of which each asks for as much again at once.

    16 tokens a batch; an owner's tasks feed 1, 4, 16 (all that one batch feeds) or 50 (more).
    """
    for sizes in itertools.product((1, 4, 16, 50), repeat=4):
        turns: BatchScheduler[int] = BatchScheduler(16)
        for owner, size in enumerate(sizes):
            for session in (1, 2):
                turns.put(owner, heavy(session, size))
        served: dict[int, list[int]] = {owner: [] for owner in range(4)}
        for number in range(16):
            whole, piece = turns.take(batch)
            fed = [len(each.new_tokens) for _, each in whole]
            assert 1 <= len(whole) + (piece is not None) <= batch
            assert sum(fed) + (16 if piece is not None else 0) <= 32
            assert piece is None or len(piece[1].new_tokens) > 16
            for owner, each in whole:
                served[owner].append(number)
                turns.put(owner, heavy(each.session, sizes[owner], each.round + 1))
            if piece is not None:
                owner, each = piece
                served[owner].append(number)
                assert turns.put(owner, each)  # it waits in its place
            assert len(turns) == 8
        for owner, size in enumerate(sizes):
            longest = max(after - before for before, after in itertools.pairwise(served[owner]))
            assert longest <= (-(-4 // batch) if size <= 16 // min(batch, 4) else 4)


def test_what_is_left_of_a_task_keeps_its_place_and_goes_on_to_its_end() -> None:
    turns: BatchScheduler[str] = BatchScheduler(8)
    for session, tokens in ((1, 20), (2, 3)):
        turns.put("a", heavy(session, tokens))
    fed = []
    while turns:
        whole, piece = turns.take(4)
        fed += [(each.session, len(each.new_tokens)) for _, each in whole]
        if piece is not None:
            fed.append((piece[1].session, 8))
            turns.put("a", heavy(piece[1].session, len(piece[1].new_tokens) - 8))
    assert fed == [(1, 8), (1, 8), (1, 4), (2, 3)]


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
    turns: BatchScheduler[int] = BatchScheduler()
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
            drawn, _ = turns.take(owner)
            assert len(drawn) == min(owner, len(model))
            if len({key[0] for key in model}) == len(drawn) == 2:
                assert {each for each, _ in drawn} == {0, 1}
            for each, drawn_task in drawn:
                assert model.pop((each, drawn_task.session)) is drawn_task
        assert len(turns) == len(model)
        for each in (0, 1):
            waiting = {t.session: t for t in turns.of(each)}
            assert waiting == {key[1]: t for key, t in model.items() if key[0] == each}
