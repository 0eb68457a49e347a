"""The matrix itself: it finds what is wrong, its table of reasons is whole, a part of it holds.

The whole of it is `make faults`; what runs here takes about 15 s.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from draftwire.session.table import State
from draftwire.wire.registry import Layout, WireVersion
from faults import frames, matrix
from faults.law import enumerated, expected
from faults.network import Fault, everywhere
from faults.scene import SESSION_STATE, TINY, UNDER_WAY, Moment, Scene
from faults.world import Arrivals

V1, V2 = WireVersion.V1, WireVersion.V2
BY_NAME = {fault.name: fault for fault in matrix.FAULTS}

WITH_LAW = [  # a loss of every kind, in the state that it is typical of
    ("dropped", Moment.REPLYING),
    ("delayed past the deadline", Moment.ASKED),
    ("reordered", Moment.REPLYING),
    ("token not drawn from its q", Moment.REPLYING),
    ("drafter killed -9, restarted", Moment.PROPOSED),
    ("drafter restarted, another model", Moment.COMMITTED),
]


def small(fault: Fault, moment: Moment, version: WireVersion) -> bool:
    """Whether a cell has one variant: those with one a field take longer."""
    return fault.tokens == 40 and " each " not in fault.name


def test_there_are_twenty_faults_and_every_state_of_a_session() -> None:
    assert len(BY_NAME) == len(matrix.FAULTS) >= 20
    assert set(SESSION_STATE.values()) == set(State)


@pytest.mark.parametrize("version", [V2, V1])
def test_every_fault_in_every_state_costs_what_it_should(version: WireVersion) -> None:
    """All cells with one variant: no hang, no wrong, lost or doubled token, the right reason."""
    for fault in matrix.FAULTS:
        for moment in Moment:
            if small(fault, moment, version):
                cell = matrix.run_cell(fault, moment, version, law=False)
                assert not cell.wrong, (fault.name, moment, cell.wrong)


@pytest.mark.parametrize(("name", "moment"), WITH_LAW)
def test_the_law_is_the_targets_where_rounds_are_lost(name: str, moment: Moment) -> None:
    cell = matrix.run_cell(BY_NAME[name], moment, V2)
    assert not cell.wrong
    assert "law" in cell.held


def test_a_bit_of_each_field_of_a_reply() -> None:
    for name in ("a bit of each field flipped", "a bit of each field, checksums right"):
        cell = matrix.run_cell(BY_NAME[name], Moment.REPLYING, V2, law=False)
        assert not cell.wrong
        assert sum(map(len, cell.outcomes.values())) > 20


# the matrix finds what is wrong


def test_a_fault_that_looks_at_the_draw_has_another_law() -> None:
    """The matrix sees law 4 broken: the reply is lost whenever it drew 0 (the numbers of that
    trap, 1/2 and 1/4, are in tests/verifier/test_laws.py and tests/laws/test_admission.py)."""

    def selecting(scene: Scene, frame: bytes | None) -> Arrivals:
        assert frame is not None
        lost = frames.value(frame, "row 0 token") == 0
        return [] if lost else [(0.0, frame)]

    law = enumerated(Moment.REPLYING, selecting, pinned=False)
    assert sum(law.values()) == 1
    assert law != expected(1)


def test_wrong_numbers_fail_the_cell() -> None:
    def lose_twice(scene: Scene, frame: bytes | None) -> Arrivals:
        scene.after = lambda following: []  # for ever
        return []

    cell = matrix.run_cell(Fault("dropped", everywhere(lose_twice)), Moment.REPLYING, V2, law=False)
    assert any("counted" in what for what in cell.wrong)


def test_a_hang_fails_the_cell() -> None:
    def hang(scene: Scene, frame: bytes | None) -> Arrivals:
        scene.world.waits = 1 << 30
        return []

    cell = matrix.run_cell(Fault("dropped", everywhere(hang)), Moment.REPLYING, V2, law=False)
    assert any("HangError" in what for what in cell.wrong)


def test_the_expected_law_is_a_law() -> None:
    law = expected(1)
    assert sum(law.values()) == Fraction(1)
    assert TINY.policy.layout is Layout.DENSE
    assert set(UNDER_WAY) < set(Moment)
