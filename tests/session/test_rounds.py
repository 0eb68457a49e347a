"""Rounds, rejections, ends and generations through both halves; messages cross as bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftwire.errors import ConfigurationError, ProtocolError, ProtocolErrorCode
from draftwire.session.proposal import NO_RIDER, Dropped, Proposal
from draftwire.session.reasons import DropReason
from draftwire.session.session_states import State
from draftwire.session.verifier_session import VerifierSession
from draftwire.wire.codec import encode
from draftwire.wire.messages import Cancel, Commit, CommitRider, Reset, Step
from draftwire.wire.registry import LayoutSet, Outcome, Status
from testing.harness.joined import (
    DENSE,
    IDS_ONLY,
    KEY,
    PROMPT,
    SPARSE,
    VOCABULARY,
    Joined,
    agreement,
    error_of,
    reply_of,
    row_after,
    status_of,
    unpacked,
)

DEPTH = SPARSE.depth
V1 = agreement(LayoutSet.IDS_ONLY)


def bytes_of(step: Step) -> bytes:
    return b"".join(bytes(part) for part in encode(step))


# what a STEP says


def test_the_first_step_opens_and_carries_the_prompt():
    step = Joined().asking.ask(SPARSE, 0.0, 1.0)
    assert (step.generation, step.round, step.base, step.tokens) == (1, 1, 0, PROMPT)
    assert (step.anchor, step.first_position) == (2, 3)
    assert step.commit == NO_RIDER


@pytest.mark.parametrize("accepted", range(DEPTH + 1))
def test_in_steady_state_a_step_carries_one_token(accepted: int):
    joined = Joined()
    joined.round(accepted)
    step = joined.asking.ask(SPARSE, 0.0, 1.0)
    outcome = Outcome.BONUS if accepted == DEPTH else Outcome.CORRECTION
    assert step.commit == CommitRider(1, accepted, outcome)
    assert (step.base, len(step.tokens)) == (3 + accepted, 1)
    assert step.anchor == 3 + accepted


def test_after_lost_rounds_a_step_carries_what_no_reply_has_confirmed():
    joined = Joined()
    joined.round(2)
    for _ in range(3):
        joined.asking.ask(SPARSE, 0.0, 1.0)
        joined.asking.give_up()
        joined.commit(None)
    step = joined.asking.ask(SPARSE, 0.0, 1.0)
    assert step.commit == CommitRider(4, 0, Outcome.TARGET_ONLY)
    assert (step.base, step.tokens) == (3, joined.asking.tokens[3:])
    assert isinstance(joined.take(joined.answer(step)), Proposal)


def test_skipped_rounds_have_numbers_of_their_own():
    joined = Joined()
    joined.asking.skip()
    joined.asking.commit(0, Outcome.TARGET_ONLY, 4)
    assert (joined.asking.generation, joined.asking.round) == (1, 1)
    joined.round(1)  # nothing was opened in generation 1: the first STEP opens the next
    assert (joined.asking.generation, joined.asking.round) == (2, 1)
    joined.asking.skip()
    joined.asking.commit(0, Outcome.TARGET_ONLY, 4)
    step = joined.asking.ask(SPARSE, 0.0, 1.0)
    assert (step.round, step.commit) == (3, CommitRider(2, 0, Outcome.TARGET_ONLY))
    assert isinstance(joined.take(joined.answer(step)), Proposal)


def test_a_round_that_is_on_is_not_skipped():
    joined = Joined()
    joined.ask()
    with pytest.raises(ProtocolError) as error:
        joined.asking.skip()
    assert error.value.code is ProtocolErrorCode.UNEXPECTED_MESSAGE


def test_a_retry_is_the_same_bytes_and_gets_the_same_bytes():
    joined = Joined()
    joined.round(1)
    step = joined.asking.ask(SPARSE, 0.0, 1.0)
    first = joined.to_drafter(step)
    assert first.task is not None
    # The drafter is still at it: nothing is sent twice and nothing is drawn twice.
    again = joined.asking.retry()
    assert bytes_of(again) == bytes_of(step)
    assert joined.to_drafter(again).task is None
    parts = joined.table.reply(first.task, joined.drafter.draft(first.task))
    repeated = joined.to_drafter(joined.asking.retry())
    assert repeated.task is None
    assert b"".join(repeated.parts) == b"".join(parts)
    assert isinstance(joined.take(list(unpacked(repeated.parts, joined.agreed))), Proposal)
    assert joined.take(list(unpacked(parts, joined.agreed))) is None


def test_x41_a_late_reply_is_dropped_by_its_id_and_the_next_is_used():
    joined = Joined()
    late = joined.ask()
    joined.asking.give_up()
    joined.commit(None)
    following = joined.ask()
    assert joined.take(late) is None
    assert joined.asking.drops == {DropReason.MISSED_DEADLINE: 1, DropReason.STALE: 2}
    proposal = joined.take(following)
    assert isinstance(proposal, Proposal)
    joined.check_proposal(proposal)


@pytest.mark.parametrize("split", [0, 1])
def test_x41_a_late_reply_between_the_parts_of_the_next(split: int):
    joined = Joined()
    joined.round(0)
    late = joined.ask()
    joined.asking.give_up()
    joined.commit(None)
    following = joined.ask()
    proposal = joined.take([*following[:split], *late, *following[split:]])
    assert isinstance(proposal, Proposal)
    joined.check_proposal(proposal)


# D9 and the layouts


@pytest.mark.parametrize("policy", [SPARSE, DENSE, IDS_ONLY], ids=lambda p: p.layout.name)
@pytest.mark.parametrize("first", range(DEPTH + 1))
def test_d9_a_rejection_at_every_position_leaves_one_prefix(policy, first: int):
    joined = Joined(V1 if policy is IDS_ONLY else None)
    joined.policy = policy
    for accepted in (first, *range(DEPTH + 1), first):
        before = joined.asking.tokens
        proposal = joined.propose()
        joined.commit(proposal, accepted)
        token = joined.asking.tokens[-1]
        assert joined.asking.tokens == (*before, *proposal.tokens[:accepted], token)
        assert accepted == DEPTH or token != proposal.tokens[accepted]
    joined.agree_after_commit()
    joined.round(1)  # a rider that repeats an explicit COMMIT


def test_v1_goes_through_the_same_machines_as_point_masses():
    joined = Joined(V1)
    proposal = joined.propose()
    for token, row in zip(proposal.tokens, proposal.rows, strict=True):
        assert row.of(token) == 1 << 24
    assert joined.asking.audited == 0


def test_depth_and_layout_may_change_from_round_to_round():
    joined = Joined()
    for policy in (SPARSE, DENSE, replace(SPARSE, depth=5), replace(DENSE, depth=1), SPARSE):
        proposal = joined.propose(policy)
        assert len(proposal.tokens) == policy.depth
        joined.commit(proposal, 1)


# ends


@pytest.mark.parametrize("accepted", range(1, DEPTH + 1))
def test_l31_the_text_ends_inside_the_accepted_drafts(accepted: int):
    joined = Joined()
    joined.round(1)
    before = joined.asking.tokens
    proposal = joined.propose()
    joined.asking.commit(accepted, Outcome.ENDED, None)
    assert joined.asking.tokens == (*before, *proposal.tokens[:accepted])
    session = joined.table[1]
    commit, cancel = joined.asking.finish()
    assert isinstance(commit, Commit) and isinstance(cancel, Cancel)
    assert (commit.token, commit.committed) == (-1, len(before) + accepted)
    assert joined.answer(commit) == []
    assert session.tokens == joined.asking.tokens
    assert joined.to_drafter(cancel).ended == (1,)
    assert joined.asking.state is session.state is State.ENDED
    assert len(joined.table) == 0


def test_l31_a_commit_that_was_told_is_not_told_again_at_the_end():
    joined = Joined()
    joined.round(1)
    joined.agree_after_commit()
    (cancel,) = joined.asking.finish()
    assert isinstance(cancel, Cancel)
    assert joined.to_drafter(cancel).ended == (1,)


def test_l31_nothing_is_kept_or_asked_after_the_end():
    joined = Joined()
    joined.propose()
    joined.asking.commit(2, Outcome.ENDED, None)
    joined.asking.finish()
    length = len(joined.asking)
    for call in (
        lambda: joined.asking.ask(SPARSE, 0.0, 1.0),
        joined.asking.skip,
        joined.asking.give_up,
        joined.asking.reset,
    ):
        with pytest.raises(ProtocolError):
            call()
    assert len(joined.asking) == length
    assert joined.asking.finish() == joined.asking.cancel() == []


def test_l32_the_client_goes_away_before_the_first_reply():
    joined = Joined()
    actions = joined.to_drafter(joined.asking.ask(SPARSE, 0.0, 1.0))
    assert actions.task is not None
    (cancel,) = joined.asking.cancel()
    assert joined.to_drafter(cancel).ended == (1,)
    assert not joined.table.wanted(actions.task)
    assert joined.table.reply(actions.task, joined.drafter.draft(actions.task)) == []
    # The slot is free at once.
    other = VerifierSession(2, 0, PROMPT, KEY, joined.agreed)
    assert joined.to_drafter(other.ask(SPARSE, 0.0, 1.0)).task is not None


def test_l26_cancel_of_an_old_generation_leaves_the_new_one_untouched():
    joined = Joined()
    joined.round(1)
    old = Cancel(1, joined.asking.generation)
    joined.asking.reset()
    joined.round(2)
    before = joined.table[1].tokens
    assert joined.asking.generation == 2
    assert joined.to_drafter(old).ended == ()
    assert joined.table[1].tokens == before
    joined.round(3)
    joined.agree_after_commit()


def test_l26_reset_and_step_of_an_old_generation_are_stale():
    joined = Joined()
    old = joined.asking.ask(SPARSE, 0.0, 1.0)
    (reset,) = joined.asking.reset()
    joined.answer(old)
    joined.answer(reset)
    joined.round(1)
    assert joined.answer(reset) == []
    assert joined.answer(old) == []
    joined.round(2)
    joined.agree_after_commit()


def test_reset_while_a_proposal_is_made_lets_nobody_use_it():
    joined = Joined()
    actions = joined.to_drafter(joined.asking.ask(SPARSE, 0.0, 1.0))
    (reset,) = joined.asking.reset()
    assert reset == Reset(1, 1, 2)
    joined.answer(reset)
    assert actions.task is not None
    assert joined.table.reply(actions.task, joined.drafter.draft(actions.task)) == []
    assert joined.round().generation == 2


def test_every_generation_that_may_be_open_is_cancelled():
    """Three openings of which only the first arrives: a CANCEL frees it all the same."""
    joined = Joined()
    joined.to_drafter(joined.asking.ask(SPARSE, 0.0, 1.0))
    for _ in range(2):
        joined.asking.give_up()
        joined.commit(None)
        joined.asking.ask(SPARSE, 0.0, 1.0)
    cancels = joined.asking.cancel()
    assert [cancel.generation for cancel in cancels] == [1, 2, 3]
    assert [joined.to_drafter(cancel).ended for cancel in cancels] == [(1,), (), ()]


def test_a_cancel_that_overtakes_its_step_is_not_undone_by_it():
    joined = Joined()
    joined.round()
    step = joined.asking.ask(SPARSE, 0.0, 1.0)
    (cancel,) = joined.asking.cancel()
    joined.to_drafter(cancel)
    assert joined.answer(step) == []
    assert len(joined.table) == 0


# lost state


def test_t37_a_drafter_that_lost_its_state_is_told_everything_again():
    joined = Joined()
    joined.round(2)
    joined.table.close()
    joined.drafter.states.clear()
    answer = joined.ask()
    assert error_of(answer) is ProtocolErrorCode.UNKNOWN_PREFIX
    dropped = joined.take(answer)
    assert isinstance(dropped, Dropped) and dropped.reason is DropReason.LOST_STATE
    joined.commit(None)
    step = joined.asking.ask(SPARSE, 0.0, 1.0)
    assert (step.generation, step.round, step.base) == (2, 1, 0)
    assert step.tokens == joined.asking.tokens
    proposal = joined.take(joined.answer(step))
    assert isinstance(proposal, Proposal)
    joined.check_proposal(proposal)


def test_a_new_generation_reuses_the_models_state_of_the_same_tokens():
    joined = Joined()
    joined.round(DEPTH)
    joined.asking.reset()
    actions = joined.to_drafter(joined.asking.ask(SPARSE, 0.0, 1.0))
    assert actions.task is not None
    # The prompt and all drafts but the last were fed; the last one and the bonus were not.
    assert actions.task.cached_tokens == len(PROMPT) + DEPTH - 1
    assert actions.task.new_tokens == joined.asking.tokens[actions.task.cached_tokens :]
    joined.drafter.draft(actions.task)


@pytest.mark.parametrize("accepted", range(DEPTH + 1))
def test_the_models_state_is_rewound_to_what_is_still_right(accepted: int):
    joined = Joined()
    joined.round(accepted)
    actions = joined.to_drafter(joined.asking.ask(SPARSE, 0.0, 1.0))
    assert actions.task is not None
    assert actions.task.cached_tokens == len(PROMPT) + min(accepted, DEPTH - 1)
    joined.drafter.draft(actions.task)
    assert row_after(joined.asking.tokens, SPARSE).exact() == (
        joined.drafter.proposals[1, 1, 2][0][1].exact()
    )


def test_a_task_that_nobody_wants_any_more_is_not_counted_on():
    joined = Joined()
    joined.round(1)
    first = joined.to_drafter(joined.asking.ask(SPARSE, 0.0, 1.0))
    joined.asking.give_up()
    joined.commit(None)
    second = joined.to_drafter(joined.asking.ask(SPARSE, 0.0, 1.0))
    assert first.task is not None and second.task is not None
    assert not joined.table.wanted(first.task)
    # Whether the first was begun, finished or never looked at: the second can be done.
    assert joined.table.reply(first.task, joined.drafter.draft(first.task)) == []
    parts = joined.table.reply(second.task, joined.drafter.draft(second.task))
    proposal = joined.take(list(unpacked(parts, joined.agreed)))
    assert isinstance(proposal, Proposal)
    joined.check_proposal(proposal)


def test_what_an_unwanted_task_did_to_the_models_state_is_not_counted_on():
    """Lost rounds whose target-only tokens happen to be the drafts of a lost proposal."""
    joined = Joined()
    answer = joined.ask()
    first, second = (row.token for row in reply_of(answer).rows[:2])
    actions = None
    for token in (first, second, 0):
        joined.asking.give_up()
        joined.asking.commit(0, Outcome.TARGET_ONLY, token)
        actions = joined.to_drafter(joined.asking.ask(DENSE, 0.0, 1.0))
        assert actions.task is not None
        if token == first:  # it does this one in vain, and never begins the next
            state = list(joined.drafter.states[1])
            joined.drafter.draft(actions.task)
            assert joined.drafter.states[1][4] != second, "otherwise nothing is at stake"
            assert state[4] == second
    assert actions is not None and actions.task is not None
    joined.drafter.draft(actions.task, joined.asking.tokens)


# limits


def test_e51_past_the_context_the_session_goes_on_without_drafts():
    joined = Joined(agreement(max_context=12))
    while joined.asking.room() >= DEPTH:
        joined.round(DEPTH)
    assert len(joined.asking) == 11
    assert joined.asking.room() == 1
    with pytest.raises(ConfigurationError, match="context of 12"):
        joined.asking.ask(SPARSE, 0.0, 1.0)
    joined.policy = replace(SPARSE, depth=1)
    joined.round(1)
    assert len(joined.asking) == 13
    assert joined.asking.room() == 0
    for token in range(5):
        joined.asking.skip()
        joined.asking.commit(0, Outcome.TARGET_ONLY, token)
    assert len(joined.asking) == 18


def test_e51_a_drafter_with_less_context_than_agreed_says_so_once():
    joined = Joined(max_context=8)
    joined.round(DEPTH)
    assert joined.asking.room() > 0
    answer = joined.ask()
    assert status_of(answer) is Status.CONTEXT_LIMIT
    dropped = joined.take(answer)
    assert isinstance(dropped, Dropped)
    assert dropped.reason is DropReason.DECLINED_CONTEXT_LIMIT
    joined.commit(None)
    assert joined.asking.context_limit
    assert joined.asking.room() == 0


def test_e51_a_long_opening_is_declined_before_it_is_stored():
    joined = Joined(max_context=5)
    assert status_of(joined.ask()) is Status.CONTEXT_LIMIT
    assert joined.table[1].tokens == ()


def test_e52_no_session_then_one():
    joined = Joined()
    assert len(joined.table) == 0
    assert joined.table.close() == ()
    joined.round(1)
    assert len(joined.table) == 1


def test_what_hello_did_not_agree_to_is_never_asked():
    joined = Joined()
    for policy in (replace(SPARSE, depth=6), replace(SPARSE, support=5), IDS_ONLY):
        with pytest.raises(ProtocolError) as caught:
            joined.asking.ask(policy, 0.0, 1.0)
        assert caught.value.code is ProtocolErrorCode.HELLO_REFUSED
    with pytest.raises(ConfigurationError):
        joined.asking.ask(replace(SPARSE, depth=0), 0.0, 1.0)
    assert joined.asking.state is State.IDLE
    joined.round(1)


def test_without_a_connection_nothing_is_asked():
    session = VerifierSession(1, 0, PROMPT, KEY, None)
    assert session.room() == 0
    with pytest.raises(ConfigurationError, match="connection"):
        session.ask(SPARSE, 0.0, 1.0)
    session.skip()
    session.commit(0, Outcome.TARGET_ONLY, 1)
    assert session.finish() == []


def test_an_empty_prompt_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        VerifierSession(1, 0, (), KEY, None)


@pytest.mark.parametrize(
    ("accepted", "outcome", "token"),
    [
        (DEPTH, Outcome.CORRECTION, 0),
        (DEPTH - 1, Outcome.BONUS, 0),
        (-1, Outcome.CORRECTION, 0),
        (0, Outcome.ENDED, None),
        (DEPTH + 1, Outcome.ENDED, None),
        (0, Outcome.TARGET_ONLY, 0),
        (0, Outcome.NONE, 0),
        (1, Outcome.ENDED, 0),
        (1, Outcome.CORRECTION, None),
    ],
)
def test_a_commit_that_does_not_fit_its_round_is_refused(accepted, outcome, token):
    joined = Joined()
    joined.propose()
    with pytest.raises(ValueError):
        joined.asking.commit(accepted, outcome, token)
    assert joined.asking.tokens == PROMPT


def test_calls_out_of_order_are_refused_and_change_nothing():
    joined = Joined()
    session = joined.asking
    for call in (session.retry, session.give_up):
        with pytest.raises(ProtocolError):
            call()
    session.ask(SPARSE, 0.0, 1.0)
    for call in (session.skip, lambda: session.ask(SPARSE, 0.0, 1.0)):
        with pytest.raises(ProtocolError):
            call()
    with pytest.raises(ProtocolError):
        session.commit(0, Outcome.TARGET_ONLY, VOCABULARY - 1)
    assert (session.state, session.round, session.tokens) == (State.ASKED, 1, PROMPT)
