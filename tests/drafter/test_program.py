"""The drafter program: batches over sessions, limits, and one session's trouble kept to itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from draftwire.drafter.limits import PeerLimits
from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.errors import ConfigurationError, ProtocolError, ProtocolErrorCode
from draftwire.session.proposal import Dropped, Proposal
from draftwire.session.reasons import DropReason
from draftwire.wire.messages import Cancel, ErrorMessage, ProposalPolicy
from draftwire.wire.registry import Layout, LayoutSet, Outcome, WireVersion
from testing.toys.models import ToyContext, ToyDrafter, mixed
from tests.drafter.peer import Peer, tokens_of

V = 9
DENSE = ProposalPolicy(Layout.DENSE, 3, 1.0)
SPARSE = ProposalPolicy(Layout.SPARSE, 4, 1.0, support=4)


def program_of(engine: ToyDrafter, **limits: int) -> DrafterProgram[ToyContext]:
    return DrafterProgram(engine, DrafterConfig(**limits))  # type: ignore[arg-type]


def test_steps_that_are_ready_together_are_drafted_as_one_batch_in_any_order() -> None:
    """Sessions of two verifiers; the answers are those of drafting alone, whatever the order."""
    prompts = {1: (1, 2), 2: (3,), 3: (4, 5, 6)}
    alone: dict[int, tuple[int, ...]] = {}
    for session, prompt in prompts.items():
        peer = Peer(program := program_of(ToyDrafter(mixed(V, 2), V)))
        peer.open(session, prompt)
        peer.ask(session, DENSE)
        program.draft()
        peer.receive()
        alone[session] = tokens_of(peer.results[session][0])
    for order in ((1, 2, 3), (3, 1, 2)):
        engine = ToyDrafter(mixed(V, 2), V)
        program = program_of(engine)
        peers = {1: Peer(program), 2: Peer(program)}
        peers[3] = peers[1]
        for session in order:
            peers[session].open(session, prompts[session])
            peers[session].ask(session, DENSE)
        answered = program.draft()
        assert set(answered) == {peers[1].connection, peers[2].connection}
        assert engine.batches == [3, 3, 3]
        for session in order:
            peers[session].receive()
        for session in order:
            assert tokens_of(peers[session].results[session][0]) == alone[session]


def test_the_context_is_rewound_and_only_what_is_new_is_fed() -> None:
    engine = ToyDrafter(mixed(V, 2), V)
    program = program_of(engine)
    peer = Peer(program)
    peer.open(1, (1, 2, 3, 4, 5))
    peer.ask(1, DENSE)
    program.draft()
    peer.receive()
    assert engine.extended == 5 + 2
    drafts = tokens_of(peer.results[1][0])
    peer.sessions[1].commit(1, Outcome.CORRECTION, (drafts[1] + 1) % V)
    peer.ask(1, DENSE)
    program.draft()
    peer.receive()
    # The first draft stands in the cache already; the correction and two new drafts are fed.
    assert engine.extended == 7 + 1 + 2
    proposal = peer.results[1][1]
    held = [1, 2, 3, 4, 5, drafts[0], (drafts[1] + 1) % V, *tokens_of(proposal)[:-1]]
    assert engine.contexts[0].tokens == held


def test_a_cancel_frees_the_context_and_the_task() -> None:
    engine = ToyDrafter(mixed(V, 2), V)
    program = program_of(engine)
    peer = Peer(program)
    for session in (1, 2):
        peer.open(session, (1, 2))
        peer.ask(session, DENSE)
    for cancel in peer.sessions[1].cancel():
        peer.link.send(cancel)
    peer.send()
    program.draft()
    peer.receive()
    assert peer.results[1] == []
    assert len(peer.results[2]) == 1
    assert engine.batches == [1, 1, 1]
    assert len(engine.contexts) == 1
    for cancel in peer.sessions[2].cancel():
        peer.link.send(cancel)
    peer.send()
    assert not engine.contexts


def test_l26_a_cancel_of_an_older_generation_leaves_the_newer_alone() -> None:
    engine = ToyDrafter(mixed(V, 2), V)
    program = program_of(engine)
    peer = Peer(program)
    peer.open(1, (1, 2))
    peer.ask(1, DENSE)
    program.draft()
    peer.receive()
    old = peer.sessions[1].generation
    resets = peer.sessions[1].reset()
    for reset in resets:
        peer.link.send(reset)
    peer.ask(1, DENSE)
    peer.link.send(Cancel(1, old))
    peer.send()
    program.draft()
    peer.receive()
    assert peer.sessions[1].generation > old
    assert isinstance(peer.results[1][-1], Proposal)
    assert len(engine.contexts) == 1


def test_a_connection_that_ends_frees_all_its_sessions_and_no_others() -> None:
    engine = ToyDrafter(mixed(V, 2), V)
    program = program_of(engine)
    one, other = Peer(program), Peer(program)
    for peer in (one, other):
        for session in (1, 2):
            peer.open(session, (session,))
            peer.ask(session, DENSE)
    program.draft()
    assert len(engine.contexts) == 4
    program.disconnect(one.connection)
    assert len(engine.contexts) == 2
    assert program.connections == {other.connection}
    other.receive()
    assert isinstance(other.results[2][0], Proposal)


def test_limits_of_connections_sessions_and_batches() -> None:
    engine = ToyDrafter(mixed(V, 2), V)
    program = program_of(engine, max_connections=1, max_sessions=3, max_slots=3, max_batch=2)
    peer = Peer(program)
    assert program.connect() is None
    for session in (1, 2, 3):
        peer.open(session, (session,))
        peer.ask(session, DENSE)
    program.draft()
    assert program.waiting
    program.draft()
    assert not program.waiting
    assert engine.batches == [2, 2, 2, 1, 1, 1]
    peer.receive()
    peer.open(4, (4,), slot=0)
    peer.ask(4, DENSE)
    peer.receive()
    assert peer.errors[0].field == "max_sessions"
    assert all(isinstance(peer.results[session][0], Proposal) for session in (1, 2, 3))


def test_a_verifier_with_fifty_sessions_that_wait_does_not_keep_another_waiting() -> None:
    """The one that asked last, for one session, is in the very next batch; the rest is the first's.

    Nothing that waits grows beyond the agreed slots, however often its session asks anew.
    """
    engine = ToyDrafter(mixed(V, 2), V)
    program = program_of(engine, max_sessions=50, max_slots=50, max_batch=8)
    many, single = Peer(program), Peer(program)
    for session in range(1, 51):
        many.open(session, (session % V,))
        many.ask(session, DENSE)
    for _ in range(3):
        for session in range(1, 51):
            many.sessions[session].give_up()
            many.sessions[session].commit(0, Outcome.TARGET_ONLY, 1)
            many.ask(session, DENSE)
        assert program.queued == program.slots_in_use == 50
    assert program.counters.withdrawn == 150
    single.open(1, (1, 2))
    single.ask(1, DENSE)
    assert single.connection in program.draft()
    assert engine.batches == [8, 8, 8]
    single.receive()
    assert isinstance(single.results[1][0], Proposal)
    while program.waiting:
        program.draft()
    many.receive()
    assert all(isinstance(results[-1], Proposal) for results in many.results.values())
    assert engine.batches[3:] == [8] * 15 + [3] * 3


def test_a_step_in_a_slot_that_was_not_agreed_ends_its_own_connection_alone() -> None:
    program = program_of(ToyDrafter(mixed(V, 2), V), max_sessions=3, max_slots=2)
    peer, other = Peer(program), Peer(program)
    other.open(1, (4,))
    other.ask(1, DENSE)
    peer.open(1, (1,), slot=2)
    peer.ask(1, DENSE)
    assert peer.connection.closing
    assert peer.connection.error is not None
    assert peer.connection.error.code is ProtocolErrorCode.LIMIT_EXCEEDED
    assert peer.connection.error.field == "slot"
    program.draft()
    other.receive()
    assert isinstance(other.results[1][0], Proposal)


@dataclass
class OneAtATime(ToyDrafter):
    """An engine that takes one context at a time, and says so by the way it extends."""

    def forward(self, batch: Sequence[tuple[ToyContext, Sequence[int]]]) -> NDArray[np.float32]:
        alone = super().forward
        return np.stack([alone([each])[0] for each in batch])


def test_an_engine_that_takes_one_context_at_a_time_drafts_the_same() -> None:
    drawn = []
    for kind in (ToyDrafter, OneAtATime):
        program = program_of(kind(mixed(V, 2), V))
        peer = Peer(program)
        for session in (1, 2, 3):
            peer.open(session, (session, 5))
            peer.ask(session, DENSE)
        program.draft()
        peer.receive()
        drawn.append([tokens_of(peer.results[session][0]) for session in (1, 2, 3)])
    assert drawn[0] == drawn[1]


class Failing(ToyDrafter):
    """An engine that raises for every context that begins with token 0."""

    def forward(self, batch: Sequence[tuple[ToyContext, Sequence[int]]]) -> NDArray[np.float32]:
        for context, tokens in batch:
            if (*context.tokens, *tokens)[0] == 0:
                context.tokens.extend(tokens)  # left in an unknown state
                raise RuntimeError("out of memory")
        return super().forward(batch)


def test_an_engine_that_fails_costs_the_culprits_proposal_alone() -> None:
    engine = Failing(mixed(V, 2), V)
    program = program_of(engine)
    peer = Peer(program)
    for session, prompt in ((1, (1, 2)), (2, (0, 5)), (3, (3,))):
        peer.open(session, prompt)
        peer.ask(session, DENSE)
    program.draft()
    peer.receive()
    assert isinstance(peer.results[1][0], Proposal)
    assert isinstance(peer.results[3][0], Proposal)
    lost = peer.results[2][0]
    assert isinstance(lost, Dropped)
    assert lost.reason is DropReason.DECLINED_INTERNAL
    # Others of the batch go on from a context that was made again.
    drafts = tokens_of(peer.results[1][0])
    peer.sessions[1].commit(1, Outcome.CORRECTION, (drafts[1] + 1) % V)
    peer.ask(1, DENSE)
    program.draft()
    peer.receive()
    assert isinstance(peer.results[1][1], Proposal)
    peer.sessions[2].commit(0, Outcome.TARGET_ONLY, 4)
    peer.ask(2, DENSE)
    program.draft()
    peer.receive()
    assert isinstance(peer.results[2][1], Dropped)


class Clinging(ToyDrafter):
    """An engine that cannot free a context that begins with token 0, as when its rank is gone."""

    def close(self, context: ToyContext) -> None:
        super().close(context)
        if context.tokens[:1] == [0]:
            raise RuntimeError("a rank is gone")


@pytest.mark.parametrize("end", ["cancel", "disconnect", "leave", "nonsense", "refused"])
def test_an_engine_that_fails_to_close_a_context_costs_nobody_anything(end: str) -> None:
    """Every way in which a session ends: the others are served, and every context is given up."""
    engine = Clinging(mixed(V, 2), V)
    program = program_of(engine)
    one, other = Peer(program), Peer(program)
    for peer in (one, other):
        for session in (1, 2):
            peer.open(session, (0, session))
            peer.ask(session, DENSE)
    program.draft()
    for peer in (one, other):
        peer.receive()
    closed = 2
    if end == "cancel":
        for cancel in one.sessions[1].cancel():
            one.link.send(cancel)
        one.send()
        closed = 1
    elif end == "disconnect":
        program.disconnect(one.connection)
    elif end == "leave":
        one.connection.leave()
    elif end == "refused":
        one.link.send(ErrorMessage(ProtocolErrorCode.BAD_FIELD, session=1, generation=1))
        one.send()
        closed = 1
    else:
        one.connection.buffer()[:4] = b"what"
        one.connection.filled(4)
        assert one.connection.closing
    assert program.counters.engine_failures == closed
    assert len(engine.contexts) == program.open_sessions == 4 - closed
    other.sessions[1].commit(3, Outcome.BONUS, 4)
    other.ask(1, DENSE)
    program.draft()
    other.receive()
    assert isinstance(other.results[1][1], Proposal)


def test_e49_a_refused_row_is_declined_for_its_session_alone() -> None:
    def table(context: tuple[int, ...]) -> Sequence[float]:
        return [0.0] * V if context[0] == 0 else mixed(V, 2)(context)

    program = program_of(ToyDrafter(table, V))
    peer = Peer(program)
    for session, prompt in ((1, (0,)), (2, (1,))):
        peer.open(session, prompt)
        peer.ask(session, SPARSE)
    program.draft()
    peer.receive()
    lost = peer.results[1][0]
    assert isinstance(lost, Dropped)
    assert lost.reason is DropReason.DECLINED_REFUSED_ARITHMETIC
    assert isinstance(peer.results[2][0], Proposal)


def test_shutting_down_declines_what_waits() -> None:
    program = program_of(ToyDrafter(mixed(V, 2), V))
    peer = Peer(program)
    peer.open(1, (1,))
    peer.ask(1, DENSE)
    program.shut_down()
    assert not program.waiting
    peer.receive()
    lost = peer.results[1][0]
    assert isinstance(lost, Dropped)
    assert lost.reason is DropReason.DECLINED_SHUTTING_DOWN


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_sessions": 0},
        {"max_depth": 0},
        {"max_batch": 0},
        {"max_connections": -1},
        {"version": WireVersion.V1},
    ],
)
def test_limits_that_nothing_could_be_done_under_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError):
        DrafterConfig(**wrong)  # type: ignore[arg-type]


def test_layouts_of_both_versions_are_refused() -> None:
    with pytest.raises((ConfigurationError, ProtocolError)):
        DrafterConfig(layouts=LayoutSet.IDS_ONLY | LayoutSet.DENSE)


def test_retries_are_not_answered_while_their_answer_waits_and_count_as_bytes() -> None:
    """Three hundred retries of a STEP at once cost one answer, and one more when it has left."""
    config = DrafterConfig(peer=PeerLimits(bytes_per_second=5000.0))
    program = DrafterProgram(ToyDrafter(mixed(V, 2), V), config)
    peer = Peer(program)
    peer.open(1, (1, 2))
    step = peer.sessions[1].ask(DENSE, 0.0, 1.0)
    peer.link.send(step)
    peer.send()
    program.draft()
    answer = peer.connection.outgoing.size

    def retry(times: int) -> None:
        for _ in range(times):
            peer.link.send(step)
        peer.connection.feed(b"".join(peer.link.outgoing()))

    retry(300)
    assert peer.connection.outgoing.size == answer
    pause = peer.connection.book()
    peer.receive()
    retry(300)
    assert peer.connection.outgoing.size == answer
    assert peer.connection.book() > pause
    peer.receive()
    assert isinstance(peer.results[1][0], Proposal)
