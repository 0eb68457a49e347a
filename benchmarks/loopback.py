"""A round over loopback without models, beside plain msgspec messages over pyzmq.

A round is a STEP there, REPLY and COMPLETE back (sparse 32, K = 5): words, draws, validation,
audit, and the commit that rides in the next STEP. The drafter is the real program in a process of
its own, with prepared rows of q. Its peer carries the same values as msgspec messages between a
DEALER and a ROUTER in another process, and does nothing with them. A bare TCP echo of the same
bytes is there as context. All of them wait in the kernel; none spins.

Each is measured in blocks, in its steady state, which the goals are of, and in turns, where every
round finds caches that others have used: nearer to a round between two passes of a model. Blocks
with all processes on one core show what the programs cost without the waking of a halted core,
which a virtual machine pays for twice a round.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import Goal, Result, alternate, in_blocks, medians, ratio
from benchmarks.plain_messages import PlainRounds, answer_rounds
from benchmarks.prepared_rows import PreparedContext, PreparedEngine, PreparedProposals
from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.drafter.propose import Proposer, propose
from draftwire.drafter.server import DrafterServer
from draftwire.kernels import cpu
from draftwire.session.proposal import Proposal
from draftwire.transport.tcp import Address, bound_address, listen
from draftwire.verifier.client import ClientRequest, DraftClient
from draftwire.verifier.remote import RemoteDrafter
from draftwire.wire.agreement import reply_bytes, step_bytes
from draftwire.wire.fields import PAYLOAD_TABLES
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import (
    HEADER_BYTES,
    TOTAL,
    TRAILER_BYTES,
    Layout,
    MessageType,
    Outcome,
)
from testing.toys.models import ToyTarget, constant

VOCABULARY = 1024
POLICY = ProposalPolicy(Layout.SPARSE, 5, 1.0, support=32)
CONTEXT = 1 << 20
ROUND = "draftwire round"
QUANTISED = f"draftwire round, quantising {VOCABULARY:,} logits a position"
PLAIN = "msgspec over pyzmq DEALER/ROUTER"
ECHO = "bare TCP echo"
LIMIT_SECONDS = 0.35e-3
TARGET_PASS_SECONDS = 15e-3
LIMIT_OF_A_PASS = 0.02
FRAME_BYTES = HEADER_BYTES + TRAILER_BYTES
ASK_BYTES = FRAME_BYTES + step_bytes(1)  # the drafter has the accepted drafts: one new token
ANSWER_BYTES = (
    2 * FRAME_BYTES
    + reply_bytes(POLICY.layout, VOCABULARY, POLICY.depth, POLICY.support)
    + PAYLOAD_TABLES[MessageType.COMPLETE].bytes
)


def prepared_logits() -> NDArray[np.float32]:
    """Return rows of logits, the same in every process."""
    rows = np.random.default_rng(1).normal(scale=2.0, size=(8, VOCABULARY))
    return rows.astype(np.float32)


class Rounds:
    """One request of a client, a round a call."""

    def __init__(self, client: DraftClient) -> None:
        """Open the request."""
        self.request: ClientRequest = client.open((1, 2, 3), 99)

    def __call__(self) -> None:
        """Ask, take the proposal, and commit two drafts and a correction."""
        proposal = self.request.propose(POLICY)
        if not isinstance(proposal, Proposal):
            raise SystemExit(f"a round was lost: {proposal}")
        first, second, third, *_ = proposal.tokens
        tokens = first, second, (third + 1) % VOCABULARY
        self.request.commit(Outcome.CORRECTION, 2, tokens)


class Echo:
    """A connected socket to the echo process, a round trip a call."""

    def __init__(self, address: Address) -> None:
        """Connect."""
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ask = bytes(ASK_BYTES)
        self._store = memoryview(bytearray(ANSWER_BYTES))

    def __call__(self) -> None:
        """Send the bytes of a STEP, receive those of its answer."""
        self._socket.sendall(self._ask)
        _receive(self._socket, self._store)


def run(quick: bool) -> Result:
    """Measure rounds, the peer's and echoes in turn."""
    repeats = 500 if quick else 3000
    result = Result("loopback round without models, sparse k=32, K=5, two processes")
    result.figures["bytes there and back"] = f"{ASK_BYTES:,} and {ANSWER_BYTES:,}"
    target = ToyTarget(constant(1.0), VOCABULARY, CONTEXT)  # nothing is scored here
    with (
        _child("prepared") as prepared,
        _child("quantising") as quantising,
        _child("plain") as plain,
        _child("echo") as echo,
        RemoteDrafter(prepared, target, deadline=10.0) as remote,
        RemoteDrafter(quantising, target, deadline=10.0) as quantised,
        PlainRounds(str(plain), POLICY.depth, POLICY.support) as plain_rounds,
    ):
        ways: dict[str, Callable[[], object]] = {
            ROUND: Rounds(remote),
            QUANTISED: Rounds(quantised),
            PLAIN: plain_rounds,
            ECHO: Echo(echo),
        }
        turns = alternate(ways, repeats, warm_up=50)
        blocks = in_blocks(ways, repeats)
        tables = {"in blocks": blocks, "in turns": turns}
        if hasattr(os, "sched_setaffinity"):
            with _one_core():
                tables["in blocks on one core"] = in_blocks(ways, repeats)
    for name, times in tables.items():
        result.figures[f"microseconds, p50, {name}"] = medians(times)
        result.figures[f"round / msgspec over pyzmq, {name}"] = round(ratio(times, ROUND, PLAIN), 2)
    result.figures["microseconds, p99, in turns"] = {
        name: round(float(np.percentile(each, 99)) * 1e6, 1) for name, each in turns.items()
    }
    seconds = float(np.median(blocks[ROUND]))
    result.goals = [
        Goal("loopback round, p50 in blocks, milliseconds", seconds * 1e3, LIMIT_SECONDS * 1e3),
        Goal(
            f"loopback round / a target pass of {TARGET_PASS_SECONDS * 1e3:.0f} ms",
            seconds / TARGET_PASS_SECONDS,
            LIMIT_OF_A_PASS,
        ),
    ]
    return result


@contextmanager
def _one_core() -> Iterator[None]:
    """Keep this process and its children, with all their threads, on one core of Linux."""
    allowed = os.sched_getaffinity(0)
    _keep_on({min(allowed)})
    try:
        yield
    finally:
        _keep_on(allowed)


def _keep_on(cores: set[int]) -> None:
    own = Path("/proc/self/task", str(os.getpid()), "children").read_text().split()
    for process in (os.getpid(), *map(int, own)):
        for thread in Path(f"/proc/{process}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores)


@contextmanager
def _child(part: str) -> Iterator[Address]:
    """Run this module as another process and yield where it listens."""
    command = [sys.executable, "-m", "benchmarks.loopback", part]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        yield Address.parse(child.stdout.readline().strip())
    finally:
        child.terminate()
        child.wait(10)
        if child.stdout is not None:
            child.stdout.close()


def _receive(peer: socket.socket, store: memoryview) -> bool:
    """Fill ``store``; returns False when the connection has ended."""
    received = 0
    while received < len(store):
        count = peer.recv_into(store[received:])
        if not count:
            return False
        received += count
    return True


def _echo() -> None:
    listener = listen("127.0.0.1", 0)
    print(bound_address(listener), flush=True)
    listener.setblocking(True)
    peer, _ = listener.accept()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    store, answer = memoryview(bytearray(ASK_BYTES)), bytes(ANSWER_BYTES)
    while _receive(peer, store):
        peer.sendall(answer)


def _plain() -> None:
    rows = [cpu.quantise(row, POLICY) for row in prepared_logits()[: POLICY.depth]]
    ids = np.zeros((POLICY.depth, POLICY.support), np.int32)
    probabilities = np.zeros((POLICY.depth, POLICY.support), np.float32)
    for at, row in enumerate(rows):
        assert row.ids is not None
        ids[at, : len(row.ids)] = row.ids
        probabilities[at, : len(row.ids)] = row.counts / TOTAL
    answer_rounds(ids, probabilities)


def _drafter(proposer: Proposer[PreparedContext]) -> None:
    engine = PreparedEngine(prepared_logits(), CONTEXT)
    program = DrafterProgram(engine, DrafterConfig(), proposer=proposer)
    program.warm_up()
    server = DrafterServer(program, listen("127.0.0.1", 0))
    print(server.address, flush=True)
    server.run()


PARTS: dict[str, Callable[[], None]] = {
    "echo": _echo,
    "plain": _plain,
    "prepared": lambda: _drafter(PreparedProposals(prepared_logits(), {POLICY.layout: POLICY})),
    "quantising": lambda: _drafter(propose),
}

if __name__ == "__main__":
    PARTS[sys.argv[1]]()
