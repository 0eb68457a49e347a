"""One round over loopback without models, beside a bare echo of the same bytes.

This process asks; one drafts with prepared q's (it is the real program but for its proposer, which
draws from all rows in one call: they do not wait for one another's tokens, as a model's do); one
quantises prepared logits and draws row by row, as with a model; one echoes. A round is STEP there,
REPLY and COMPLETE back, validated and audited, and the commit that rides in the next STEP; an echo
is the same number of bytes there and back with nothing done to them. All of them wait in the
kernel, nobody spins.

The goal is of the two in turns, and of nothing else in between: each finds both processes asleep
for as long. In blocks an echo's peer has hardly fallen asleep again when it is woken and a round's
has; that is shown beside it, and so are parts of the round and more than a round. What the drafter
books once its answer is on its way is no part of the round, since nobody waits for it: it is shown
apart, and the next round waits where it takes longer than the verifier's own part.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import Goal, Result, alternate, in_blocks, medians
from benchmarks.prepared import PreparedContext, PreparedEngine, PreparedProposals
from benchmarks.stages import BOOK, Stages
from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.drafter.propose import Proposer, propose
from draftwire.drafter.server import DrafterServer
from draftwire.session.proposal import Proposal
from draftwire.transport.tcp import Address, bound_address, listen
from draftwire.verifier.client import ClientRequest, DraftClient
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.remote import RemoteDrafter
from draftwire.verifier.sampling import Sampling
from draftwire.wire.agreement import reply_bytes, step_bytes
from draftwire.wire.fields import PAYLOAD_TABLES
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import (
    HEADER_BYTES,
    TRAILER_BYTES,
    Layout,
    MessageType,
    Outcome,
)

VOCABULARY = 1024
POLICY = ProposalPolicy(Layout.SPARSE, 5, 1.0, support=32)
POLICIES = {POLICY.layout: POLICY}
CONTEXT = 1 << 20
LIMIT = 5.0
CORRECTION = Outcome.CORRECTION
ROUND = "draftwire round"
ECHO = "bare TCP echo"
FRAME_BYTES = HEADER_BYTES + TRAILER_BYTES
ASK_BYTES = FRAME_BYTES + step_bytes(1)  # the drafter has the accepted drafts: one new token
ANSWER_BYTES = (
    2 * FRAME_BYTES
    + reply_bytes(POLICY.layout, VOCABULARY, POLICY.depth, POLICY.support)
    + PAYLOAD_TABLES[MessageType.COMPLETE].bytes
)
_HASH = bytes(32)


def prepared_logits() -> NDArray[np.float32]:
    """Return rows of logits, the same in every process."""
    rows = np.random.default_rng(1).normal(scale=2.0, size=(8, VOCABULARY))
    return rows.astype(np.float32)


def _prepared() -> PreparedProposals:
    return PreparedProposals(prepared_logits(), POLICIES)


def prepared_program() -> DrafterProgram[PreparedContext]:
    """Return a program whose proposals are drawn from prepared rows."""
    return _program(_prepared())


def _program(proposer: Proposer[PreparedContext]) -> DrafterProgram[PreparedContext]:
    engine = PreparedEngine(prepared_logits(), CONTEXT)
    return DrafterProgram(engine, DrafterConfig(), proposer=proposer)


class NoTarget:
    """Says what HELLO needs of a target; nothing is scored here."""

    vocab_size = VOCABULARY
    max_context = CONTEXT
    identity = b"t" * 32
    tokenizer_hash = _HASH
    id_map_hash = _HASH
    end_tokens: frozenset[int] = frozenset()

    def open(self, prompt: Sequence[int], sampling: Sampling) -> None:
        """Nothing to hold."""

    def score(
        self, context: None, committed: Sequence[int], drafts: Sequence[int]
    ) -> NDArray[np.float64]:
        """Return the same weight everywhere."""
        return np.ones((len(drafts) + 1, VOCABULARY))

    def close(self, context: None) -> None:
        """Nothing to free."""


class Rounds:
    """One request of a client, a round a call."""

    def __init__(self, client: DraftClient) -> None:
        """Open the request."""
        self.request: ClientRequest = client.open((1, 2, 3), 99)
        self._drafts: tuple[int, ...] = ()

    def __call__(self) -> None:
        """Ask, take the proposal, and commit two drafts and a correction."""
        proposal = self.request.propose(POLICY)
        if not isinstance(proposal, Proposal):
            raise SystemExit(f"a round was lost: {proposal}")
        first, second, third, *_ = proposal.tokens
        self.request.commit(CORRECTION, 2, (first, second, (third + 1) % VOCABULARY))

    def propose(self) -> float:
        """Ask and take the proposal; returns the seconds that its audit took."""
        before = self.request.traffic.audit_seconds
        proposal = self.request.propose(POLICY)
        if not isinstance(proposal, Proposal):
            raise SystemExit(f"a round was lost: {proposal}")
        self._drafts = proposal.tokens
        return self.request.traffic.audit_seconds - before

    def commit(self) -> None:
        """Commit two of the drafts and a correction."""
        first, second, third, *_ = self._drafts
        self.request.commit(CORRECTION, 2, (first, second, (third + 1) % VOCABULARY))


def stages(repeats: int) -> dict[str, float]:
    """Return the median microseconds of each stage of a round within this process."""
    found = Stages()
    program = _program(found.watch_proposer(_prepared()))
    found.watch_booking(program)
    with LocalDrafter(program, NoTarget(), through=found.watch_channel) as local:
        rounds = Rounds(local)
        for _ in range(repeats):
            found.round(rounds.propose, rounds.commit)
    return medians({stage: times[repeats // 10 :] for stage, times in found.seconds.items()})


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
    """Measure rounds and echoes in turn."""
    repeats = 500 if quick else 3000
    result = Result("loopback round without models, sparse k=32, K=5")
    result.figures["bytes there and back"] = f"{ASK_BYTES:,} and {ANSWER_BYTES:,}"
    target = NoTarget()
    program = prepared_program()
    with (
        _child("prepared") as prepared,
        _child("quantising") as quantising,
        _child("echo") as echo,
        RemoteDrafter(prepared, target, deadline=10.0) as remote,
        RemoteDrafter(prepared, target, deadline=10.0, audit=False) as unaudited,
        RemoteDrafter(quantising, target, deadline=10.0) as quantised,
        LocalDrafter(program, target) as local,
    ):
        ways: dict[str, Callable[[], object]] = {
            ROUND: Rounds(remote),
            "without the audit": Rounds(unaudited),
            f"quantising {VOCABULARY:,} logits a position too": Rounds(quantised),
            "both sides in this process, no socket": Rounds(local),
            ECHO: Echo(echo),
        }
        both = {name: ways[name] for name in (ROUND, ECHO)}
        times = alternate(both, repeats, warm_up=50)
        steady = in_blocks(both, repeats)
        beside = alternate(ways, repeats // 3, warm_up=50)
    result.figures["microseconds, p50, in turns"] = medians(times)
    result.figures["microseconds, p99, in turns"] = {
        name: round(float(np.percentile(each, 99)) * 1e6, 1) for name, each in times.items()
    }
    result.figures["microseconds, p50, in blocks"] = medians(steady)
    result.figures["microseconds, p50, all of these in turns"] = medians(beside)
    pieces = stages(repeats)
    result.figures["microseconds, p50, where they go, within one process"] = pieces
    waited_for = sum(took for stage, took in pieces.items() if stage != BOOK)
    beyond = float(np.median(steady[ROUND])) * 1e6 - waited_for
    result.figures["microseconds, p50, beyond these: sockets, two wake-ups, cold caches"] = round(
        beyond, 1
    )
    value = float(np.median(times[ROUND]) / np.median(times[ECHO]))
    result.goals.append(Goal("loopback round / bare TCP echo, p50, in turns", value, LIMIT))
    return result


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


def _drafter(proposer: Proposer[PreparedContext]) -> None:
    program = _program(proposer)
    program.warm_up()
    server = DrafterServer(program, listen("127.0.0.1", 0))
    print(server.address, flush=True)
    server.run()


PARTS: dict[str, Callable[[], None]] = {
    "echo": _echo,
    "prepared": lambda: _drafter(_prepared()),
    "quantising": lambda: _drafter(propose),
}

if __name__ == "__main__":
    PARTS[sys.argv[1]]()
