"""Long prefixes are fed in pieces: others are served between, and no bit depends on the company."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from draftwire.drafter.limits import PeerLimits
from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.engines.hf import HfDraftEngine, embedded_folder
from draftwire.session.proposal import Dropped, Proposal
from draftwire.session.reasons import DropReason
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout, Outcome
from testing.toys.models import ToyContext, ToyDrafter, mixed
from tests.drafter.peer import Peer, V, tokens_of

DENSE = ProposalPolicy(Layout.DENSE, 3, 1.0)
LONG = tuple(range(V)) * 5  # 45 tokens


def program_of(engine: Any, prefill_chunk_tokens: int = 8) -> DrafterProgram[Any]:
    return DrafterProgram(
        engine, DrafterConfig(peer=PeerLimits(prefill_chunk_tokens=prefill_chunk_tokens))
    )


def drafted(program: DrafterProgram[Any], peer: Peer, session: int) -> Proposal:
    while program.waiting:
        program.draft()
    peer.receive()
    result = peer.results[session][-1]
    assert isinstance(result, Proposal)
    return result


def test_a_long_prefix_is_fed_in_pieces_and_others_are_drawn_for_between() -> None:
    """45 tokens in pieces of 8; each batch draws for the neighbour, and the drafts are the same."""
    whole = program_of(ToyDrafter(mixed(V, 2), V), 100)
    peer = Peer(whole)
    peer.open(1, LONG)
    peer.ask(1, DENSE)
    expected = drafted(whole, peer, 1)
    rows = [row.counts.tobytes() for row in expected.rows]
    assert whole.counters.prefill_chunks == 0

    engine = ToyDrafter(mixed(V, 2), V)
    program = program_of(engine)
    peer, neighbour = Peer(program), Peer(program)
    peer.open(1, LONG)
    peer.ask(1, DENSE)
    neighbour.open(1, (1, 2))
    batches = 0
    while program.owes(peer.connection):
        before = engine.extended
        neighbour.ask(1, DENSE)
        program.draft()
        batches += 1
        assert engine.extended - before <= 8 + 2 + 2 * DENSE.depth
        neighbour.receive()
        drafts = tokens_of(neighbour.results[1][-1])
        neighbour.sessions[1].commit(1, Outcome.CORRECTION, (drafts[1] + 1) % V)
    assert batches == 6
    assert program.counters.prefill_chunks == 5
    result = drafted(program, peer, 1)
    assert result.tokens == expected.tokens
    assert [row.counts.tobytes() for row in result.rows] == rows


def test_a_session_that_asks_anew_while_it_is_fed_goes_on_from_there() -> None:
    """A verifier that cannot wait for its whole prompt is drawn for some rounds later all the same.

    In another generation too, as far as the prefixes agree.
    """
    engine = ToyDrafter(mixed(V, 2), V)
    program = program_of(engine)
    peer = Peer(program)
    peer.open(1, LONG)
    peer.ask(1, DENSE)
    program.draft()
    program.draft()
    for token in (3, 4):
        peer.sessions[1].give_up()
        peer.sessions[1].commit(0, Outcome.TARGET_ONLY, token)
        peer.ask(1, DENSE)
        program.draft()
    assert engine.extended == 32
    for reset in peer.sessions[1].reset():
        peer.link.send(reset)
    peer.ask(1, DENSE)
    result = drafted(program, peer, 1)
    assert engine.extended == len(LONG) + 2 + DENSE.depth - 1
    assert engine.contexts[0].tokens == [*LONG, 3, 4, *result.tokens[:-1]]


def test_a_session_that_is_reset_while_it_is_fed_is_fed_no_more() -> None:
    engine = ToyDrafter(mixed(V, 2), V)
    program = program_of(engine)
    peer = Peer(program)
    for session, prompt in ((1, LONG), (2, (1, 2))):
        peer.open(session, prompt)
        peer.ask(session, DENSE)
    program.draft()
    fed = engine.extended
    for session in (1, 2):
        for reset in peer.sessions[session].reset():
            peer.link.send(reset)
    peer.send()
    while program.waiting:
        program.draft()
    assert engine.extended == fed == 8
    assert program.counters.withdrawn == 2


def test_a_session_that_ends_while_it_is_fed_leaves_nothing() -> None:
    engine = ToyDrafter(mixed(V, 2), V)
    program = program_of(engine)
    peer = Peer(program)
    peer.open(1, LONG)
    peer.ask(1, DENSE)
    program.draft()
    for cancel in peer.sessions[1].cancel():
        peer.link.send(cancel)
    peer.send()
    assert not program.waiting
    assert not engine.contexts
    assert not program.slots_in_use


class FailsAt(ToyDrafter):
    """An engine that raises once a context that begins with 0 holds so many tokens."""

    def forward(self, batch: Sequence[tuple[ToyContext, Sequence[int]]]) -> NDArray[np.float32]:
        for context, tokens in batch:
            if (*context.tokens, *tokens)[0] == 0 and len(context.tokens) + len(tokens) >= 20:
                raise RuntimeError("out of memory")
        return super().forward(batch)


def test_an_engine_that_fails_while_it_is_fed_costs_the_culprits_proposal_alone() -> None:
    engine = FailsAt(mixed(V, 2), V)
    program = program_of(engine)
    peer, neighbour = Peer(program), Peer(program)
    peer.open(1, LONG)
    neighbour.open(1, LONG[1:])
    peer.ask(1, DENSE)
    neighbour.ask(1, DENSE)
    assert isinstance(drafted(program, neighbour, 1), Proposal)
    peer.receive()
    lost = peer.results[1][0]
    assert isinstance(lost, Dropped)
    assert lost.reason is DropReason.DECLINED_INTERNAL
    assert not program.waiting


def test_a_context_that_is_made_again_is_fed_in_pieces_too() -> None:
    """What counts is what the model has to be fed, not what is new."""
    engine = ToyDrafter(mixed(V, 2), V)
    program = program_of(engine)
    peer = Peer(program)
    peer.open(1, LONG)
    peer.ask(1, DENSE)
    first = drafted(program, peer, 1)
    program.close_context(peer.connection, 1)
    peer.sessions[1].commit(1, Outcome.CORRECTION, (first.tokens[1] + 1) % V)
    peer.ask(1, DENSE)
    before = engine.extended
    program.draft()
    assert engine.extended == before + 8
    drafted(program, peer, 1)
    assert engine.extended == before + len(LONG) + 2 + DENSE.depth - 1


@pytest.mark.parametrize("waiting", [True, False])
def test_going_away_while_a_prefix_is_fed_declines_it(waiting: bool) -> None:
    engine = ToyDrafter(mixed(V, 2), V)
    program = program_of(engine)
    peer = Peer(program)
    peer.open(1, LONG)
    peer.ask(1, DENSE)
    if waiting:
        program.draft()
    program.shut_down()
    peer.receive()
    assert not program.waiting
    lost = peer.results[1][0]
    assert isinstance(lost, Dropped)
    assert lost.reason is DropReason.DECLINED_SHUTTING_DOWN


def test_the_bits_of_a_model_do_not_depend_on_who_is_fed_between() -> None:
    """Where a prefix is cut follows from it alone: pieces of 16 tokens, in any company."""
    engine = HfDraftEngine.from_folder(embedded_folder("drafter"))
    prompts = {1: tuple(range(5, 75)), 2: (3, 1), 3: tuple(range(200, 240)), 4: (9,) * 16}

    def run(order: Sequence[int], late: Sequence[int] = ()) -> dict[int, list[bytes]]:
        program = program_of(engine, 16)
        peers = {session: Peer(program, engine) for session in (*order, *late)}
        for session in order:
            peers[session].open(session, prompts[session], slot=0)
            peers[session].ask(session, DENSE)
        for session in late:
            program.draft()
            peers[session].open(session, prompts[session], slot=0)
            peers[session].ask(session, DENSE)
        rows = {}
        for session, peer in peers.items():
            result = drafted(program, peer, session)
            rows[session] = [row.counts.tobytes() for row in result.rows]
            program.disconnect(peer.connection)
        return rows

    together = run((1, 2, 3, 4))
    for session in prompts:
        assert run((session,)) == {session: together[session]}
    for order, late in (((4, 3, 2, 1), ()), ((1,), (2, 3)), ((3, 2), (4, 1))):
        assert run(order, late) == {session: together[session] for session in (*order, *late)}
