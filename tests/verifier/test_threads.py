"""Case M3: one drafter shared by threads, by asyncio and across a fork; rounds overlap."""

from __future__ import annotations

import ast
import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.session.reasons import DropReason
from draftwire.transport.channel import Channel, Part
from draftwire.transport.keys import PresharedKey
from draftwire.transport.security import Security
from draftwire.verifier.client import DraftClient
from draftwire.verifier.generate import generate
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.remote import RemoteDrafter
from draftwire.verifier.report import Report
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from testing.harness.certificates import tls_files
from testing.harness.servers import serving
from testing.toys.models import ToyDrafter, ToyTarget, mixed

V = 11
PROMPT = (1, 2, 3)
POLICY = ProposalPolicy(Layout.SPARSE, 3, 1.0, support=6)
TOKENS, TEXTS, THREADS = 24, 6, 4
SECRET = bytes(range(32))


def toys() -> tuple[ToyTarget, ToyDrafter]:
    return ToyTarget(mixed(V, 1), V), ToyDrafter(mixed(V, 1, sharpness=1.2), V)


def text_of(client: DraftClient | None, seed: int) -> tuple[tuple[int, ...], Report]:
    """A text of its own target, so that nothing but the drafter is shared."""
    sampling = Sampling(seed=seed, max_tokens=TOKENS)
    with generate(toys()[0], client, PROMPT, sampling, POLICY) as running:
        tokens = tuple(each.token for each in running)
    return tokens, running.report


@contextmanager
def shared(
    security: str = "none", folder: Path = Path(), **options: object
) -> Iterator[RemoteDrafter]:
    """A drafter over TCP; afterwards nothing of it is left open."""
    target, engine = toys()
    theirs: Security | None = None
    mine: Security | None = None
    key = b""
    if security == "key":
        theirs = mine = PresharedKey(SECRET)
        key = SECRET
    elif security == "tls":
        theirs, mine = (tls_files(folder, name) for name in ("drafter", "verifier"))
    config = DrafterConfig(max_sessions=THREADS, max_slots=THREADS)
    program = DrafterProgram(engine, config, key=key)
    options = {"deadline": 60.0, "connect_timeout": 20.0, **options}
    with (
        serving(program, theirs) as server,
        RemoteDrafter(server.address, target, security=mine, **options) as client,
    ):
        yield client
    assert not engine.contexts


@pytest.mark.parametrize("security", ["none", "key", "tls"])
def test_texts_of_several_threads_are_those_of_one(security: str, tmp_path: Path) -> None:
    seeds = range(THREADS * TEXTS)
    with shared(security, tmp_path) as client:
        alone = [text_of(client, seed) for seed in seeds]
        with ThreadPoolExecutor(THREADS) as pool:
            together = list(pool.map(lambda seed: text_of(client, seed), seeds))
        assert client.counters.connections == 1
    assert [tokens for tokens, _ in together] == [tokens for tokens, _ in alone]
    for _, report in together:
        assert not report.misses and not report.discarded
        assert report.accepted  # the last token of a text is not drafted
        assert report.drafted_rounds >= report.rounds - 1


def test_asyncio_threads_share_it_too() -> None:
    async def texts(client: DraftClient) -> list[tuple[tuple[int, ...], Report]]:
        return await asyncio.gather(
            *(asyncio.to_thread(text_of, client, seed) for seed in range(THREADS))
        )

    with shared() as client:
        together = asyncio.run(texts(client))
        alone = [text_of(client, seed) for seed in range(THREADS)]
    assert [tokens for tokens, _ in together] == [tokens for tokens, _ in alone]
    assert all(not report.misses and report.accepted for _, report in together)


class Gate:
    """A channel that hands out bytes only when so many messages have been sent before."""

    def __init__(self, inner: Channel, sends: int) -> None:
        self.inner, self.sends = inner, sends
        self.sent = 0
        self.open = threading.Event()

    def send(self, parts: Sequence[Part], deadline: float) -> None:
        self.inner.send(parts, deadline)
        self.sent += 1
        if self.sent >= self.sends:
            self.open.set()

    def receive_into(self, buffer: memoryview, deadline: float) -> int:
        if self.sent and not self.open.wait(20.0):
            raise ConnectionResetError("the rounds do not overlap")
        return self.inner.receive_into(buffer, deadline)

    def close(self) -> None:
        self.inner.close()


def gated(sends: int) -> tuple[LocalDrafter, list[Gate]]:
    target, engine = toys()
    gates: list[Gate] = []

    def through(channel: Channel) -> Channel:
        gates.append(Gate(channel, sends))
        return gates[-1]

    program = DrafterProgram(engine, DrafterConfig())
    return LocalDrafter(program, target, through=through, deadline=60.0), gates


def test_two_rounds_are_in_flight_together() -> None:
    client, gates = gated(1)  # HELLO passes
    with client:
        client.connect()
        (gate,) = gates
        gate.open.clear()
        gate.sent, gate.sends = 1, 3  # then two STEPs before any answer
        requests = [client.open(PROMPT, key) for key in (1, 2)]
        with ThreadPoolExecutor(2) as pool:
            drafted = list(pool.map(lambda each: each.propose(POLICY), requests))
    assert [len(each.tokens) for each in drafted] == [3, 3]  # type: ignore[union-attr]


def test_a_thread_that_waits_past_its_deadline_misses_alone() -> None:
    client, gates = gated(1)
    with client:
        client.connect()
        (gate,) = gates
        gate.open.clear()
        gate.sent, gate.sends = 1, 1 << 30
        first, second = (client.open(PROMPT, key) for key in (1, 2))
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(first.propose, POLICY)  # it reads
            while not client.connection.reading:
                threading.Event().wait(0.001)
            (late,) = client.propose_all([(second, POLICY)], client.clock() + 0.05)
            assert late.reason is DropReason.MISSED_DEADLINE  # type: ignore[union-attr]
            assert not waits.done()
            gate.open.set()
            assert len(waits.result(20.0).tokens) == 3  # type: ignore[union-attr]
        assert client.counters.lost == 0


class Interruption(BaseException):
    """As a KeyboardInterrupt, but of one thread."""


def test_an_interrupted_thread_costs_the_others_one_round() -> None:
    class Interrupting(Gate):
        armed = False

        def receive_into(self, buffer: memoryview, deadline: float) -> int:
            if Interrupting.armed and self.sent >= 2:
                self.open.wait(20.0)
                Interrupting.armed = False
                raise Interruption
            return self.inner.receive_into(buffer, deadline)

    target, engine = toys()
    gates: list[Interrupting] = []

    def through(channel: Channel) -> Channel:
        gates.append(Interrupting(channel, 3))
        return gates[-1]

    program = DrafterProgram(engine, DrafterConfig())
    with LocalDrafter(program, target, through=through, deadline=60.0) as client:
        client.connect()
        first, second = (client.open(PROMPT, key) for key in (1, 2))
        Interrupting.armed = True
        gates[0].open.clear()
        with ThreadPoolExecutor(2) as pool:
            reads = pool.submit(first.propose, POLICY)
            while not client.connection.reading:
                threading.Event().wait(0.001)
            waits = pool.submit(second.propose, POLICY)
            with pytest.raises(Interruption):
                reads.result(20.0)
            assert waits.result(20.0).reason is DropReason.DISCONNECTED  # type: ignore[union-attr]
        third = client.open(PROMPT, 3)
        drafted = third.propose(POLICY)
        assert len(drafted.tokens) == 3  # type: ignore[union-attr]


def test_closing_ends_a_wait_in_another_thread() -> None:
    target, _ = toys()
    silent = threading.Event()

    class Slow(ToyDrafter):
        def forward(self, batch: object) -> object:
            if silent.is_set():
                threading.Event().wait(3.0)
            return super().forward(batch)  # type: ignore[arg-type]

    program = DrafterProgram(Slow(mixed(V, 1), V), DrafterConfig())
    with serving(program) as server:
        client = RemoteDrafter(server.address, target, deadline=60.0, connect_timeout=20.0)
        client.connect()
        silent.set()
        request = client.open(PROMPT, 1)
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(request.propose, POLICY)
            while not client.connection.reading:
                threading.Event().wait(0.001)
            client.close()
            assert waits.result(1.0).reason is DropReason.DISCONNECTED  # type: ignore[union-attr]


@pytest.mark.parametrize("security", ["none", "key", "tls"])
def test_a_forked_child_connects_anew_and_the_parent_goes_on(security: str, tmp_path: Path) -> None:
    with shared(security, tmp_path) as client:
        expected, _ = text_of(client, 5)
        sampling = Sampling(seed=5, max_tokens=TOKENS)
        with generate(toys()[0], client, PROMPT, sampling, POLICY) as running:
            tokens = [next(running).token]
            child = in_child(lambda: text_of(client, 5))
            tokens += [each.token for each in running]
        assert tuple(tokens) == expected and not running.report.misses
        assert child[0] == expected and child[1] > 0
        assert client.counters.connections == 1 and client.counters.lost == 0


def in_child(work: Callable[[], tuple[tuple[int, ...], Report]]) -> tuple[tuple[int, ...], int]:
    """Do it in the child of a fork; returns the tokens and how many rounds were drafted."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        said = b"failed"
        try:
            tokens, report = work()
            said = repr((tokens, report.drafted_rounds)).encode()
        finally:
            os.write(writing, said)
            os.kill(os.getpid(), signal.SIGKILL)  # without what pytest does at an exit
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        said = stream.read()
    os.waitpid(child, 0)
    assert said != b"failed"
    tokens, drafted = ast.literal_eval(said.decode())
    return tokens, drafted
