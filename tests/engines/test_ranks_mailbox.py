"""Shards lie on a drafter's rank for the verifier that they were drawn for, and for no other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.engines.parallel.drafter import RankedJob
from draftwire.engines.parallel.mailbox import ShardMailbox
from draftwire.engines.parallel.reply import FollowerProgram
from draftwire.exact.words import link_key
from draftwire.kernels.shards.shard import Shard
from draftwire.rows.shards import ShardDraft
from draftwire.session.proposal import DraftTask
from draftwire.session.shards import ShardProposal
from draftwire.session.verifier_session import VerifierSession
from draftwire.verifier.hello import verifier_hello
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TOTAL, Layout
from testing.toys.models import ToyDrafter, mixed
from tests.drafter.peer import TARGET, Peer, V

POLICY = ProposalPolicy(Layout.DENSE, 1, 1.0)
SHARD = Shard(V, 5, V, 1, 2)
SESSION = 1234
KEYS = (77, 78)  # proposal keys, one a verifier


def job(number: int, key: int, round_: int = 1) -> RankedJob:
    return RankedJob(number, SESSION, link_key(key), 1, round_, POLICY, (1, 2))


def draft(token: int) -> ShardDraft:
    counts = np.zeros((1, SHARD.width), np.int32)
    counts[0, token - SHARD.begin] = TOTAL
    return ShardDraft(SHARD, (token,), counts)


def task(key: int, round_: int = 1) -> DraftTask:
    return DraftTask(SESSION, 0, 1, round_, POLICY, link_key(key), 0, (1, 2), 2, 0)


def test_equal_sessions_of_two_verifiers_have_places_of_their_own() -> None:
    mailbox = ShardMailbox()
    first, second = object(), object()
    mailbox.put(job(1, KEYS[0]), draft(5))
    mailbox.put(job(2, KEYS[1]), draft(6))
    assert mailbox.take(second, task(KEYS[1])).tokens == (6,)  # type: ignore[union-attr]
    assert mailbox.take(first, task(KEYS[0])).tokens == (5,)  # type: ignore[union-attr]
    assert mailbox.take(first, task(KEYS[0])) is None  # once


def test_a_session_that_is_named_without_its_key_is_not_there() -> None:
    mailbox = ShardMailbox()
    mailbox.put(job(1, KEYS[0]), draft(5))
    for stranger in (task(KEYS[1]), replace(task(0), proposal_key=0)):
        assert not mailbox.has(object(), stranger) and mailbox.take(object(), stranger) is None
    assert mailbox.has(object(), task(KEYS[0]))


def test_a_place_is_its_first_connections_until_that_ends() -> None:
    """Even from one that knows session and key."""
    mailbox = ShardMailbox()
    own, other = object(), object()
    mailbox.put(job(1, KEYS[0]), draft(5))
    assert mailbox.take(own, task(KEYS[0])) is not None
    mailbox.put(job(1, KEYS[0], 2), draft(6))
    assert not mailbox.has(other, task(KEYS[0], 2))
    assert mailbox.take(other, task(KEYS[0], 2)) is None
    mailbox.leave(other)
    assert not mailbox.has(other, task(KEYS[0], 2))
    mailbox.leave(own)
    assert mailbox.take(other, task(KEYS[0], 2)).tokens == (6,)  # type: ignore[union-attr]


def test_the_end_of_one_session_is_not_that_of_its_namesake() -> None:
    """One key as well: two contexts of the leader's are two places."""
    mailbox = ShardMailbox()
    mailbox.put(job(1, KEYS[0]), draft(5))
    mailbox.put(job(2, KEYS[0], 4), draft(6))
    mailbox.end(1)
    assert not mailbox.has(object(), task(KEYS[0]))
    assert mailbox.has(object(), task(KEYS[0], 4))
    mailbox.end(2)
    mailbox.end(2)
    assert mailbox.empty


def test_a_verifier_that_changes_its_key_harms_nobody() -> None:
    """A STEP may name any key: the place goes on under it, and the session ends as any other."""
    mailbox = ShardMailbox()
    own = object()
    mailbox.put(job(1, KEYS[0]), draft(5))
    assert mailbox.take(own, task(KEYS[0])) is not None
    mailbox.put(job(1, KEYS[1], 2), draft(6))
    assert not mailbox.has(own, task(KEYS[0], 2))
    assert not mailbox.has(object(), task(KEYS[1], 2))
    assert mailbox.take(own, task(KEYS[1], 2)).tokens == (6,)  # type: ignore[union-attr]
    mailbox.end(1)
    assert mailbox.empty


class ShardPeer(Peer):
    """A verifier's rank: its sessions take one shard."""

    def __init__(self, program: DrafterProgram[Any]) -> None:
        super().__init__(program, hello=verifier_hello(TARGET, shard_count=2))

    def begin(self, key: int) -> None:
        agreed = self.link.agreed
        self.sessions[SESSION] = VerifierSession(
            SESSION, 0, (1, 2), link_key(key), agreed, audit=False, shard=SHARD
        )
        self.results[SESSION] = []


@pytest.mark.parametrize("drawn", [(0, 1), (1, 0)])
def test_two_verifiers_with_one_session_id_get_their_own_shards(
    drawn: tuple[int, int],
) -> None:
    """Over the wire, whichever proposal is drawn first; a third one waits for nothing."""
    mailbox = ShardMailbox()
    engine: Any = ToyDrafter(mixed(V, 2), V)
    program = FollowerProgram(engine, DrafterConfig(shard_count=2), mailbox)
    peers = [ShardPeer(program) for _ in range(3)]
    for peer, key in zip(peers, (*KEYS, 79), strict=True):
        peer.begin(key)
        peer.ask(SESSION, POLICY)
    assert not program.waiting
    for index in drawn:
        mailbox.put(job(index + 1, KEYS[index]), draft(5 + index))
        assert program.waiting
        assert program.draft() == [peers[index].connection]
        assert not program.waiting
    for index, peer in enumerate(peers):
        peer.receive()
        tokens = [each.tokens for each in peer.results[SESSION] if isinstance(each, ShardProposal)]
        assert tokens == ([(5 + index,)] if index < 2 else [])


def test_a_connection_that_ends_leaves_its_places_to_the_next() -> None:
    mailbox = ShardMailbox()
    engine: Any = ToyDrafter(mixed(V, 2), V)
    program = FollowerProgram(engine, DrafterConfig(shard_count=2), mailbox)
    for round_ in (1, 2):
        peer = ShardPeer(program)
        peer.begin(KEYS[0])
        for _ in range(round_ - 1):
            peer.sessions[SESSION].reset()
        peer.ask(SESSION, POLICY)
        asked = replace(job(1, KEYS[0]), generation=peer.sessions[SESSION].generation)
        mailbox.put(asked, draft(5))
        assert program.draft() == [peer.connection]
        program.disconnect(peer.connection)
