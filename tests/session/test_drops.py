"""Every reason for which a reply is dropped, reached by a crafted one; the next round is good."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from draftwire.errors import ProtocolErrorCode
from draftwire.exact.counts import TOTAL, Counts
from draftwire.kernels.rows import QRow
from draftwire.rows.reply import encode_rows
from draftwire.session.proposal import Dropped, Proposal, Received
from draftwire.session.reasons import DropReason
from draftwire.session.session_states import State
from draftwire.session.verifier_session import VerifierSession
from draftwire.wire.checksum import crc32c
from draftwire.wire.messages import Complete, ErrorMessage, Ping, Reply, ReplyRow, ReplyRows
from draftwire.wire.registry import Layout, Outcome, Status
from testing.harness.joined import (
    KEY,
    SPARSE,
    SUPPORT,
    VOCABULARY,
    Joined,
    complete_of,
    received,
    reply_of,
)

Answer = list[Received]
Craft = Callable[[Joined, Answer], Answer]


def rebuilt(joined: Joined, reply: Reply, complete: Complete) -> Answer:
    """REPLY and COMPLETE whose sizes and checksums agree, whatever is in them."""
    whole = received(reply, joined.agreed)
    matching = replace(complete, reply_bytes=whole.payload_bytes, reply_checksum=whole.checksum)
    return [whole, received(matching, joined.agreed)]


def of_reply(**changes: Any) -> Craft:
    """A reply with other header fields, its size and checksum left as they were."""

    def craft(joined: Joined, answer: Answer) -> Answer:
        return [replace(answer[0], message=replace(reply_of(answer), **changes)), answer[1]]

    return craft


def of_complete(**changes: Any) -> Craft:
    def craft(joined: Joined, answer: Answer) -> Answer:
        return [answer[0], replace(answer[1], message=replace(complete_of(answer), **changes))]

    return craft


def of_row(change: Callable[[ReplyRow], ReplyRow], index: int = 1) -> Craft:
    """A reply with one other row, its outer size and checksum made to match."""

    def craft(joined: Joined, answer: Answer) -> Answer:
        reply = reply_of(answer)
        rows = list(reply.rows)
        rows[index] = change(rows[index])
        return rebuilt(joined, replace(reply, rows=ReplyRows.of(rows)), complete_of(answer))

    return craft


def with_q(change: Callable[[bytearray], None]) -> Callable[[ReplyRow], ReplyRow]:
    """A row with other q bytes and their right checksum."""

    def changed(row: ReplyRow) -> ReplyRow:
        q = bytearray(row.q)
        change(q)
        return replace(row, q=bytes(q), checksum=crc32c(bytes(q)))

    return changed


def status(value: Status) -> Craft:
    def craft(joined: Joined, answer: Answer) -> Answer:
        declined = replace(complete_of(answer), status=value, reply_bytes=0, reply_checksum=0)
        return [received(declined, joined.agreed)]

    return craft


def error(code: ProtocolErrorCode, **changes: Any) -> Craft:
    def craft(joined: Joined, answer: Answer) -> Answer:
        complete = complete_of(answer)
        refusal = ErrorMessage(code, complete.session, complete.generation, complete.round)
        return [received(replace(refusal, **changes), joined.agreed)]

    return craft


def not_drawn(joined: Joined, answer: Answer) -> Answer:
    """Another token of the same support, well-formed in every byte."""

    def changed(row: ReplyRow) -> ReplyRow:
        ids = memoryview(row.q)[: 4 * SUPPORT].cast("i")
        return replace(row, token=next(token for token in ids if token != row.token))

    return of_row(changed)(joined, answer)


def conflicting(joined: Joined, answer: Answer) -> Answer:
    other = not_drawn(joined, answer)
    return [answer[0], other[0], other[1]]


def swap_ids(q: bytearray) -> None:
    q[0:4], q[4:8] = q[4:8], q[0:4]


def double_q(q: bytearray) -> None:
    q[4 * SUPPORT : 4 * SUPPORT + 4] = b"\x00\x00\x80\x3f"  # 1.0


OTHER_DIGEST = b"x" * 16

DROPS: list[tuple[DropReason, str, Craft]] = [
    (DropReason.CORRUPT, "a row fails its checksum", of_row(lambda r: replace(r, checksum=7))),
    (DropReason.CORRUPT, "the reply fails COMPLETE's checksum", of_complete(reply_checksum=7)),
    (DropReason.INCOMPLETE, "no REPLY came", lambda joined, answer: answer[1:]),
    (DropReason.CONFLICT, "two different replies", conflicting),
    (
        DropReason.UNEXPECTED,
        "a message that is no answer",
        lambda joined, answer: [received(Ping(1), joined.agreed)],
    ),
    (DropReason.UNEXPECTED, "declined after its REPLY", of_complete(status=Status.INTERNAL)),
    (DropReason.WRONG_SESSION, "REPLY", of_reply(session=2)),
    (DropReason.WRONG_SESSION, "COMPLETE", of_complete(session=2)),
    (DropReason.WRONG_SESSION, "ERROR", error(ProtocolErrorCode.INTERNAL, session=2)),
    (DropReason.WRONG_SLOT, "REPLY", of_reply(slot=1)),
    (DropReason.WRONG_SLOT, "COMPLETE", of_complete(slot=1)),
    (DropReason.WRONG_GENERATION, "REPLY", of_reply(generation=9)),
    (DropReason.WRONG_GENERATION, "COMPLETE", of_complete(generation=9)),
    (DropReason.WRONG_ROUND, "REPLY", of_reply(round=9)),
    (DropReason.WRONG_ROUND, "COMPLETE", of_complete(round=9)),
    (DropReason.WRONG_POSITION, "REPLY", of_reply(first_position=9)),
    (DropReason.WRONG_POSITION, "COMPLETE", of_complete(first_position=9)),
    (DropReason.WRONG_POSITION, "row", of_row(lambda r: replace(r, position=r.position + 1))),
    (DropReason.WRONG_DIGEST, "REPLY", of_reply(prefix_digest=OTHER_DIGEST)),
    (DropReason.WRONG_DIGEST, "COMPLETE", of_complete(prefix_digest=OTHER_DIGEST)),
    (DropReason.WRONG_CONTEXT, "REPLY", of_reply(context_version=9)),
    (DropReason.WRONG_CONTEXT, "COMPLETE", of_complete(context_version=9)),
    (DropReason.WRONG_LAYOUT, "REPLY", of_reply(layout=Layout.DENSE)),
    (
        DropReason.WRONG_DEPTH,
        "one row fewer",
        lambda joined, answer: rebuilt(
            joined,
            replace(reply_of(answer), rows=ReplyRows.of(reply_of(answer).rows[:-1])),
            complete_of(answer),
        ),
    ),
    (DropReason.WRONG_SHARD, "half a vocabulary", of_reply(shard_end=VOCABULARY - 1)),
    (DropReason.WRONG_SHARD, "one of two", of_reply(shard_count=2)),
    (DropReason.WRONG_SIZE, "another support", of_reply(support=SUPPORT + 1)),
    (DropReason.WRONG_SIZE, "COMPLETE", of_complete(reply_bytes=1)),
    (
        DropReason.WRONG_SIZE,
        "another payload size",
        lambda joined, answer: [replace(answer[0], payload_bytes=8), answer[1]],
    ),
    (DropReason.ID_OUT_OF_RANGE, "token", of_row(lambda r: replace(r, token=VOCABULARY))),
    (DropReason.MISSING_Q, "no entries", of_row(lambda r: replace(r, entries=0))),
    (DropReason.BAD_Q, "unsorted support", of_row(with_q(swap_ids))),
    (DropReason.BAD_Q, "wrong mass", of_row(with_q(double_q))),
    (DropReason.AUDIT_FAILED, "another token than the word draws", not_drawn),
    (DropReason.DECLINED_NO_SLOT, "status", status(Status.NO_SLOT)),
    (DropReason.DECLINED_SHUTTING_DOWN, "status", status(Status.SHUTTING_DOWN)),
    (DropReason.DECLINED_REFUSED_ARITHMETIC, "status", status(Status.REFUSED_ARITHMETIC)),
    (DropReason.DECLINED_INTERNAL, "status", status(Status.INTERNAL)),
    (DropReason.DECLINED_CONTEXT_LIMIT, "status", status(Status.CONTEXT_LIMIT)),
    (DropReason.LOST_STATE, "prefix", error(ProtocolErrorCode.UNKNOWN_PREFIX)),
    (DropReason.LOST_STATE, "digest", error(ProtocolErrorCode.WRONG_DIGEST)),
    (DropReason.REFUSED, "slot", error(ProtocolErrorCode.NO_SLOT)),
]

BY_EVENT = {
    DropReason.STALE,
    DropReason.DUPLICATE,
    DropReason.MISSED_DEADLINE,
    DropReason.WITHDRAWN,
    DropReason.DISCONNECTED,
}
"""Reasons that no content of a reply leads to; tested below."""


def test_every_reason_is_reached():
    assert {reason for reason, _, _ in DROPS} | BY_EVENT == set(DropReason)


def warmed(rounds: int) -> Joined:
    """A session after some good rounds: the first round of all, or one in the middle."""
    joined = Joined()
    for accepted in range(rounds):
        joined.round(accepted)
    return joined


@pytest.mark.parametrize("rounds", [0, 2])
@pytest.mark.parametrize(
    ("reason", "craft"),
    [pytest.param(reason, craft, id=f"{reason.value}: {what}") for reason, what, craft in DROPS],
)
def test_t37_a_dropped_reply_costs_one_round(reason: DropReason, craft: Craft, rounds: int):
    joined = warmed(rounds)
    answer = joined.ask()
    dropped = joined.take(craft(joined, answer))
    assert isinstance(dropped, Dropped)
    assert dropped.reason is reason
    assert dropped.drafted == SPARSE.depth
    assert joined.asking.drops[reason] == 1
    assert joined.asking.state is State.TARGET_ONLY
    # Whatever still comes of that round is stale, and never used.
    assert joined.take(answer) is None
    assert set(joined.asking.drops) == {reason, DropReason.STALE}
    assert joined.asking.state is State.TARGET_ONLY
    joined.commit(None)
    for accepted in (1, 3, 0):
        joined.round(accepted)
    joined.agree_after_commit()


@pytest.mark.parametrize("value", [-2, VOCABULARY, 2**31])
@pytest.mark.parametrize("where", ["token", "support"])
def test_v19_ids_out_of_range(value: int, where: str):
    joined = warmed(1)
    answer = joined.ask()
    raw = (value % 2**32).to_bytes(4, "little")

    def first_id(q: bytearray) -> None:
        q[0:4] = raw

    change = with_q(first_id)
    if where == "token":

        def change(row: ReplyRow) -> ReplyRow:
            return replace(row, token=int.from_bytes(raw, "little", signed=True))

    dropped = joined.take(of_row(change)(joined, answer))
    assert isinstance(dropped, Dropped)
    assert dropped.reason is DropReason.ID_OUT_OF_RANGE
    joined.commit(None)
    joined.round(2)


@pytest.mark.parametrize("index", range(SPARSE.depth))
def test_m57_one_q_missing_drops_the_whole_proposal(index: int):
    joined = warmed(1)
    answer = joined.ask()
    dropped = joined.take(of_row(lambda row: replace(row, entries=0), index)(joined, answer))
    assert isinstance(dropped, Dropped)
    assert dropped.reason is DropReason.MISSING_Q
    for accepted in range(SPARSE.depth + 1):
        with pytest.raises(ValueError, match="cannot be"):
            joined.asking.commit(accepted, Outcome.CORRECTION, 0)
    joined.commit(None)
    joined.round(3)


def test_m57_a_point_mass_is_never_mixed_with_another_q():
    """One row is replaced by all tickets on another token than the one that its q was drawn for."""
    joined = warmed(1)
    answer = joined.ask()
    reply = reply_of(answer)
    other = (reply.rows[1].token + 1) % VOCABULARY
    point = QRow.of_counts(Counts(VOCABULARY, TOTAL, (other,), (TOTAL,)), dense=False)
    (forged,) = encode_rows([point], [other], 0, Layout.SPARSE, SUPPORT)
    stands_in = replace(reply.rows[1], entries=forged.entries, checksum=forged.checksum, q=forged.q)
    crafted = replace(reply, rows=ReplyRows.of((reply.rows[0], stands_in, reply.rows[2])))
    dropped = joined.take(rebuilt(joined, crafted, complete_of(answer)))
    assert isinstance(dropped, Dropped)
    assert dropped.reason is DropReason.BAD_Q


def test_the_audit_can_be_switched_off_and_is_timed():
    joined = Joined()
    joined.asking = VerifierSession(1, 0, joined.asking.tokens, KEY, joined.agreed, audit=False)
    answer = joined.ask()
    assert joined.take(not_drawn(joined, answer)) is not None
    assert joined.asking.state is State.PROPOSED
    assert (joined.asking.audited, joined.asking.audit_seconds) == (0, 0.0)

    ticks = iter(range(100))
    joined = Joined()
    joined.asking = VerifierSession(
        1, 0, joined.asking.tokens, KEY, joined.agreed, clock=lambda: next(ticks)
    )
    joined.round()
    joined.round()
    assert (joined.asking.audited, joined.asking.audit_seconds) == (6, 2.0)


def test_stale_and_duplicate_messages_change_nothing():
    joined = Joined()
    first = joined.ask()
    assert joined.take([*first[:1], *first[:1]]) is None
    assert joined.asking.drops == {DropReason.DUPLICATE: 1}
    proposal = joined.take(first[1:])
    assert isinstance(proposal, Proposal)
    assert joined.take(first) is None
    assert joined.asking.drops == {DropReason.DUPLICATE: 3}
    assert joined.asking.state is State.PROPOSED
    joined.commit(proposal, 2)
    assert joined.take(first) is None
    assert joined.asking.drops == {DropReason.DUPLICATE: 3, DropReason.STALE: 2}
    joined.round(1)


@pytest.mark.parametrize("arrived", [0, 1])
def test_missed_deadline(arrived: int):
    joined = warmed(1)
    answer = joined.ask()
    assert joined.take(answer[:arrived]) is None
    assert not joined.asking.due(0.9)
    assert joined.asking.due(1.0)
    dropped = joined.asking.give_up()
    assert dropped == Dropped(DropReason.MISSED_DEADLINE, 1, 2, SPARSE.depth)
    assert joined.take(answer) is None
    joined.commit(None)
    joined.round(1)


def test_whole_and_late_but_before_giving_up_may_be_used():
    joined = Joined()
    answer = joined.ask()
    assert joined.asking.due(99.0)
    assert [joined.asking.take(item, 99.0) is None for item in answer] == [True, False]
    assert joined.asking.round_trip == 99.0
    assert not joined.asking.due(99.0)


def test_a_whole_proposal_that_is_given_up_is_gone():
    joined = Joined()
    proposal = joined.propose()
    assert joined.asking.give_up().drafted == len(proposal.tokens)
    joined.commit(None)
    joined.round(1)


@pytest.mark.parametrize("arrived", [0, 1])
def test_disconnected_in_flight(arrived: int):
    joined = warmed(2)
    answer = joined.ask()
    assert joined.take(answer[:arrived]) is None
    dropped = joined.asking.disconnected()
    assert dropped is not None
    assert dropped.reason is DropReason.DISCONNECTED
    assert joined.take(answer) is None
    joined.commit(None)
    assert joined.asking.room() == 0
    joined.table.close()
    joined.table = type(joined.table)(joined.agreed)
    joined.drafter.states.clear()
    joined.asking.connected(joined.agreed)
    proposal = joined.round(2)
    assert (proposal.generation, proposal.round) == (2, 1)
    joined.agree_after_commit()


def test_a_whole_proposal_outlives_its_connection():
    joined = Joined()
    proposal = joined.propose()
    assert joined.asking.disconnected() is None
    joined.commit(proposal, 3)
    assert joined.asking.commit_message() is None
    assert len(joined.asking) == 3 + 3 + 1


@pytest.mark.parametrize("how", ["reset", "cancel"])
def test_withdrawn(how: str):
    joined = warmed(1)
    answer = joined.ask()
    getattr(joined.asking, how)()
    assert joined.asking.drops == {DropReason.WITHDRAWN: 1}
    assert joined.take(answer) is None
    assert joined.asking.drops[DropReason.STALE] == 2
