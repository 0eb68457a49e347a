"""The matrix itself: it finds what is wrong, its table of reasons is whole, a part of it holds.

The whole of it is `make faults`; what runs here takes about 30 s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from draftwire.exact.words import Domain, RequestKey
from draftwire.session.reasons import DropReason
from draftwire.session.session_states import State
from draftwire.verifier.pending_rounds import PendingRounds
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import WireVersion
from testing.faults import frames, matrix
from testing.faults.law import Case, OtherCaseError, enumerated, enumerations, shape
from testing.faults.network import Fault, everywhere
from testing.faults.play import play
from testing.faults.requests import TINY_POLICIES, long_request
from testing.faults.scene import DEADLINE, PASS, SESSION_STATE, UNDER_WAY, Aimed, Moment, Scene
from testing.faults.world import Arrivals

V1, V2 = WireVersion.V1, WireVersion.V2
BY_NAME = {fault.name: fault for fault in matrix.FAULTS}

WITH_LAW = [  # a loss of every kind, in the state that it is typical of
    ("dropped", Moment.REPLYING),
    ("delayed past the deadline", Moment.ASKED),
    ("reordered", Moment.REPLYING),
    ("token not drawn from its q", Moment.REPLYING),
    ("drafter killed -9, restarted", Moment.PROPOSED),
    ("drafter restarted, another model", Moment.COMMITTED),
    ("several asked, drafter killed -9", Moment.ASKED),
]


def chosen(version: WireVersion) -> Iterator[tuple[Fault, Moment]]:
    """Every third cell of the faults that have one variant and a request of the usual length.

    Of the rows that say "each", and of those that take longer, a cell each is in other tests here.
    """
    for number, fault in enumerate(matrix.FAULTS):
        for at, moment in enumerate(Moment):
            one = fault.tokens == 40 and " each " not in fault.name
            if one and (number + at + version) % 3 == 0:
                yield fault, moment


def test_there_are_twenty_faults_and_every_state_of_a_session() -> None:
    assert len(BY_NAME) == len(matrix.FAULTS) >= 20
    assert set(SESSION_STATE.values()) == set(State)


@pytest.mark.parametrize("version", [V2, V1])
def test_every_fault_in_every_state_costs_what_it_should(version: WireVersion) -> None:
    """No hang, no wrong, lost or doubled token, the right reason."""
    for fault, moment in chosen(version):
        cell = matrix.run_cell(fault, moment, version, law=False)
        assert not cell.wrong, (fault.name, moment, cell.wrong)


def test_a_dead_connection_is_found_out_and_drafting_resumes() -> None:
    cell = matrix.run_cell(BY_NAME["half-open TCP"], Moment.REPLYING, V2, law=False)
    assert not cell.wrong
    assert set(cell.outcomes) == {"missed_deadline 6, paused 31, connections 2"}


@pytest.mark.parametrize("name", ["drafter killed -9, restarted", "drafter stopped 3 s"])
def test_the_affected_round_takes_its_deadline_and_a_tenth_at_most(name: str) -> None:
    """In virtual time, so exactly; a real clock is read by `make faults`."""
    for moment in (Moment.OPENING, Moment.ASKED, Moment.REPLYING, Moment.REPLIED):
        variants = BY_NAME[name].applies(moment, V2)
        assert not isinstance(variants, str)
        told = play(Scene(moment, V2, long_request(V2), variants[0][1]))
        assert told.misses
        assert told.longest - PASS <= 1.1 * DEADLINE


@pytest.mark.parametrize(("name", "moment"), WITH_LAW)
def test_the_law_is_the_targets_where_rounds_are_lost(name: str, moment: Moment) -> None:
    cell = matrix.run_cell(BY_NAME[name], moment, V2)
    assert not cell.wrong
    assert "law" in cell.held


def test_a_bit_of_each_field_of_a_reply() -> None:
    fault = BY_NAME["a bit of each field, checksums right"]
    cell = matrix.run_cell(fault, Moment.REPLYING, V2, law=False)
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

    found = enumerated(Case(Moment.REPLYING, selecting, TINY_POLICIES[0]))
    assert sum(found.law.values()) == 1
    assert not found.is_the_targets()


def test_one_of_several_that_is_lost_by_what_it_drew_has_another_law() -> None:
    """Its neighbour's is the target's, and the matrix enumerates both."""

    def selecting(scene: Scene, frame: bytes | None) -> Arrivals:
        assert frame is not None
        lost = frames.value(frame, "row 0 token") == 0
        return [] if lost else [(0.0, frame)]

    case = Case(Moment.REPLYING, Aimed(selecting, 2), TINY_POLICIES[0], together=3)
    own, neighbours, both = enumerations(case)
    assert not own.is_the_targets() and neighbours.is_the_targets() and not both.is_the_targets()


def test_a_fault_of_one_that_costs_the_others_fails_the_cell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is whole is given up with what is not."""

    def everything(
        self: PendingRounds, reason: DropReason, detail: str = "", sessions: Any = None
    ) -> None:
        for session, asked in self._asked.items():
            self._results[session] = replace(asked.give_up(reason), detail=detail)

    fault = BY_NAME["several asked, drafter killed -9"]
    assert not matrix.run_cell(fault, Moment.REPLYING, V2, law=False).wrong
    monkeypatch.setattr(PendingRounds, "give_up", everything)
    cell = matrix.run_cell(fault, Moment.REPLYING, V2, law=False)
    assert any("counted" in what for what in cell.wrong)


def test_a_text_that_changes_though_nothing_of_it_was_lost_fails_the_cell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A frame of another request was dropped, and this one's words come from another place."""
    fault = BY_NAME["several asked, a frame dropped"]
    matrix.run_cell(fault, Moment.REPLYING, V2, law=False)  # the texts without a fault
    key = RequestKey.key

    def moved(self: RequestKey, domain: Domain) -> tuple[int, int]:
        low, high = key(self, domain)
        return (low, high) if domain is Domain.PROPOSAL else (low ^ 1, high)

    monkeypatch.setattr(RequestKey, "key", moved)
    cell = matrix.run_cell(fault, Moment.REPLYING, V2, law=False)
    assert any("another text, and lost nothing" in what for what in cell.wrong)


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


def test_an_enumeration_that_is_not_of_its_cell_fails() -> None:
    """A run that is not struck, and runs that end in different ways."""

    def selecting(scene: Scene, frame: bytes | None) -> Arrivals:
        assert frame is not None
        lost = frames.value(frame, "row 0 token") == 0
        return [] if lost else [(0.0, frame)]

    case = Case(Moment.REPLYING, selecting, TINY_POLICIES[0])
    wanted = shape(play(Scene(Moment.REPLYING, V2, long_request(V2), lambda s, f: [])))
    with pytest.raises(OtherCaseError, match="ended as"):
        enumerated(replace(case, wanted=wanted))
    with pytest.raises(OtherCaseError, match="did not strike"):
        enumerated(replace(case, tokens=3))


@pytest.mark.parametrize("policy", TINY_POLICIES)
def test_the_law_of_a_lost_round_in_every_layout_and_at_depth_two(policy: ProposalPolicy) -> None:
    found = enumerated(Case(Moment.ASKED, lambda scene, frame: [], policy))
    assert found.runs > 4
    assert found.is_the_targets()
    assert sum(found.law.values()) == Fraction(1)
    assert set(UNDER_WAY) < set(Moment)
