"""What a drafter refuses: each violation of P9 and P10 by its code, and nothing has changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.kernels.rows import QRow
from draftwire.session.prefix import Prefix
from draftwire.session.proposal import NO_RIDER, Draft, Proposal
from draftwire.session.session_states import State
from draftwire.wire.messages import Cancel, Commit, CommitRider, ErrorMessage, Reset, Step
from draftwire.wire.registry import Outcome, Status
from testing.harness.joined import (
    DENSE,
    PROMPT,
    SPARSE,
    VOCABULARY,
    Joined,
    error_of,
    status_of,
    unpacked,
)

CODE = ProtocolErrorCode


def digest(tokens: tuple[int, ...]) -> bytes:
    return Prefix(tokens).digest()


def with_tokens(step: Step, tokens: tuple[int, ...]) -> Step:
    """The same STEP for another committed prefix, its digest made to match."""
    return replace(
        step,
        tokens=tokens[step.base :],
        anchor=len(tokens) - 1,
        prefix_digest=digest(tokens),
    )


def changed(**changes: Any) -> Callable[[Joined, Step], Step]:
    return lambda joined, step: replace(step, **changes)


def rider(round: int, accepted: int, outcome: Outcome) -> Callable[[Joined, Step], Step]:
    return changed(commit=CommitRider(round, accepted, outcome))


def other_token(joined: Joined, step: Step) -> Step:
    """A committed token that is already held is another one now."""
    first, *others = joined.asking.tokens
    return with_tokens(replace(step, base=0), ((first + 1) % VOCABULARY, *others))


def shorter(joined: Joined, step: Step) -> Step:
    whole = joined.asking.tokens[:2]
    return with_tokens(replace(step, base=0), whole)


def rejected_draft(joined: Joined, step: Step) -> Step:
    drawn = joined.drafter.proposals[1, 1, 2]
    return with_tokens(step, (*joined.asking.tokens[:-1], drawn[1][0]))


# After two rounds, the second ended by a correction after one accepted draft.
REFUSED: list[tuple[str, ProtocolErrorCode, Callable[[Joined, Step], Step]]] = [
    ("another digest", CODE.WRONG_DIGEST, changed(prefix_digest=b"x" * 16)),
    ("tokens that do not reach the anchor", CODE.BAD_FIELD, changed(tokens=())),
    ("another token than is committed", CODE.COMMIT_MISMATCH, other_token),
    ("a generation that never opened", CODE.UNKNOWN_PREFIX, changed(generation=2)),
    ("a shorter prefix", CODE.COMMIT_MISMATCH, shorter),
    ("no rider", CODE.COMMIT_MISMATCH, changed(commit=NO_RIDER)),
    ("an old rider", CODE.COMMIT_MISMATCH, rider(1, 1, Outcome.CORRECTION)),
    ("a rider of this round", CODE.COMMIT_MISMATCH, rider(3, 0, Outcome.TARGET_ONLY)),
    ("fewer accepted", CODE.COMMIT_MISMATCH, rider(2, 0, Outcome.CORRECTION)),
    ("more accepted", CODE.COMMIT_MISMATCH, rider(2, 2, Outcome.CORRECTION)),
    ("a correction after all", CODE.COMMIT_MISMATCH, rider(2, 3, Outcome.CORRECTION)),
    ("a bonus after one", CODE.COMMIT_MISMATCH, rider(2, 1, Outcome.BONUS)),
    ("an end with a token", CODE.COMMIT_MISMATCH, rider(2, 1, Outcome.ENDED)),
    ("an end before it began", CODE.COMMIT_MISMATCH, rider(2, 0, Outcome.ENDED)),
    ("drafts of a target-only round", CODE.COMMIT_MISMATCH, rider(2, 1, Outcome.TARGET_ONLY)),
    ("the rejected draft as correction", CODE.COMMIT_MISMATCH, rejected_draft),
    (
        "tokens beyond what is held",
        CODE.UNKNOWN_PREFIX,
        lambda joined, step: replace(step, base=step.base + 1, tokens=()),
    ),
    (
        "accepted drafts of a round that never came",
        CODE.COMMIT_MISMATCH,
        lambda joined, step: replace(step, round=4, commit=CommitRider(3, 1, Outcome.CORRECTION)),
    ),
]


@pytest.mark.parametrize(
    ("code", "craft"), [pytest.param(code, craft, id=what) for what, code, craft in REFUSED]
)
def test_a_step_that_cannot_be_followed_changes_nothing(
    code: ProtocolErrorCode, craft: Callable[[Joined, Step], Step]
):
    joined = Joined()
    joined.round(2)
    joined.round(1)
    step = joined.asking.ask(SPARSE, 0.0, 1.0)
    session = joined.table[1]
    before = (session.tokens, session.prefix_digest, session.round, session.state)
    crafted = craft(joined, step)
    refused = joined.answer(crafted, as_bytes=False)
    assert error_of(refused) is code
    (item,) = refused
    assert isinstance(item.message, ErrorMessage)
    assert (item.message.session, item.message.round) == (1, crafted.round)
    assert (session.tokens, session.prefix_digest, session.round, session.state) == before
    proposal = joined.take(joined.answer(step))
    assert isinstance(proposal, Proposal)
    joined.check_proposal(proposal)


@pytest.mark.parametrize(
    "craft",
    [
        changed(base=1, tokens=PROMPT[1:]),
        changed(round=2),
        rider(1, 0, Outcome.TARGET_ONLY),
    ],
)
def test_p9_only_a_whole_first_round_opens_a_generation(craft: Callable[[Joined, Step], Step]):
    joined = Joined()
    step = joined.asking.ask(SPARSE, 0.0, 1.0)
    assert error_of(joined.answer(craft(joined, step), as_bytes=False)) is CODE.UNKNOWN_PREFIX
    assert len(joined.table) == 0
    assert isinstance(joined.take(joined.answer(step)), Proposal)


def test_p9_an_opening_with_another_digest_opens_nothing():
    joined = Joined()
    step = joined.asking.ask(SPARSE, 0.0, 1.0)
    refused = joined.answer(replace(step, prefix_digest=b"x" * 16))
    assert error_of(refused) is CODE.WRONG_DIGEST
    assert len(joined.table) == 0


@pytest.mark.parametrize("craft", [changed(policy=DENSE), changed(proposal_key=1), changed(slot=1)])
def test_p10_the_latest_round_with_other_bytes_is_refused(craft: Callable[[Joined, Step], Step]):
    joined = Joined()
    joined.round(1)
    step = joined.asking.ask(SPARSE, 0.0, 1.0)
    answer = joined.answer(step)
    assert error_of(joined.answer(craft(joined, step))) is CODE.DUPLICATE_ROUND
    assert isinstance(joined.take(answer), Proposal)


def test_p10_an_earlier_round_is_refused():
    joined = Joined()
    first = joined.asking.ask(SPARSE, 0.0, 1.0)
    proposal = joined.take(joined.answer(first))
    assert isinstance(proposal, Proposal)
    joined.commit(proposal, 1)
    joined.round(1)
    refused = joined.answer(first)
    assert error_of(refused) is CODE.DUPLICATE_ROUND
    assert joined.take(refused) is None  # about a round that is over: it changes nothing
    joined.round(2)


def test_p10_a_retry_after_an_explicit_commit_still_gets_its_bytes():
    joined = Joined()
    step = joined.asking.ask(SPARSE, 0.0, 1.0)
    answer = joined.answer(step)
    proposal = joined.take(answer)
    assert isinstance(proposal, Proposal)
    joined.commit(proposal, 1)
    joined.agree_after_commit()
    assert joined.answer(step) == answer
    joined.round(1)


def test_a_declined_round_is_declined_again():
    joined = Joined()
    joined.round(1)
    step = joined.asking.ask(SPARSE, 0.0, 1.0)
    actions = joined.to_drafter(step)
    assert actions.task is not None
    parts = joined.table.decline(actions.task, Status.INTERNAL)
    assert joined.to_drafter(step).parts == parts
    assert status_of(list(unpacked(parts, joined.agreed))) is Status.INTERNAL
    assert joined.table.decline(actions.task, Status.INTERNAL) == []


def test_e49_a_row_that_is_no_distribution_is_declined_not_sent():
    joined = Joined()
    joined.round(1)
    actions = joined.to_drafter(joined.asking.ask(SPARSE, 0.0, 1.0))
    assert actions.task is not None
    drawn = joined.drafter.draft(actions.task)
    bad = QRow(VOCABULARY, np.array([1, 2], np.int32), np.array([3, 4], np.int32))
    drawn.tokens[1], drawn.rows[1] = 1, bad
    answer = list(unpacked(joined.table.reply(actions.task, drawn), joined.agreed))
    assert status_of(answer) is Status.REFUSED_ARITHMETIC
    assert joined.take(answer) is not None
    joined.commit(None)
    joined.round(2)


def test_another_number_of_drafts_than_the_depth_is_our_own_bug():
    joined = Joined()
    actions = joined.to_drafter(joined.asking.ask(SPARSE, 0.0, 1.0))
    assert actions.task is not None
    drawn = joined.drafter.draft(actions.task)
    with pytest.raises(ValueError, match="depth of 3"):
        joined.table.reply(actions.task, Draft(drawn.tokens[:2], drawn.rows[:2]))


# explicit COMMIT, RESET


def committed(joined: Joined, accepted: int = 1) -> Commit:
    joined.round(accepted)
    commit = joined.asking.commit_message()
    assert commit is not None
    return commit


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"accepted": 2}, CODE.COMMIT_MISMATCH),
        ({"outcome": Outcome.BONUS}, CODE.COMMIT_MISMATCH),
        ({"committed": 9}, CODE.COMMIT_MISMATCH),
        ({"prefix_digest": b"x" * 16}, CODE.WRONG_DIGEST),
    ],
)
def test_a_commit_that_contradicts_the_proposal_changes_nothing(changes, code):
    joined = Joined()
    commit = committed(joined)
    session = joined.table[1]
    assert error_of(joined.answer(replace(commit, **changes))) is code
    assert (session.tokens, session.state) == (PROMPT, State.PROPOSED)
    joined.agree_after_commit()
    joined.round(1)


def test_a_second_commit_of_one_round_is_refused_and_changes_nothing():
    joined = Joined()
    commit = committed(joined)
    joined.agree_after_commit()
    assert error_of(joined.answer(commit)) is CODE.COMMIT_MISMATCH
    joined.round(3)


def test_a_commit_of_another_round_or_generation_changes_nothing():
    joined = Joined()
    commit = committed(joined)
    joined.round(2)
    assert joined.answer(commit) == []
    assert joined.answer(replace(commit, round=2, generation=2)) == []
    joined.round(2)


def test_a_reset_must_go_forward():
    joined = Joined()
    joined.round(1)
    assert error_of(joined.answer(Reset(1, 1, 1), as_bytes=False)) is CODE.BAD_FIELD
    joined.round(1)


# the table


def test_sessions_are_bounded_and_the_others_go_on():
    joined = Joined()
    joined.round(1)
    for session in range(2, joined.agreed.max_sessions + 1):
        other = Joined(session=session)
        other.table = joined.table
        other.asking.slot = 1
        other.round(1)
    late = Joined(session=99)
    late.table = joined.table
    late.asking.slot = 1
    answer = late.ask()
    assert error_of(answer) is CODE.LIMIT_EXCEEDED
    late.take(answer)
    late.commit(None)
    joined.round(1)
    joined.to_drafter(Cancel(2, 1))
    late.round(1)


def test_a_slot_holds_one_proposal_in_flight():
    joined = Joined()
    actions = joined.to_drafter(joined.asking.ask(SPARSE, 0.0, 1.0))
    other = Joined(session=2)
    other.table = joined.table
    assert error_of(other.ask()) is CODE.NO_SLOT
    assert actions.task is not None
    joined.table.reply(actions.task, joined.drafter.draft(actions.task))
    other.asking.give_up()
    other.commit(None)
    other.round(1)


def test_a_slot_that_was_not_agreed_is_refused():
    joined = Joined()
    step = joined.asking.ask(SPARSE, 0.0, 1.0)
    with pytest.raises(ProtocolError) as raised:  # before it comes to any session (P31)
        joined.answer(replace(step, slot=joined.agreed.max_slots))
    assert (raised.value.code, raised.value.field) == (CODE.LIMIT_EXCEEDED, "slot")
    assert len(joined.table) == 0


def test_an_error_of_one_session_leaves_the_others_alone():
    joined = Joined()
    joined.round(1)
    other = Joined(session=2)
    other.table = joined.table
    other.asking.slot = 1
    other.round(1)
    step = other.asking.ask(SPARSE, 0.0, 1.0)
    assert error_of(other.answer(replace(step, prefix_digest=b"x" * 16))) is CODE.WRONG_DIGEST
    joined.round(2)
    joined.agree_after_commit()


def test_a_session_that_the_verifier_refuses_ends():
    joined = Joined()
    joined.round(1)
    actions = joined.to_drafter(ErrorMessage(CODE.INTERNAL, session=1, generation=1, round=1))
    assert actions.ended == (1,)
    assert joined.to_drafter(ErrorMessage(CODE.INTERNAL, session=1)).ended == ()


def test_what_concerns_no_session_is_our_own_bug():
    joined = Joined()
    with pytest.raises(ValueError, match="no session"):
        joined.table.receive(joined.ask()[0].message)


def test_t38_ended_sessions_leave_nothing_behind_but_bounded_marks():
    joined = Joined()
    for session in range(1, 500):
        one = Joined(session=session)
        one.table = joined.table
        actions = one.to_drafter(one.asking.ask(SPARSE, 0.0, 1.0))
        assert actions.task is not None
        for cancel in one.asking.cancel():
            assert one.to_drafter(cancel).ended == (session,)
    assert len(joined.table) == 0
    assert joined.table.ends_remembered == joined.agreed.max_sessions
    assert joined.table.claimed_slots == {}
