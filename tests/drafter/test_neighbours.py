"""Eight verifiers of eight sessions each on one drafter, beside a flood and a peer of nonsense."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from draftwire.drafter.counters import DrafterCounters
from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.errors import ProtocolErrorCode
from draftwire.session.link import Link
from draftwire.session.proposal import Received
from draftwire.session.verifier_session import VerifierSession
from draftwire.transport.tcp import Address
from draftwire.verifier.generate import generate
from draftwire.verifier.hello import verifier_hello
from draftwire.verifier.remote import RemoteDrafter
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import Cancel, Complete, ProposalPolicy, Step
from draftwire.wire.registry import Layout, Outcome
from testing.harness.servers import serving
from testing.harness.verifiers import HandVerifier
from testing.toys.models import ToyContext, ToyDrafter, ToyTarget, mixed

V = 11
POLICY = ProposalPolicy(Layout.SPARSE, 3, 1.0, support=5)
VERIFIERS = SESSIONS = 8
TOKENS = 10
PATIENCE = 100.0  # seconds that nothing of this takes, on however busy a machine


def texts_of(address: Address, verifier: int) -> list[list[int]]:
    """Make the texts of one verifier's sessions in step with one another over one connection."""
    target = ToyTarget(mixed(V, 1), V)
    with RemoteDrafter(address, target, deadline=PATIENCE, connect_timeout=PATIENCE) as drafter:
        runs = [
            generate(
                ToyTarget(mixed(V, 1), V),
                drafter,
                (verifier % V, session % V),
                Sampling(seed=verifier * SESSIONS + session, max_tokens=TOKENS),
                POLICY,
            )
            for session in range(SESSIONS)
        ]
        for _ in range(TOKENS):
            for run in runs:
                next(run)
        for run in runs:
            assert not run.report.misses
            run.close()
        return [list(run.tokens) for run in runs]


@dataclass
class Verifier:
    """A verifier's thread; what it finds, or what it failed with."""

    address: Address
    number: int
    texts: list[list[int]] = field(default_factory=list)
    error: BaseException | None = None

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run)
        thread.start()
        return thread

    def _run(self) -> None:
        try:
            self.texts = texts_of(self.address, self.number)
        except BaseException as error:
            self.error = error


def steps(link: Link) -> Iterator[Step]:
    """Yield a STEP of each of the agreed sessions, then of their next rounds, without an end."""
    assert link.agreed is not None
    slots = link.agreed.max_slots
    asking = [VerifierSession(s + 1, s, (s % V,), 5, link.agreed) for s in range(slots)]
    while True:
        for each in asking:
            yield each.ask(POLICY, 0.0, 1.0)
            each.give_up()
            each.commit(0, Outcome.TARGET_ONLY, 1)


@contextlib.contextmanager
def by_hand(address: Address, seconds: float) -> Iterator[HandVerifier]:
    """A verifier whose waits take so long at most."""
    made = HandVerifier.to(address, ToyTarget(mixed(V, 1), V), seconds=seconds)
    try:
        yield made
    finally:
        made.close()


def flood(address: Address, program: DrafterProgram[ToyContext], ended: threading.Event) -> None:
    """Ask without waiting or reading, with some STEPs in slots that are another session's."""
    while not ended.is_set():
        with contextlib.suppress(OSError), by_hand(address, seconds=0.05) as verifier:
            verifier.say_hello()
            while verifier.link.agreed is None and not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    list(verifier.read())
            if verifier.link.agreed is None:
                return
            for number, step in enumerate(steps(verifier.link)):
                verifier.link.send(step)
                if number % 3 == 0:
                    beyond = verifier.session(1, (1,), slot=1 + number % 7)
                    verifier.link.send(beyond.ask(POLICY, 0.0, 1.0))
                if number % 50 == 49:
                    verifier.flush()
                    assert program.queued <= (VERIFIERS + 1) * SESSIONS
                if ended.is_set():
                    return


def nonsense(address: Address, program: DrafterProgram[ToyContext], ended: threading.Event) -> None:
    """Agree on HELLO and then send bytes that are no frame; or send those at once."""
    source = random.Random(4)
    while not ended.is_set():
        with contextlib.suppress(OSError), socket.create_connection(address) as peer:
            peer.settimeout(5)
            link = Link(verifier_hello(ToyTarget(mixed(V, 1), V)), 0.0)
            link.start()
            if source.random() < 0.5:
                peer.sendall(b"".join(link.outgoing()))
                peer.recv(4096)
            peer.sendall(source.randbytes(source.randint(1, 2000)))
            while peer.recv(4096):
                continue


@dataclass
class Slow(ToyDrafter):
    """An engine for which every token costs time."""

    seconds: float = 1e-4

    def forward(self, batch: Sequence[tuple[ToyContext, Sequence[int]]]) -> NDArray[np.float32]:
        time.sleep(self.seconds * sum(len(tokens) for _, tokens in batch))
        return super().forward(batch)


def long_prompts(
    address: Address, program: DrafterProgram[ToyContext], ended: threading.Event
) -> None:
    """Ask in four sessions at once after 4,000 new tokens each, and again as soon as answered."""
    rng = random.Random(7)
    with contextlib.suppress(OSError), by_hand(address, seconds=0.05) as verifier:
        link = verifier.link
        link.start()
        number, open_now = 0, 0
        while not ended.is_set():
            while link.agreed is not None and open_now < 4:
                number, open_now = number + 1, open_now + 1
                prompt = [rng.randrange(V) for _ in range(4000)]
                asking = verifier.session(number, prompt, slot=number % 4)
                link.send(asking.ask(POLICY, 0.0, 1.0))
            verifier.flush()
            with contextlib.suppress(TimeoutError):
                for event in verifier.read():
                    if isinstance(event, Received) and isinstance(event.message, Complete):
                        link.send(Cancel(event.message.session, event.message.generation))
                        open_now -= 1


def test_a_verifier_of_long_prompts_leaves_its_neighbour_all_rounds() -> None:
    """0.1 ms a token: its four prompts alone are 1.6 s of work, the neighbour's deadline 500 ms."""
    program = DrafterProgram(Slow(mixed(V, 1, sharpness=1.2), V), DrafterConfig())
    ended = threading.Event()
    with serving(program) as server:
        other = threading.Thread(target=long_prompts, args=(server.address, program, ended))
        other.start()
        try:
            while not program.counters.prefill_chunks:
                time.sleep(0.01)
            target = ToyTarget(mixed(V, 1), V)
            with RemoteDrafter(server.address, target, deadline=0.5) as drafter:
                sampling = Sampling(seed=3, max_tokens=40)
                run = generate(target, drafter, (1, 2), sampling, POLICY)
                assert len(list(run)) == 40
                assert not run.report.misses
        finally:
            ended.set()
            other.join(PATIENCE)
    assert program.counters.prefill_chunks > 8


Neighbour = Callable[[Address, DrafterProgram[ToyContext], threading.Event], None]


Texts = list[list[list[int]]]


def company(neighbours: tuple[Neighbour, ...]) -> tuple[Texts, ToyDrafter, DrafterCounters]:
    """Return the texts of all verifiers at once beside ``neighbours``."""
    engine = ToyDrafter(mixed(V, 1, sharpness=1.2), V)
    config = DrafterConfig(max_sessions=SESSIONS, max_slots=SESSIONS, max_batch=8)
    program = DrafterProgram(engine, config)
    ended = threading.Event()
    with serving(program) as server:
        others = [
            threading.Thread(target=each, args=(server.address, program, ended))
            for each in neighbours
        ]
        verifiers = [Verifier(server.address, number) for number in range(VERIFIERS)]
        for thread in others:
            thread.start()
        threads = [each.start() for each in verifiers]
        for thread in threads:
            thread.join(PATIENCE)
        ended.set()
        for thread in others:
            thread.join(PATIENCE)
    for each in verifiers:
        if each.error is not None:
            raise each.error
    assert not program.connections
    return [each.texts for each in verifiers], engine, program.counters


def test_eight_verifiers_of_eight_sessions_have_their_texts_beside_a_flood_and_nonsense() -> None:
    """The seeded texts are those of each verifier alone, and nothing is left behind."""
    engine = ToyDrafter(mixed(V, 1, sharpness=1.2), V)
    config = DrafterConfig(max_sessions=SESSIONS, max_slots=SESSIONS, max_batch=1)
    with serving(DrafterProgram(engine, config)) as server:
        alone = [texts_of(server.address, number) for number in range(VERIFIERS)]
    assert set(engine.batches) == {1}

    together, engine, _ = company(())
    assert together == alone
    assert max(engine.batches) > 1
    assert not engine.contexts

    crowded, engine, counters = company((flood, nonsense))
    assert crowded == alone
    assert not engine.contexts
    assert counters.refused[ProtocolErrorCode.NO_SLOT] > 0
    assert counters.withdrawn > 0
    assert sum(counters.local_errors.values()) > 0
    assert max(engine.batches) <= 8
