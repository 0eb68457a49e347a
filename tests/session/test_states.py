"""The sessions' halves of hidden states (P37, M13): sent, sent again, and asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.session.drafter_session import DrafterSession
from draftwire.session.proposal import DraftTask, Dropped, Proposal
from draftwire.session.reasons import DropReason
from draftwire.session.sent_states import NO_STATES, SentStates, StateRows
from draftwire.wire.agreement import Agreed, agree
from draftwire.wire.messages import Step
from draftwire.wire.registry import Feature, HiddenDtype, Outcome, Role
from testing.harness.joined import PROMPT, SPARSE, Joined, error_of, hello

ROW = 2 * 2  # one layer of two elements in bfloat16
SHAPE = {"hidden_rows": 2, "hidden_dtype": HiddenDtype.BFLOAT16, "hidden_width": 2}
OFFER = {**SHAPE, "features": Feature.STATES, "max_step_bytes": 1 << 12}


def agreed() -> Agreed:
    reader = hello(Role.DRAFTER, **OFFER, hidden_layers=(1,))
    return agree(hello(Role.VERIFIER, **OFFER), reader)


def rows(first: int, count: int, value: int = 1) -> StateRows:
    return StateRows(first, count, bytes([value]) * ROW * count)


def ask(joined: Joined, states: StateRows = NO_STATES) -> Step:
    return joined.asking.ask(SPARSE, 0.0, 1.0, states=states)


def answered(joined: Joined, step: Step) -> Proposal:
    """Let the drafter answer a STEP, and the verifier take it."""
    result = joined.take(joined.answer(step))
    assert isinstance(result, Proposal)
    return result


def whole_round(joined: Joined, states: StateRows = NO_STATES) -> Step:
    step = ask(joined, states)
    joined.commit(answered(joined, step))
    return step


@pytest.fixture
def joined() -> Joined:
    return Joined(agreed())


def test_rows_are_those_behind_the_last_that_a_proposal_has_shown(joined: Joined) -> None:
    asking = joined.asking
    assert asking.states_wanted == (0, 2)
    first = ask(joined, rows(0, 2))
    assert (first.base, first.hidden_rows, first.hidden) == (0, 2, b"\1" * 2 * ROW)
    joined.commit(answered(joined, first), 1)
    assert asking.states_wanted == (2, 2)
    second = ask(joined, rows(2, 2))
    # The tokens begin with those of the rows, which the drafter has; they are compared.
    assert second.base == 2
    assert second.tokens == asking.tokens[2:]
    answered(joined, second)


def test_rows_of_a_lost_round_are_sent_again_fewer_at_a_time(joined: Joined) -> None:
    asking = joined.asking
    whole_round(joined)
    lost = ask(joined, rows(0, 2))
    asking.give_up(DropReason.MISSED_DEADLINE)
    asking.commit(0, Outcome.TARGET_ONLY, 4)
    assert asking.states_wanted == (0, 1)
    again = whole_round(joined, rows(0, 1))
    assert (again.base, again.tokens[0]) == (0, PROMPT[0])
    assert asking.states_wanted == (1, 2)
    assert lost.hidden_rows == 2


def test_a_new_generation_begins_with_the_first_row(joined: Joined) -> None:
    asking = joined.asking
    whole_round(joined, rows(0, 2))
    assert asking.states_wanted[0] == 2
    asking.disconnected()
    assert asking.states_wanted == (0, 0)
    asking.connected(joined.agreed)
    assert asking.states_wanted == (0, 2)
    opening = ask(joined)  # none of them at hand
    assert (opening.generation, opening.base, opening.hidden_rows) == (2, 0, 0)
    asking.give_up()
    asking.commit(0, Outcome.TARGET_ONLY, 4)
    assert asking.states_wanted[0] == 0


def test_rows_whose_tokens_the_step_does_not_begin_with_stay_here(joined: Joined) -> None:
    opening = ask(joined, rows(1, 1))
    assert (opening.base, opening.hidden_rows, opening.hidden) == (0, 0, b"")


def test_without_states_agreed_none_are_wanted() -> None:
    assert Joined().asking.states_wanted == (0, 0)


# the drafter's half ------------------------------------------------------------------------------


def taken(session: DrafterSession, step: Step) -> DraftTask:
    task = session.apply(step)
    assert isinstance(task, DraftTask)
    return task


def test_a_task_holds_the_rows_and_a_retry_is_compared_with_them(joined: Joined) -> None:
    session = DrafterSession(1, joined.agreed)
    step = ask(joined, rows(0, 2))
    task = taken(session, replace(step, hidden=memoryview(bytearray(step.hidden))))
    assert (task.states_from, task.hidden) == (0, step.hidden)
    assert type(task.hidden) is bytes
    assert session.apply(step) == []
    with pytest.raises(ProtocolError) as caught:
        session.apply(replace(step, hidden=b"\2" * len(step.hidden)))
    assert caught.value.code is ProtocolErrorCode.DUPLICATE_ROUND


def test_states_that_were_lost_are_asked_for_again(joined: Joined) -> None:
    """And the session goes on: the verifier opens a new generation and sends all of them."""
    whole_round(joined, rows(0, 2))
    joined.table[1].lose_states()
    step = ask(joined, rows(2, 1))
    answer = joined.answer(step)
    assert error_of(answer) is ProtocolErrorCode.UNKNOWN_PREFIX
    dropped = joined.take(answer)
    assert isinstance(dropped, Dropped)
    assert (dropped.reason, dropped.detail) == (DropReason.LOST_STATE, "unknown_prefix base")
    joined.asking.commit(0, Outcome.TARGET_ONLY, 4)
    assert joined.asking.states_wanted[0] == 0
    again = ask(joined, rows(0, 1))
    assert (again.generation, again.base) == (2, 0)
    answered(joined, again)


def test_a_session_that_was_sent_none_has_none_to_lose(joined: Joined) -> None:
    whole_round(joined)
    joined.table[1].lose_states()
    assert ask(joined).base > 0


def test_a_share_is_never_nothing_and_never_over_what_was_agreed() -> None:
    sent = SentStates()
    step = Joined(agreed()).asking.ask(SPARSE, 0.0, 1.0, states=rows(0, 1))
    for _ in range(3):
        sent.lost(step)
    assert sent.share(5) == 1
    for _ in range(5):
        sent.shown(step)
    assert (sent.share(5), sent.end) == (5, 1)
