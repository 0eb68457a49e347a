"""The drafter's process: other protocols, slow readers, many verifiers, a graceful end."""

from __future__ import annotations

import contextlib
import pickle
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.drafter.server import serve
from draftwire.errors import ProtocolErrorCode, TransportError
from draftwire.session.link import Closed
from draftwire.session.proposal import Proposal, Received
from draftwire.transport.tcp import Address, TcpChannel, bound_address, listen
from draftwire.verifier.emission import Kind
from draftwire.verifier.generate import generate
from draftwire.verifier.remote import RemoteDrafter
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import HEADER_BYTES, MAGIC, Layout
from testing.harness.servers import serving
from testing.harness.verifiers import HandVerifier
from testing.toys.models import ToyDrafter, ToyTarget, constant, mixed

V = 11
POLICY = ProposalPolicy(Layout.DENSE, 4, 1.0)
RAN = Path("/tmp") / "draftwire-test-unpickled"


class Bomb:
    """What a pickle that is loaded would run."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.touch, (RAN,))  # type: ignore[return-value]


def receive_all(peer: socket.socket) -> bytes:
    peer.settimeout(5)
    received = bytearray()
    try:
        while piece := peer.recv(4096):
            received += piece
    except ConnectionResetError:
        pass
    return bytes(received)


OTHER_PROTOCOLS = {
    "pickle": pickle.dumps(Bomb()),
    "http": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "random": random.Random(5).randbytes(4096),
    "a megabyte of random": random.Random(6).randbytes(1 << 20),
    "magic, then random": MAGIC + random.Random(7).randbytes(64),
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(64),
}


@pytest.mark.parametrize("name", OTHER_PROTOCOLS)
def test_x40_another_protocol_gets_one_bounded_error_and_others_are_served(name: str) -> None:
    RAN.unlink(missing_ok=True)
    target, engine = ToyTarget(mixed(V, 1), V), ToyDrafter(mixed(V, 1), V)
    with (
        serving(DrafterProgram(engine, DrafterConfig())) as server,
        RemoteDrafter(server.address, target, deadline=20.0) as drafter,
    ):
        run = generate(target, drafter, (1,), Sampling(seed=1, max_tokens=40), POLICY)
        next(run)
        with socket.create_connection(server.address) as other:
            with contextlib.suppress(OSError):  # it may be refused before all of it was taken
                other.sendall(OTHER_PROTOCOLS[name])
            answer = receive_all(other)
        assert len(answer) <= 256
        if answer:
            assert answer[:4] == MAGIC
            code = int.from_bytes(answer[HEADER_BYTES + 16 : HEADER_BYTES + 18], "little")
            assert ProtocolErrorCode(code).name.startswith("BAD_")
        list(run)
        assert not run.report.misses
    assert not RAN.exists()


def test_a_hello_one_byte_at_a_time_is_answered() -> None:
    target, engine = ToyTarget(mixed(V, 1), V), ToyDrafter(mixed(V, 1), V)
    with serving(DrafterProgram(engine, DrafterConfig())) as server:
        by_hand = HandVerifier.to(server.address, target)
        by_hand.link.start()
        for byte in b"".join(by_hand.link.outgoing()):
            by_hand.channel.send([bytes([byte])], time.monotonic() + 20)
        while by_hand.link.agreed is None:
            list(by_hand.read())
        by_hand.close()


def test_x39_dense_replies_to_a_receiver_that_is_slow() -> None:
    """1.2 MB a reply, then a small COMPLETE, several sessions pipelined, read in small pieces.

    The socket's buffers are smaller than one reply, so the server must wait and go on where it
    was; every checksum of every frame and row is checked by the session.
    """
    wide = 65_536
    policy = ProposalPolicy(Layout.DENSE, 5, 1.0)
    engine = ToyDrafter(lambda context: [1.0] * wide, wide)
    target = ToyTarget(lambda context: [1.0] * wide, wide)
    with serving(DrafterProgram(engine, DrafterConfig(max_depth=5))) as server:
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        peer.connect(server.address)
        by_hand = HandVerifier(TcpChannel(peer), target)
        assert by_hand.agree()
        asking = {number: by_hand.session(number, (number,)) for number in (1, 2, 3)}
        by_hand.send(*(each.ask(policy, 0.0, 1.0) for each in asking.values()))
        time.sleep(0.2)
        proposals: dict[int, Proposal] = {}
        sizes = random.Random(3)
        while len(proposals) < 3:
            for event in by_hand.read(sizes.choice((1, 100, 4097, 50_000))):
                assert not isinstance(event, Closed)
                if isinstance(event, Received):
                    session = event.message.session  # type: ignore[union-attr]
                    result = asking[session].take(event, 0.0)
                    if isinstance(result, Proposal):
                        proposals[session] = result
        assert all(len(p.tokens) == 5 for p in proposals.values())
        by_hand.close()


def test_several_verifiers_at_once_get_their_own_texts() -> None:
    target, engine = ToyTarget(mixed(V, 1), V), ToyDrafter(mixed(V, 1, sharpness=1.2), V)

    def text(drafter: RemoteDrafter | None, seed: int) -> list[int]:
        own = ToyTarget(mixed(V, 1), V)
        run = generate(own, drafter, (1, 2), Sampling(seed=seed, max_tokens=60), POLICY)
        tokens = [e.token for e in run]
        if drafter is not None:
            assert not run.report.misses
        return tokens

    program = DrafterProgram(engine, DrafterConfig())
    with serving(program) as server:
        with RemoteDrafter(server.address, target, deadline=20.0) as drafter:
            expected = [text(drafter, seed) for seed in range(8)]
        results: dict[int, list[int]] = {}

        def work(seed: int) -> None:
            with RemoteDrafter(server.address, target, deadline=20.0) as drafter:
                results[seed] = text(drafter, seed)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert [results[seed] for seed in range(8)] == expected
    assert not engine.contexts


def test_connections_over_the_limit_are_closed_and_the_others_stay() -> None:
    target, engine = ToyTarget(mixed(V, 1), V), ToyDrafter(mixed(V, 1), V)
    with (
        serving(DrafterProgram(engine, DrafterConfig(max_connections=1))) as server,
        RemoteDrafter(server.address, target, deadline=20.0) as drafter,
    ):
        drafter.connect()
        with (
            RemoteDrafter(server.address, target, deadline=20.0) as other,
            pytest.raises(TransportError, match="HELLO"),
        ):
            other.connect()
        run = generate(target, drafter, (1,), Sampling(seed=1, max_tokens=10), POLICY)
        assert Kind.ACCEPTED in {e.kind for e in run}


def test_l32_a_verifier_that_vanishes_before_its_first_reply() -> None:
    """The socket is closed with a STEP just sent: its context goes, the next one is served."""
    target, engine = ToyTarget(mixed(V, 1), V), ToyDrafter(mixed(V, 1), V)
    program = DrafterProgram(engine, DrafterConfig())
    with serving(program) as server:
        for _ in range(5):
            by_hand = HandVerifier.to(server.address, target)
            assert by_hand.agree()
            by_hand.send(by_hand.session().ask(POLICY, 0.0, 1.0))
            by_hand.close()
        with RemoteDrafter(server.address, target, deadline=20.0) as drafter:
            run = generate(target, drafter, (1,), Sampling(seed=1, max_tokens=10), POLICY)
            assert len(list(run)) == 10
            assert not run.report.misses
        deadline = time.monotonic() + 5
        while (engine.contexts or program.connections) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not engine.contexts
        assert not program.connections


def test_serve_refuses_a_port_in_use_and_an_open_address() -> None:
    engine = ToyDrafter(constant(*[1.0] * V), V)
    listener = listen("127.0.0.1", 0)
    with pytest.raises(TransportError, match="in use"):
        serve(engine, DrafterConfig(), port=bound_address(listener).port)
    listener.close()
    with pytest.raises(TransportError, match="authenticates no peer"):
        serve(engine, DrafterConfig(), host="0.0.0.0")


PROGRAM = """
import sys
from draftwire.drafter.program import DrafterConfig
from draftwire.drafter.server import serve
from testing.toys.models import ToyDrafter, mixed
serve(ToyDrafter(mixed(11, 1), 11), DrafterConfig(), ready=lambda a: print(a, flush=True))
print("ended", flush=True)
"""


def test_a_signal_ends_the_process_gracefully() -> None:
    """In mid-text: the process returns from serve, the text goes on with the target alone."""
    command = [sys.executable, "-c", PROGRAM]
    signals = (signal.SIGINT, signal.SIGTERM)
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in signals]
    try:
        for number, child in zip(signals, children, strict=True):
            assert child.stdout is not None
            address = Address.parse(child.stdout.readline().strip())
            target = ToyTarget(mixed(V, 1), V)
            with RemoteDrafter(address, target, deadline=20.0) as drafter:
                run = generate(target, drafter, (1,), Sampling(seed=1, max_tokens=200), POLICY)
                kinds = [next(run).kind for _ in range(50)]
                assert Kind.ACCEPTED in kinds
                child.send_signal(number)
                assert child.stdout.readline().strip() == "ended"
                assert child.wait(20) == 0
                kinds = [e.kind for e in run]
                assert len(kinds) == 150
                assert kinds[-1] is Kind.TARGET_ONLY
    finally:
        for child in children:
            child.kill()
            child.wait()
