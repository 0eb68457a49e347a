"""Faults with real processes and sockets, where time and the system decide and not a plan.

The promises are those of the matrix; what cannot be planned is which frame is under way. Greedy
texts: whatever is lost, each equals the one that the target makes alone, token by token.
"""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from draftwire.drafter.program import DrafterConfig
from draftwire.session.link import Link
from draftwire.telemetry.log_handler import logging_to
from draftwire.transport.channel import Channel, Part
from draftwire.transport.tcp import Address, TcpChannel, free_address
from draftwire.verifier.client import DraftClient
from draftwire.verifier.generate import generate
from draftwire.verifier.hello import verifier_hello
from draftwire.verifier.remote import RemoteDrafter
from draftwire.verifier.report import Report
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from testing.faults import models, processes
from testing.faults.engine_failures import Swallowing
from testing.toys.models import ToyDrafter

DEADLINE: Final = 0.25
TOKENS: Final = 200
PROMPT: Final = (1, 2, 3)
POLICY: Final = ProposalPolicy(Layout.SPARSE, 4, 0.0, support=8)
START: Final = 20.0


@dataclass
class Ran:
    """What a real fault has come to."""

    name: str
    wrong: list[str]
    report: Report
    seconds: float

    def line(self) -> str:
        """What is printed."""
        lost = ", ".join(f"{r.value} {n}" for r, n in sorted(self.report.misses.items(), key=str))
        said = "FAIL: " + "; ".join(self.wrong) if self.wrong else "same"
        return f"{self.name:42}{said:8} {lost or 'nothing is lost'} ({self.seconds:.1f} s)"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        misses = {reason.value: n for reason, n in self.report.misses.items()}
        return {"fault": self.name, "wrong": self.wrong, "misses": misses}


class Box:
    """A drafter in a process of its own, at one address."""

    def __init__(self, logged: str) -> None:
        """Start it. logged: the file that its log goes to."""
        self.address = free_address()
        self._logged = logged
        self.child = self._start(1)

    def _start(self, salt: int) -> BaseProcess:
        engine = models.drafter(salt)
        child = processes.start(_drafter, engine, self.address, self._logged)
        wait_for(self.address)
        return child

    def again(self) -> None:
        """Kill it and start it again."""
        self.restart(1)

    def restart(self, salt: int) -> None:
        """Kill it and start it again, with the model of a salt."""
        processes.kill(self.child)
        self.child = self._start(salt)


@contextmanager
def box(logged: str = "/dev/null") -> Iterator[Box]:
    """Yield a drafter; it is killed afterwards."""
    one = Box(logged)
    try:
        yield one
    finally:
        processes.kill(one.child)


def _drafter(engine: ToyDrafter, address: Address, logged: str) -> None:
    with Path(logged).open("w") as stream, logging_to("debug", "json", stream):
        processes.run_drafter(engine, DrafterConfig(), address)


def wait_for(address: Address) -> None:
    """Wait until somebody listens."""
    until = time.monotonic() + START
    while True:
        try:
            socket.create_connection(address, 1.0).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def run(
    name: str,
    box: Box,
    events: Mapping[int, Callable[[], None]],
    dial: Callable[[float], Channel] | None = None,
    *,
    tokens: int = TOKENS,
    deadline: float = DEADLINE,
    pace: float = 0.0,
) -> Ran:
    """Make a greedy text; events: what happens after which round. pace: seconds of a round more."""
    began = time.monotonic()
    target = models.target()
    client = DraftClient(
        dial or (lambda until: TcpChannel.connect(box.address, until)),
        verifier_hello(target),
        deadline=deadline,
        connect_timeout=max(deadline, 1.0),
    )
    sampling = Sampling(temperature=0.0, max_tokens=tokens)
    longest, told, rounds = 0.0, list[int](), 0
    with client:
        text = generate(target, client, PROMPT, sampling, POLICY)
        while True:
            if text.report.rounds != rounds and len(told) == len(text.tokens):
                rounds = text.report.rounds
                events.get(rounds, lambda: None)()
                time.sleep(pace)
            at = time.monotonic()
            emission = next(text, None)
            longest = max(longest, time.monotonic() - at)
            if emission is None:
                break
            told.append(emission.token)
    alone = [e.token for e in generate(models.target(), None, PROMPT, sampling)]
    wrong = [] if told == alone else ["another text"]
    if text.report.verified + sum(text.report.discarded.values()) != text.report.drafted:
        wrong.append("a draft is in no count")
    if not text.report.drafted_rounds:
        wrong.append("nothing was drafted")
    if longest > START:
        wrong.append(f"a round took {longest:.1f} s")
    return Ran(name, wrong, text.report, time.monotonic() - began)


def killed() -> Ran:
    """kill -9 in mid-text, three times."""
    with box() as one:
        again = dict.fromkeys((5, 20, 35), one.again)
        return run("drafter killed -9 three times", one, again)


def another_model() -> Ran:
    """It comes back as another model."""
    with box() as one:
        return run("drafter restarted, another model", one, {8: partial(one.restart, 2)})


def stopped() -> Ran:
    """SIGSTOP for a second, then SIGCONT."""
    with box() as one:
        timers: list[threading.Timer] = []

        def stop() -> None:
            processes.pause(one.child)
            timers.append(threading.Timer(1.0, processes.resume, [one.child]))
            timers[0].start()

        try:
            return run("drafter stopped for 1 s", one, {8: stop}, pace=0.05)
        finally:
            for timer in timers:
                timer.join()


def half_open() -> Ran:
    """The way to the drafter swallows all bytes from some round on; a new connection is fine."""
    with box() as one, Swallowing(one.address) as way:
        ran = run(
            "half-open TCP",
            one,
            {8: way.swallow},
            lambda until: TcpChannel.connect(way.address, until),
            tokens=500,
            pace=0.05,
        )
        if way.accepted < 2:
            ran.wrong.append("the dead connection was kept")
        return ran


class ByteByByte(TcpChannel):
    """Sends and receives one byte a call."""

    def send(self, parts: Sequence[Part], deadline: float) -> None:
        """Send each byte alone."""
        for byte in b"".join(bytes(part) for part in parts):
            super().send([bytes([byte])], deadline)

    def receive_into(self, buffer: memoryview, deadline: float) -> int:
        """Take one byte."""
        return super().receive_into(buffer[:1], deadline)


def slow_writer() -> Ran:
    """One byte at a time, both ways."""

    def dial(until: float) -> Channel:
        return ByteByByte.connect(one.address, until)

    with box() as one:
        return run("slow writer, a byte at a time", one, {}, dial, tokens=60, deadline=5.0)


def stalled_reader() -> Ran:
    """Another verifier asks without end and reads nothing."""
    with box() as one:
        link = Link(verifier_hello(models.target()), time.monotonic())
        narrow = socket.socket()
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        narrow.connect(one.address)
        channel = TcpChannel(narrow)
        link.start()
        channel.send(link.outgoing(), time.monotonic() + START)
        while link.agreed is None:
            count = channel.receive_into(link.buffer(), time.monotonic() + START)
            link.filled(count, time.monotonic())
        ended = threading.Event()

        def ask() -> None:
            while not ended.is_set():
                link.ping(1, 0.0)
                try:
                    channel.send(link.outgoing() * 100, time.monotonic() + DEADLINE)
                except (TimeoutError, ConnectionError):  # every buffer on the way is full
                    ended.wait(START)
                ended.wait(0.02)

        asker = threading.Thread(target=ask)
        asker.start()
        try:
            return run("another verifier reads nothing", one, {}, pace=0.01)
        finally:
            ended.set()
            asker.join()
            channel.close()


def verifiers_killed() -> Ran:
    """Verifiers are killed in mid-text; the drafter keeps nothing of theirs."""
    with box() as one:
        assert one.child.pid is not None
        before = processes.descriptors(one.child.pid)
        for _ in range(5):
            victim = processes.start(_endless, one.address)
            time.sleep(0.3)
            processes.kill(victim)
        ran = run("five verifiers killed -9 before", one, {})
        until = time.monotonic() + START
        while processes.descriptors(one.child.pid) > before and time.monotonic() < until:
            time.sleep(0.05)
        if processes.descriptors(one.child.pid) > before:
            ran.wrong.append("the drafter holds a socket of a verifier that is gone")
        return ran


def _endless(address: Address) -> None:
    target = models.target()
    with RemoteDrafter(address, target, deadline=DEADLINE) as drafter:
        while True:
            list(generate(target, drafter, PROMPT, Sampling(max_tokens=TOKENS), POLICY))


def full_disk() -> Ran:
    """The drafter's log is a full disk, and its verifier's too."""
    with box(logged="/dev/full") as one, Path("/dev/full").open("wb", buffering=0) as raw:
        stream = io.TextIOWrapper(io.BufferedWriter(raw), write_through=True)
        with logging_to("debug", "json", stream) as handler:
            ran = run(
                "disk full for logs on both sides",
                one,
                dict.fromkeys((5, 9), one.again),
            )
            handler.close()
        if not handler.lost:
            ran.wrong.append("no line met the full disk")
        with suppress(OSError):
            stream.detach().detach()
        return ran


FAULTS: Final = (
    killed,
    another_model,
    stopped,
    half_open,
    slow_writer,
    stalled_reader,
    verifiers_killed,
    full_disk,
)
"""What `make faults` runs with real processes."""
