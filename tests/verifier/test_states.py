"""P36 to P38 through the real loop: states reach the drafter, and influence q alone (case M13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from draftwire.drafter.config import DrafterConfig
from draftwire.drafter.program import DrafterProgram
from draftwire.errors import ConfigurationError
from draftwire.session.sent_states import SentStates
from draftwire.verifier.generate import Generation, generate
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import HiddenDtype, Layout
from testing.harness.messages import STATES_STEP
from testing.toys.models import ToyDrafter, ToyRequest, ToyTarget, mixed
from testing.toys.states import Rows, StateDrafter, StateTarget

V = 7
TABLE = mixed(V, 3)
POLICY = ProposalPolicy(Layout.SPARSE, 3, 1.0, support=V)
PROMPT = (1, 4, 2)


def drafter_of(engine: ToyDrafter, target: ToyTarget, **options: object) -> LocalDrafter:
    return LocalDrafter(DrafterProgram(engine, DrafterConfig()), target, **options)


def text_of(
    target: ToyTarget, client: LocalDrafter, prompt: Sequence[int] = PROMPT, length: int = 40
) -> Generation[ToyRequest]:
    sampling = Sampling(seed=5, max_tokens=length)
    generation = generate(target, client, prompt, sampling, POLICY)
    list(generation)
    return generation


def accepted(generation: Generation[ToyRequest]) -> float:
    return generation.report.accepted / generation.report.verified


@pytest.mark.parametrize("dtype", [HiddenDtype.BFLOAT16, HiddenDtype.FLOAT32], ids=lambda d: d.name)
def test_the_right_states_are_read_and_acceptance_rises(dtype: HiddenDtype) -> None:
    target, engine = StateTarget(TABLE, V), StateDrafter(TABLE, V)
    with drafter_of(engine, target, state_dtype=dtype) as client:
        with_states = text_of(target, client)
        assert client.agreed is not None
        assert client.agreed.states is not None
        row = client.agreed.states.row_bytes
        assert client.agreed.states.dtype is dtype
    assert row == 2 * 2 * (2 if dtype is HiddenDtype.BFLOAT16 else 4)
    # No state is known before the first pass of the target; from the second round on all are.
    assert engine.flat == 3
    assert engine.informed > 10
    # After that every draft is the target's own.
    report = with_states.report
    assert report.accepted >= report.verified - 3
    # Every committed token but the last ones, once each.
    first, known = engine.taken[0]
    assert first == 0
    assert known >= len(PROMPT)
    assert [begin for begin, _ in engine.taken[1:]] == [
        begin + count for begin, count in engine.taken[:-1]
    ]
    sent = sum(count for _, count in engine.taken)
    assert with_states.report.traffic.states == client.counters.state_bytes == sent * row
    none = StateDrafter(TABLE, V)
    with drafter_of(none, target, state_rows=0) as client:
        without = text_of(target, client)
        assert client.agreed is not None
        assert client.agreed.states is None
    assert none.informed == 0
    assert without.report.traffic.states == 0
    assert accepted(without) < accepted(with_states) - 0.2


def test_no_row_is_of_a_rejected_draft() -> None:
    """A drafter that drafts badly is corrected often, and reads the committed text all the same."""
    target = StateTarget(TABLE, V)
    engine = StateDrafter(mixed(V, 8), V)
    with drafter_of(engine, target) as client:
        generation = text_of(target, client)
    assert generation.report.rejected > 5
    assert engine.contexts == []
    assert engine.flat == 3  # every later round had all states, of the tokens that were committed


class Checked(StateDrafter):
    """Holds what it reads against what it was fed."""

    def forward(self, batch):  # type: ignore[no-untyped-def]
        for context, tokens in batch:
            whole = [*context.tokens, *tokens]
            for position, token in context.tokens_read.items():
                assert whole[position] == token
        return super().forward(batch)


def test_what_is_read_is_what_was_committed() -> None:
    target, engine = StateTarget(TABLE, V), Checked(mixed(V, 8), V)
    with drafter_of(engine, target) as client:
        assert text_of(target, client).report.rejected > 5
    assert len(engine.taken) > 5


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_a_long_prompt_s_states_travel_in_several_steps(rows: int) -> None:
    prompt = [each % V for each in range(20)]
    target, engine = StateTarget(TABLE, V), StateDrafter(TABLE, V)
    with drafter_of(engine, target, state_rows=rows) as client:
        generation = text_of(target, client, prompt, 60)
    assert all(count <= rows for _, count in engine.taken)
    assert engine.taken[0] == (0, rows)
    assert [begin for begin, _ in engine.taken[1:]] == [
        begin + count for begin, count in engine.taken[:-1]
    ]
    if rows > 2:  # otherwise it never catches up with the text, and drafts without
        assert engine.informed > 0
    assert generation.report.drafted_rounds > 5
    assert engine.flat > 3


def test_the_drafter_s_limit_of_rows_holds_as_well() -> None:
    target, engine = StateTarget(TABLE, V), StateDrafter(TABLE, V)
    program = DrafterProgram(engine, DrafterConfig(state_rows=2))
    with LocalDrafter(program, target) as client:
        text_of(target, client, [1] * 9)
        assert client.agreed is not None
        assert client.agreed.hidden_rows == 2
    assert program.counters.state_rows == sum(count for _, count in engine.taken) > 9


def test_states_that_are_not_finite_are_not_sent_and_nothing_behind_them() -> None:
    def spoiled(first: int, rows: Rows) -> tuple[int, Rows]:
        rows = rows.copy()
        for position in range(first, first + len(rows)):
            if position >= 6:
                rows[position - first, position % 4] = (np.nan, np.inf, -np.inf)[position % 3]
        return first, rows

    target, engine = StateTarget(TABLE, V, changed=spoiled), StateDrafter(TABLE, V)
    with drafter_of(engine, target) as client:
        generation = text_of(target, client)
        assert client.counters.connections == 1
        assert not any(client.counters.remote_errors.values())
    assert max(first + count for first, count in engine.taken) == 6
    assert engine.informed > 0
    assert generation.report.drafted_rounds == generation.report.rounds - 1
    assert generation.report.tokens == 40


def test_states_that_come_late_are_used_from_then_on() -> None:
    calls = []

    def late(first: int, rows: Rows) -> tuple[int, Rows]:
        calls.append(first)
        return (first, rows) if len(calls) > 4 else (first, rows[:0])

    target, engine = StateTarget(TABLE, V, changed=late), StateDrafter(TABLE, V)
    with drafter_of(engine, target) as client:
        generation = text_of(target, client)
    assert engine.taken[0][0] == 0
    assert engine.flat >= 3 * 4
    assert engine.informed > 6
    assert generation.report.misses == {}


def test_a_prefix_that_was_not_computed_again_is_left_out() -> None:
    """The rows begin where the target's do, and the drafter drafts with those it has."""

    def from_four(first: int, rows: Rows) -> tuple[int, Rows]:
        return max(first, 4), rows[max(4 - first, 0) :]

    target, engine = StateTarget(TABLE, V, changed=from_four), StateDrafter(TABLE, V)
    with drafter_of(engine, target) as client:
        generation = text_of(target, client, [1] * 9)
    assert engine.taken[0] == (4, 5)
    assert engine.informed == 0
    assert len(engine.taken) > 5
    assert generation.report.misses == {}
    assert generation.report.accepted > 0


@pytest.mark.parametrize(
    ("layers", "target", "field"),
    [
        ((1, 4), StateTarget(TABLE, V), "layers 1, 4 of 2 elements; this target has layers 0 to 3"),
        ((1, 3), StateTarget(TABLE, V, state_width=5), "of 2 elements; this target has layers 0"),
    ],
)
def test_a_target_of_another_shape_is_named_at_connect(
    layers: tuple[int, ...], target: StateTarget, field: str
) -> None:
    engine = StateDrafter(TABLE, V, layers=layers)
    with drafter_of(engine, target) as client:
        with pytest.raises(ConfigurationError, match=field):
            client.connect()
        generation = text_of(target, client)
    assert generation.report.target_only_rounds == generation.report.rounds == 40
    assert any("this target has" in note for note in generation.report.notes)


@pytest.mark.parametrize("target", [ToyTarget(TABLE, V), StateTarget(TABLE, V, state_layers=0)])
def test_a_target_without_states_is_drafted_for_without(target: ToyTarget) -> None:
    engine = StateDrafter(TABLE, V)
    with drafter_of(engine, target) as client:
        generation = text_of(target, client)
    assert engine.taken == []
    assert generation.report.drafted_rounds == generation.report.rounds - 1


def test_a_drafter_that_reads_none_is_not_sent_any() -> None:
    target, engine = StateTarget(TABLE, V), ToyDrafter(TABLE, V)
    with drafter_of(engine, target) as client:
        generation = text_of(target, client)
    assert target.asked == []
    assert generation.report.traffic.states == 0
    assert accepted(generation) > 0.9


class Failing(StateDrafter):
    """Fails once, in the pass after the n-th."""

    fails_at = 6

    def forward(self, batch):  # type: ignore[no-untyped-def]
        if len(self.batches) == self.fails_at:
            self.fails_at = -1
            raise RuntimeError("out of memory")
        return super().forward(batch)


def test_a_drafter_that_lost_its_states_asks_for_them_again() -> None:
    target, engine = StateTarget(TABLE, V), Failing(TABLE, V)
    with drafter_of(engine, target) as client:
        generation = text_of(target, client)
    misses = {reason.name: count for reason, count in generation.report.misses.items()}
    # The proposal in which it failed, and one that built on states which are gone.
    assert {"DECLINED_INTERNAL": 1, "LOST_STATE": 1}.items() <= misses.items()
    assert set(misses) <= {"DECLINED_INTERNAL", "LOST_STATE", "PAUSED"}
    again = [begin for begin, _ in engine.taken].count(0)
    assert again == 2
    assert engine.informed > 20
    assert accepted(generation) > 0.6


def test_depth_and_layout_are_the_same_with_states_and_without() -> None:
    """P38: what is asked for does not follow from states."""
    asked = []
    for rows in (0, 256):
        target, engine = StateTarget(TABLE, V), StateDrafter(TABLE, V)
        with drafter_of(engine, target, state_rows=rows) as client:
            report = text_of(target, client).report
        asked.append({(engine.vocab_size, len(report.proposed_by_position))})
    assert asked[0] == asked[1]


def test_fewer_rows_are_sent_after_a_lost_round_and_more_again() -> None:
    sent = SentStates()
    assert sent.share(256) == 256
    sent.lost(replace(STATES_STEP, hidden_rows=256))
    assert (sent.share(256), sent.end) == (128, 0)
    sent.lost(replace(STATES_STEP, hidden_rows=1))
    assert sent.share(256) == 1
    sent.lost(replace(STATES_STEP, hidden_rows=0, hidden=b""))
    assert sent.share(256) == 1
    sent.shown(replace(STATES_STEP, base=4, hidden_rows=1))
    assert (sent.share(256), sent.end) == (2, 5)
    for _ in range(9):
        sent.shown(replace(STATES_STEP, hidden_rows=0))
    assert (sent.share(256), sent.end) == (256, 5)
