"""A context that changes: what was asked under the old one is dropped, and drafting goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftwire.session.proposal import Dropped, Proposal
from draftwire.session.reasons import DropReason
from draftwire.wire.messages import Step
from testing.harness.joined import Joined, complete_of, reply_of


def asked(joined: Joined) -> Step:
    return joined.asking.ask(joined.policy, 0.0, 1.0)


def good_round(joined: Joined, version: int) -> None:
    """A round under a version: the STEP says it, the answer repeats it, the proposal is used."""
    step = asked(joined)
    assert step.context_version == version
    answer = joined.answer(step)
    assert reply_of(answer).context_version == version
    assert complete_of(answer).context_version == version
    proposal = joined.take(answer)
    assert isinstance(proposal, Proposal)
    joined.check_proposal(proposal)
    joined.commit(proposal, 1)


def test_a_proposal_in_flight_is_not_used_under_another_context() -> None:
    joined = Joined()
    joined.asking.use_context(7)
    good_round(joined, 7)
    answer = joined.ask()
    dropped = joined.asking.use_context(8)
    assert isinstance(dropped, Dropped) and dropped.reason is DropReason.WRONG_CONTEXT
    assert joined.take(answer) is None  # too late for this round, whole as it is
    joined.commit(None)
    for accepted in range(2):
        good_round(joined, 8)
        assert joined.asking.drops[DropReason.WRONG_CONTEXT] == 1, accepted
    joined.agree_after_commit()


def test_a_whole_proposal_is_not_used_under_another_context() -> None:
    joined = Joined()
    proposal = joined.propose()
    dropped = joined.asking.use_context(8)
    assert dropped == Dropped(
        DropReason.WRONG_CONTEXT, proposal.generation, proposal.round, len(proposal.tokens)
    )
    joined.commit(None)  # the round is the target's alone
    good_round(joined, 8)
    joined.agree_after_commit()


def test_the_same_context_drops_nothing() -> None:
    joined = Joined()
    joined.asking.use_context(7)
    answer = joined.ask()
    assert joined.asking.use_context(7) is None
    proposal = joined.take(answer)
    assert isinstance(proposal, Proposal)
    assert joined.asking.use_context(7) is None
    joined.commit(proposal, 2)
    assert not joined.asking.drops


@pytest.mark.parametrize("late", ["REPLY", "COMPLETE"])
def test_an_answer_under_the_older_version_is_dropped(late: str) -> None:
    joined = Joined()
    joined.asking.use_context(7)
    good_round(joined, 7)
    joined.asking.use_context(8)
    reply, complete = joined.ask()
    if late == "REPLY":
        reply = replace(reply, message=replace(reply_of([reply]), context_version=7))
    else:
        complete = replace(complete, message=replace(complete_of([complete]), context_version=7))
    dropped = joined.take([reply] if late == "REPLY" else [reply, complete])
    assert isinstance(dropped, Dropped) and dropped.reason is DropReason.WRONG_CONTEXT
    joined.commit(None)
    good_round(joined, 8)
    good_round(joined, 8)
