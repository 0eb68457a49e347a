"""Random histories of a program: bounded whatever its verifiers send, however that is cut."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from random import Random
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray

from draftwire.drafter.counters import DrafterCounters
from draftwire.drafter.limits import PeerLimits
from draftwire.drafter.program import Connection, DrafterConfig, DrafterProgram
from draftwire.errors import ProtocolErrorCode
from draftwire.session.drafter_session import DrafterSession
from draftwire.session.link import Link
from draftwire.session.prefix import Prefix
from draftwire.session.proposal import NO_RIDER
from draftwire.session.session_states import State
from draftwire.telemetry.histogram import Histogram
from draftwire.verifier.hello import verifier_hello
from draftwire.wire.checksum import crc32c
from draftwire.wire.codec import encode, message_type
from draftwire.wire.frames import encode_frame, frame_bytes
from draftwire.wire.messages import (
    Cancel,
    Commit,
    CommitRider,
    ErrorMessage,
    Message,
    Ping,
    ProposalPolicy,
    Reset,
    Step,
)
from draftwire.wire.registry import Layout, Outcome, Status, WireVersion
from testing.harness.clock import Clock
from testing.harness.joined import held_by
from testing.toys.models import ToyContext, ToyDrafter, ToyTarget, mixed

V: Final = 9
POLICIES: Final = (
    ProposalPolicy(Layout.SPARSE, 3, 1.0, support=4),
    ProposalPolicy(Layout.SPARSE, 3, 1.0, support=4),
    ProposalPolicy(Layout.SPARSE, 1, 1.0, support=9),
    ProposalPolicy(Layout.DENSE, 2, 1.0),
)
SESSIONS: Final = (1, 2, 3)
VERIFIERS: Final = 2
TABLE: Final = lru_cache(mixed(V, 1))


class Failing(ToyDrafter):
    """An engine that fails when it is told to."""

    fails = False

    def forward(self, batch: Sequence[tuple[ToyContext, Sequence[int]]]) -> NDArray[np.float32]:
        if self.fails:
            raise RuntimeError("told to")
        return super().forward(batch)


class World:
    """One program and its connections."""

    def __init__(self, config: DrafterConfig, clock: Clock) -> None:
        self.engine = Failing(TABLE, V, max_context=40)
        self.program = DrafterProgram(self.engine, config, clock=clock)
        self.connections: list[Connection[ToyContext]] = []

    def connect(self, at: int) -> None:
        connection = self.program.connect()
        assert connection is not None
        link = Link(verifier_hello(ToyTarget(mixed(V, 1), V), max_sessions=2), 0.0)
        link.start()
        feed(connection, b"".join(link.outgoing()))
        connection.outgoing.take(memoryview(bytearray(1 << 16)))
        self.connections[at : at + 1] = [connection]

    def taken(self, at: int, most: int) -> bytes:
        outgoing = self.connections[at].outgoing
        data = bytearray(min(outgoing.size, most))
        outgoing.take(memoryview(data))
        return bytes(data)

    def seen(self) -> tuple[Any, ...]:
        """All that can be told apart from outside, and what later messages are judged by.

        What is held stays within its limits, whatever has been cut off.
        """
        memory = self.program.memory
        assert 0 <= memory.held <= memory.most
        for each in self.connections:
            each.settle()
        assert 0 <= memory.held <= memory.most
        program = self.program
        return (
            numbers_of(program.counters),
            memory.held,
            program.queued,
            program.waiting,
            self.engine.extended,
            [context.tokens for context in self.engine.contexts],
            [connection_of(each) for each in self.connections],
        )


def numbers_of(counters: DrafterCounters) -> list[object]:
    # What comes behind the end of a connection is counted as received where it came with that.
    names = [each.name for each in fields(counters) if each.name != "received"]
    values = [getattr(counters, name) for name in names]
    return [
        each.counts
        if isinstance(each, Histogram)
        else list(each.values())
        if isinstance(each, dict)
        else each
        for each in values
    ]


def connection_of(connection: Connection[ToyContext]) -> tuple[Any, ...]:
    table, link = connection.table, connection._link
    assert table is not None
    return (
        connection.closing,
        connection.error and connection.error.code,
        connection.outgoing.size,
        connection.outgoing.pushed,
        connection._frames,
        connection._repeated,
        connection.heard_at,
        dict(connection._ends),
        {session: held.context.tokens for session, held in connection.contexts.items()},
        dict(connection.answers._of),
        list(table._asked.items()),
        dict(table._slots),
        list(table._ended.items()),
        list(table._lapsed.items()),
        link.state,
        dict(link.received),
        dict(link.sent),
        link.frames,
        [held_by(table[session]) for session in SESSIONS if session in table],
    )


def feed(connection: Connection[ToyContext], data: bytes) -> None:
    view = memoryview(data)
    while len(view) and not connection.closing:
        room = connection.buffer()
        count = min(len(room), len(view))
        room[:count], view = view[:count], view[count:]
        connection.filled(count)


def framed(message: Message) -> bytes:
    return frame_bytes(encode_frame(WireVersion.V2, message_type(message), *encode(message)))


class Verifier:
    """Says what follows from what the drafter holds, or nearly that."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.latest: dict[int, bytes] = {}

    def step(self, session: int, held: DrafterSession | None) -> bytes:
        if held is None or held.state is State.IDLE or self.chance.random() < 0.03:
            step = self._opening(session, 1 if held is None else held.generation)
        elif held._step is None:
            step = self._opening(session, held.generation + 1)
        else:
            step = self._following(held, held._step)
        if self.chance.random() < 0.15:
            step = self._wrong(step)
        data = framed(step)
        if self.chance.random() < 0.05:
            data = self._damaged(data)
        self.latest[session] = data
        return data

    def other(self, session: int, held: DrafterSession | None) -> bytes:
        chance = self.chance
        generation = held.generation if held is not None and held.generation else 1
        kind = chance.randrange(7)
        if kind == 0:
            return framed(Ping(chance.randrange(9)))
        if kind == 1:
            return framed(Cancel(session, generation + chance.choice((0, 0, 1))))
        if kind == 2:
            return framed(Reset(session, generation, generation + 1))
        if kind == 3:
            return framed(ErrorMessage(ProtocolErrorCode.NON_DYADIC_Q, session, generation, 1))
        if kind == 4 and held is not None and held._drafts:
            accepted, outcome, token = self._ending(held._drafts)
            grown = (*held._drafts[:accepted], *(() if token is None else (token,)))
            digest = held._prefix.digest_with(grown)
            length = len(held) + len(grown)
            last = -1 if token is None else token
            return framed(
                Commit(session, generation, held.round, outcome, accepted, last, length, digest)
            )
        return self.latest.get(session, b"")

    def _opening(self, session: int, generation: int) -> Step:
        tokens = tuple(self.chance.randrange(V) for _ in range(self.chance.randint(1, 5)))
        policy = self.chance.choice(POLICIES)
        digest = Prefix(tokens).digest()
        slot = self.chance.choice((session - 1, session - 1, 0)) % 2
        last = len(tokens) - 1
        key = self.chance.randrange(3)
        return Step(session, slot, generation, 1, last, policy, NO_RIDER, 0, key, digest, 0, tokens)

    def _ending(self, drafts: tuple[int, ...]) -> tuple[int, Outcome, int | None]:
        """How a proposal ends: the accepted drafts, the outcome and the token that was drawn."""
        accepted, token = self.chance.randint(0, len(drafts)), self.chance.randrange(V)
        if accepted and self.chance.random() < 0.1:
            return accepted, Outcome.ENDED, None
        if accepted == len(drafts):
            return accepted, Outcome.BONUS, token
        return accepted, Outcome.CORRECTION, token  # which now and then is the rejected draft

    def _following(self, held: DrafterSession, latest: Step) -> Step:
        drafts, prefix = held._drafts, held.tokens
        if not drafts or held.state is not State.PROPOSED or self.chance.random() < 0.05:
            rider = CommitRider(held.round, 0, Outcome.TARGET_ONLY)
            grown = (self.chance.randrange(V),)
            lacks = 1
        else:
            accepted, outcome, token = self._ending(drafts)
            rider = CommitRider(held.round, accepted, outcome)
            grown = (*drafts[:accepted], *(() if token is None else (token,)))
            lacks = self.chance.choice((1, 1, 1, 1, 1, 2, len(prefix)))
        whole = (*prefix, *grown)
        base = max(len(whole) - lacks, 0)
        policy = latest.policy if self.chance.random() < 0.8 else self.chance.choice(POLICIES)
        return replace(
            latest,
            round=held.round + 1,
            anchor=len(whole) - 1,
            policy=policy,
            commit=rider,
            prefix_digest=Prefix(whole).digest(),
            base=base,
            tokens=whole[base:],
        )

    def _wrong(self, step: Step) -> Step:
        """One field of it is another, which may still be right."""
        chance, rider = self.chance, step.commit
        changes: tuple[dict[str, Any], ...] = (
            {"slot": chance.randrange(2)},
            {"generation": step.generation + 1},
            {"round": step.round + chance.choice((1, 2))},
            {"proposal_key": 7},
            {"context_version": 1},
            {"prefix_digest": bytes(16)},
            {"commit": replace(rider, accepted=chance.randint(0, 4))},
            {"commit": replace(rider, outcome=chance.choice(list(Outcome)))},
            {"commit": replace(rider, round=chance.randint(0, step.round))},
            {"tokens": (*step.tokens[:-1], chance.choice((-1, 0, V - 1, V)))},
            {"anchor": step.anchor + 1, "base": step.base + 1},
            {"base": step.base + 1},
            {"session": chance.choice((0, *SESSIONS))},
        )
        return replace(step, **chance.choice(changes))

    def _damaged(self, data: bytes) -> bytes:
        """Some bit is another, under checksums that hold or not."""
        damaged = bytearray(data)
        begin = self.chance.choice((0, 16))
        damaged[self.chance.randrange(begin, len(data))] ^= 1 << self.chance.randrange(8)
        if self.chance.random() < 0.8:
            struct.pack_into("<I", damaged, 12, crc32c(bytes(damaged[:12])))
            struct.pack_into("<I", damaged, len(damaged) - 4, crc32c(bytes(damaged[16:-4])))
        return bytes(damaged)


def split(chance: Random, data: bytes) -> Iterator[bytes]:
    while data:
        count = len(data) if chance.random() < 0.7 else chance.randint(1, len(data))
        yield data[:count]
        data = data[count:]


CONFIGS: Final = {
    "plenty": {},
    "little memory": {"max_reply_memory": 1000},
    "few positions": {"peer": {"max_positions": 4}},
    "pieces": {"max_batch": 1, "peer": {"prefill_chunk_tokens": 3}},
    "leases": {"peer": {"lease_seconds": 6.0, "yield_seconds": 2.0}, "max_reply_memory": 1500},
    "refusals": {"peer": {"refusals_at_once": 4, "refusals_per_second": 0.5}},
}


def config_of(name: str) -> DrafterConfig:
    given = dict(CONFIGS[name])
    peer = PeerLimits(**{"refusals_at_once": 1 << 20, **given.pop("peer", {})})  # type: ignore[arg-type, dict-item]
    limits = {"max_sessions": 2, "max_slots": 2, "max_depth": 3, "max_support": 9} | given
    return DrafterConfig(peer=peer, **limits)  # type: ignore[arg-type]


def history(name: str, seed: int, length: int) -> int:
    """One random history of two worlds; returns how many proposals were made.

    The second world reads what the first reads in pieces at once: it must be the same.
    """
    chance, clock = Random(f"{name} {seed}"), Clock()
    worlds = [World(config_of(name), clock) for _ in range(2)]
    first, second = worlds
    verifiers = [Verifier(chance) for _ in range(VERIFIERS)]
    for at in range(VERIFIERS):
        for world in worlds:
            world.connect(at)
    for turn in range(length):
        clock.now += 1e-3  # of equally silent sessions either may be evicted
        at, what = chance.randrange(VERIFIERS), chance.random()
        verifier, connection = verifiers[at], first.connections[at]
        if connection.closing or what < 0.002:
            assert len({world.taken(at, 1 << 30) for world in worlds}) == 1
            for world in worlds:
                world.program.disconnect(world.connections[at])
                world.connect(at)
            verifier.latest.clear()
        elif what < 0.45:
            assert connection.table is not None
            data = b""
            for session in chance.sample(SESSIONS, chance.randint(1, 2)):
                held = connection.table._sessions.get(session)
                makes = verifier.step if chance.random() < 0.9 else verifier.other
                data += makes(session, held)
            for piece in split(chance, data):
                feed(first.connections[at], piece)
            feed(second.connections[at], data)
            assert len({world.connections[at].book() for world in worlds}) == 1
        elif what < 0.75:
            failing = chance.random() < 0.02
            for world in worlds:
                world.engine.fails = failing
                world.program.draft()
                world.engine.fails = False
        elif what < 0.97:
            most = chance.choice((1 << 30, 1 << 30, chance.randint(1, 300)))
            assert len({world.taken(at, most) for world in worlds}) == 1
        elif what < 0.995:
            clock.now += chance.choice((0.1, 1.0, 3.0))
        elif turn > 0.9 * length:
            for world in worlds:
                world.program.drain()
        assert first.seen() == second.seen()
    for world in worlds:
        for connection in world.connections:
            world.program.disconnect(connection)
        assert world.program.memory.held == 0
        assert not world.engine.contexts
    return first.program.counters.proposals


@pytest.mark.parametrize("name", CONFIGS)
def test_every_history_is_bounded_and_the_same_however_its_bytes_are_cut(name: str) -> None:
    assert history(name, 0, 800) > 20


def test_a_program_that_drains_declines_what_it_has_no_context_for() -> None:
    """As one whose contexts are its leader's (P29)."""
    world, verifier = World(config_of("plenty"), Clock()), Verifier(Random(2))
    world.connect(0)
    (connection,) = world.connections
    feed(connection, framed(verifier._opening(1, 1)))
    world.program.draft()
    world.taken(0, 1 << 30)
    assert connection.table is not None
    held = connection.table[1]
    assert held.state is State.PROPOSED
    assert held._step is not None
    world.program.close_context(connection, 1)
    world.program.drain()
    feed(connection, framed(verifier._following(held, held._step)))
    assert held.state is State.TARGET_ONLY
    assert world.program.counters.declined[Status.SHUTTING_DOWN] == 1
    assert not world.program.waiting
    world.seen()
