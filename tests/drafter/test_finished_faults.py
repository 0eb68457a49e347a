"""Kept contexts when the engine, a verifier or the server fails, or changes its mind (case M13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.drafter.server import DrafterServer
from draftwire.session.proposal import Proposal
from draftwire.session.verifier_session import VerifierSession
from draftwire.transport.tcp import listen
from draftwire.verifier.remote import RemoteDrafter
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from testing.harness.certificates import tls_files
from testing.harness.servers import serving
from testing.toys.models import ToyContext, ToyDrafter, ToyTarget, mixed
from tests.drafter.peer import Peer
from tests.drafter.peer import V as PEERS_VOCABULARY
from tests.drafter.test_finished import KEEPS, PROMPT, VOCABULARY, local, turn

DENSE = ProposalPolicy(Layout.DENSE, 3, 1.0)
PEERS = ("authority.pem", "stranger.pem")  # whose certificates the drafter trusts


class Failing(ToyDrafter):
    """An engine that fails with a context that another session had."""

    fails: str = ""

    def truncate(self, context: ToyContext, length: int) -> None:
        """Raise where a long context is cut."""
        if self.fails == "truncate" and context.length > 100 and length > 100:
            raise RuntimeError("no")
        super().truncate(context, length)

    def context_bytes(self, context: ToyContext) -> int:
        """Raise, if told."""
        if self.fails == "measure":
            raise RuntimeError("no")
        return super().context_bytes(context)


@pytest.mark.parametrize("fails", ["truncate", "measure"])
def test_an_engine_that_fails_with_a_kept_context_costs_nothing_else(fails: str) -> None:
    table = mixed(VOCABULARY, 5)
    engine, target = Failing(table, VOCABULARY), ToyTarget(table, VOCABULARY)
    with local(engine, target) as (program, drafter):
        turn(drafter, target, PROMPT, 3)
        engine.fails = fails
        _, report = turn(drafter, target, [*PROMPT, 1], 3)
        assert report.accepted > 0
        assert not report.misses
        assert program.counters.engine_failures == 1
        engine.fails = ""


@dataclass
class Forgetful(ToyDrafter):
    """An engine that cannot feed a context which was cut, once told so."""

    fails: bool = False
    cut: ToyContext | None = None

    def truncate(self, context: ToyContext, length: int) -> None:
        """Remember whose state is spoilt."""
        if 100 < length < context.length:
            self.cut = context
        super().truncate(context, length)

    def forward(self, batch: Sequence[tuple[ToyContext, Sequence[int]]]) -> NDArray[np.float32]:
        """Raise for the one that was cut."""
        if self.fails and any(context is self.cut for context, _ in batch):
            raise RuntimeError("no")
        return super().forward(batch)


def test_a_kept_context_that_cannot_be_fed_is_left_for_a_new_one() -> None:
    table = mixed(VOCABULARY, 5)
    engine, target = Forgetful(table, VOCABULARY), ToyTarget(table, VOCABULARY)
    with local(engine, target) as (program, drafter):
        turn(drafter, target, PROMPT, 3)
        engine.fails = True
        request = drafter.open([*PROMPT[:150], 1, 2], 1)
        assert isinstance(request.propose(DENSE), Proposal)  # in its first round
        request.close()
        assert program.finished.counters.reused == 1
        assert program.counters.engine_failures == 1


def test_one_that_cannot_be_fed_in_chunks_is_left_as_well() -> None:
    table = mixed(VOCABULARY, 5)
    engine, target = Forgetful(table, VOCABULARY), ToyTarget(table, VOCABULARY)
    chunks = replace(KEEPS, peer=replace(KEEPS.peer, prefill_chunk_tokens=16))
    with local(engine, target, chunks) as (program, drafter):
        turn(drafter, target, PROMPT, 3)
        engine.fails = True
        request = drafter.open([*PROMPT[:150], *range(VOCABULARY)] * 2, 1)
        assert isinstance(request.propose(DENSE), Proposal)
        request.close()
        assert program.counters.engine_failures == 1


@dataclass
class Small(ToyDrafter):
    """An engine whose contexts hold ``room`` tokens together, and no more."""

    room: int = 500

    def forward(self, batch: Sequence[tuple[ToyContext, Sequence[int]]]) -> NDArray[np.float32]:
        """Raise where there is no room, with nothing fed."""
        if sum(each.length for each in self.contexts) + sum(len(new) for _, new in batch) > (
            self.room
        ):
            raise MemoryError
        return super().forward(batch)


def test_what_is_kept_goes_before_a_live_session_lacks_memory() -> None:
    table = mixed(VOCABULARY, 5)
    engine, target = Small(table, VOCABULARY), ToyTarget(table, VOCABULARY)
    with local(engine, target) as (program, drafter):
        for at in range(6):
            _, report = turn(drafter, target, [at, *PROMPT])
            assert report.accepted > 0
            assert not report.misses
        assert program.counters.engine_failures == program.finished.counters.evicted / 2 > 1


@pytest.mark.parametrize("second", [[1, *PROMPT], PROMPT[:100], [3, 4, 5]])
def test_a_session_that_begins_another_text_before_it_is_drawn_for(second: list[int]) -> None:
    second = [each % PEERS_VOCABULARY for each in second]
    first = [each % PEERS_VOCABULARY for each in PROMPT]
    engine = ToyDrafter(mixed(PEERS_VOCABULARY, 2), PEERS_VOCABULARY)
    program = DrafterProgram(engine, KEEPS)
    peer = Peer(program)
    peer.open(1, first)
    peer.ask(1, DENSE)
    program.draft()
    peer.receive()
    for cancel in peer.sessions[1].cancel():
        peer.link.send(cancel)
    peer.send()
    assert len(program.finished) == 1
    peer.open(2, first, slot=0)
    peer.ask(2, DENSE)  # takes what is kept
    assert len(program.finished) == 0
    peer.sessions[2] = VerifierSession(2, 0, second, 79, peer.link.agreed)
    opening = peer.sessions[2].ask(DENSE, 0.0, 1.0)
    peer.link.send(replace(opening, generation=opening.generation + 1))
    peer.send()
    assert program.draft() == [peer.connection]
    assert engine.contexts[0].tokens[: len(second)] == second
    assert len(engine.contexts[0].tokens) == len(second) + DENSE.depth - 1
    assert program.counters.proposals == 2


def test_a_session_that_is_over_before_it_is_drawn_for_gives_back_what_it_took() -> None:
    table = mixed(PEERS_VOCABULARY, 2)
    program = DrafterProgram(ToyDrafter(table, PEERS_VOCABULARY), KEEPS)
    peer = Peer(program)
    prompt = [each % PEERS_VOCABULARY for each in PROMPT]
    for session, drawn in ((1, True), (2, False), (3, True)):
        peer.open(session, prompt, slot=0)
        peer.ask(session, DENSE)
        if drawn:
            program.draft()
            peer.receive()
        for cancel in peer.sessions[session].cancel():
            peer.link.send(cancel)
        peer.send()
    assert program.finished.counters.reused == 2
    assert program.counters.fed_tokens == len(prompt) + 1  # the last token alone, the second time


def test_a_server_that_ends_in_trouble_keeps_nothing() -> None:
    engine = ToyDrafter(mixed(VOCABULARY, 5), VOCABULARY)
    program = DrafterProgram(engine, KEEPS)
    with DrafterServer(program, listen("127.0.0.1", 0)):
        peer = Peer(program, ToyTarget(mixed(VOCABULARY, 5), VOCABULARY))
        peer.open(1, PROMPT)
        peer.ask(1, DENSE)
        program.draft()
        peer.connection.owner = b"one"
        program.disconnect(peer.connection)
        assert len(program.finished) == len(engine.contexts) == 1
    assert (len(program.finished), engine.contexts) == (0, [])


def test_certificates_share_among_their_own_connections_alone(tmp_path: Path) -> None:
    table = mixed(VOCABULARY, 5)
    engine, target = ToyDrafter(table, VOCABULARY), ToyTarget(table, VOCABULARY)
    program = DrafterProgram(engine, KEEPS)
    fed = []
    theirs = tls_files(tmp_path, "drafter")
    both = tmp_path / "both.pem"
    both.write_bytes(b"".join((tmp_path / name).read_bytes() for name in PEERS))
    with serving(program, replace(theirs, trusted=both)) as server:
        for name in ("verifier", "stranger", "verifier"):
            ours = tls_files(tmp_path, name)
            with RemoteDrafter(
                server.address, target, security=ours, deadline=20.0, connect_timeout=10.0
            ) as client:
                before = program.counters.fed_tokens
                _, report = turn(client, target, PROMPT, 2)
                assert not report.misses
                fed.append(program.counters.fed_tokens - before)
    assert fed[0] == fed[1] >= len(PROMPT)
    assert fed[2] < 10
    assert not engine.contexts


def test_a_long_life_does_not_grow() -> None:
    table = mixed(VOCABULARY, 5)
    engine, target = ToyDrafter(table, VOCABULARY), ToyTarget(table, VOCABULARY)
    config = DrafterConfig(kept_prefix_memory=8 * 350)
    with local(engine, target, config) as (program, drafter):
        for at in range(200):
            # Six texts, of which some begin alike, a little longer every time.
            text = [(at % 6 * 5 + place) % VOCABULARY for place in range(20 + at // 4)]
            turn(drafter, target, text, 4)
            assert program.finished.bytes <= config.kept_prefix_memory
            assert len(engine.contexts) == len(program.finished) < 25
        counters = program.finished.counters
        assert counters.kept == counters.reused + counters.evicted + len(program.finished)
        assert counters.reused > 50
        assert counters.evicted > 10
