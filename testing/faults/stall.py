"""How long a round takes when its drafter dies in it: at most its deadline and a tenth of that.

Many rounds, each hit: the drafter, a process of its own with rounds of a quarter of the deadline,
is killed (-9) or stopped (SIGSTOP) in the middle of one. Measured is that round, from the question
to its end without a proposal; a round before it that nothing hits shows what it would have taken. A
round that was through before the blow came has not been hit: it is counted, and another one is hit.

These are seconds of a real clock, and a busy machine makes any wait late. So witnesses, processes
of their own, wait beside every round, from the same moment on and as long, on sockets without
writes to, and then compute for a millisecond, as a round does that is given up. What they say
decides which rounds count, never what the rounds took: where one of them is late by more than a
tenth itself the machine has spoiled the measurement, which is said and made again. Where a round is
late and its witnesses are not, as many are measured as a 99th percentile takes. (In virtual time
the bound is exact, in every cell of the matrix.)
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from draftwire.drafter.program import DrafterConfig
from draftwire.transport.tcp import Address, free_address
from draftwire.verifier.miss import Miss
from draftwire.verifier.remote import RemoteDrafter
from draftwire.verifier.request import ClientRequest
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout, Outcome
from testing.faults import models, processes
from testing.toys.models import ToyContext, ToyDrafter

DEADLINE: Final = 0.25
MOST: Final = 1.1
"""Of the deadline, at the 99th percentile."""
TRIES: Final = 4
"""Measurements at most for each that is wanted: a machine that spoils the others shows nothing."""
PERCENTILE: Final = 100
"""Rounds of which one may be late at the 99th percentile."""
WITNESSES: Final = 3
WORK: Final = 0.001
"""Seconds that a witness computes after its wait, about what giving a round up takes."""
PASS: Final = 0.0125  # seconds of a pass of the drafter; a round has four
HIT_AFTER: Final = 0.02  # seconds from the question
_POLICY: Final = ProposalPolicy(Layout.SPARSE, 4, 1.0, support=8)
_START_SECONDS: Final = 20.0


@dataclass(frozen=True)
class Round:
    """One round in seconds, and the longest wait of a witness. lost: it had no proposal."""

    seconds: float
    lost: bool
    bare: float

    @property
    def spoiled(self) -> bool:
        """Whether the machine made a witness late as well."""
        return self.bare > MOST * DEADLINE


@dataclass(frozen=True)
class Trial:
    """A round that nothing hits, and the one after it that is hit; None = it was not come to."""

    free: Round
    hit: Round | None = None


@dataclass
class Stalls:
    """What was measured. wanted: rounds that were hit, and whose witnesses were not late."""

    how: str
    wanted: int
    trials: list[Trial] = field(default_factory=list)

    @property
    def seconds(self) -> list[float]:
        """Of every round whose drafter was not heard in time, and that the machine did not spoil.

        One that nothing hit is among them: to its caller it is the same.
        """
        rounds = [each for trial in self.trials for each in (trial.free, trial.hit)]
        return [each.seconds for each in rounds if each and each.lost and not each.spoiled]

    @property
    def hit(self) -> int:
        """Rounds that were hit, lost and not spoiled."""
        hits = (trial.hit for trial in self.trials)
        return sum(each is not None and each.lost and not each.spoiled for each in hits)

    @property
    def escaped(self) -> int:
        """Rounds that were through before they were hit."""
        return sum(trial.hit is not None and not trial.hit.lost for trial in self.trials)

    @property
    def late(self) -> int:
        """Rounds that nothing hit, lost though their witnesses were in time."""
        return sum(trial.free.lost and not trial.free.spoiled for trial in self.trials)

    @property
    def spoiled(self) -> int:
        """Measurements in which a witness was late."""
        return sum(t.free.spoiled or (t.hit is not None and t.hit.spoiled) for t in self.trials)

    @property
    def free(self) -> list[float]:
        """The seconds of rounds that nothing hit."""
        return [trial.free.seconds for trial in self.trials]

    @property
    def bare(self) -> list[float]:
        """The seconds of the witnesses' longest wait beside each round."""
        rounds = [each for trial in self.trials for each in (trial.free, trial.hit)]
        return [each.bare for each in rounds if each]

    @property
    def over(self) -> int:
        """Rounds that took too long, their witnesses in time."""
        return sum(seconds > MOST * DEADLINE for seconds in self.seconds)

    @property
    def enough(self) -> bool:
        """Whether what was wanted is there, or cannot be had, or nothing more would change it."""
        wanted = max(self.wanted, PERCENTILE) if self.over else self.wanted
        broken = self.over > wanted // PERCENTILE
        return broken or self.hit >= wanted or len(self.trials) >= TRIES * wanted

    @property
    def p99(self) -> float:
        """The 99th percentile, in seconds."""
        return percentile(self.seconds)

    @property
    def verdict(self) -> str:
        """Whether the promise holds: "held", "FAIL", or "NOT MEASURED" where that was not seen.

        It is broken by rounds that took too long with their witnesses in time, and not shown by a
        drafter whose rounds are slow by themselves, or mostly through before they are hit.
        """
        if self.seconds and self.p99 > MOST * DEADLINE:
            return "FAIL"
        if self.hit < self.wanted:
            return "NOT MEASURED"
        fast = percentile(self.free, 50) < DEADLINE / 2 and self.escaped < self.hit
        return "held" if fast else "NOT MEASURED"

    @property
    def met(self) -> bool:
        """Whether the promise was seen to hold."""
        return self.verdict == "held"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, in milliseconds."""
        return {
            "drafter": self.how,
            "rounds": len(self.seconds),
            "deadline": DEADLINE * 1e3,
            "p99": _ms(percentile(self.seconds)),
            "longest": _ms(max(self.seconds, default=0.0)),
            "not hit, p50": _ms(percentile(self.free, 50)),
            "bare wait, p99": _ms(percentile(self.bare)),
            "through before": self.escaped,
            "late, not hit": self.late,
            "spoiled by the machine": self.spoiled,
            "verdict": self.verdict,
            "held": self.met,
        }

    def line(self) -> str:
        """What is printed."""
        said = [
            (self.spoiled, "measured again, for a bare wait beside it was late"),
            (self.late, "late that nothing hit"),
            (self.escaped, "through before the blow"),
        ]
        more = "".join(f"; {count} {what}" for count, what in said if count)
        return (
            f"drafter {self.how} in {self.hit} rounds, deadline {DEADLINE * 1e3:.0f} ms:"
            f" p50 {_ms(percentile(self.seconds, 50))} ms, p99 {_ms(percentile(self.seconds))} ms,"
            f" longest {_ms(max(self.seconds, default=0.0))} ms (not hit: p50"
            f" {_ms(percentile(self.free, 50))} ms; a bare wait: p99"
            f" {_ms(percentile(self.bare))} ms{more}):"
            f" {self.verdict}"
        )


def percentile(seconds: Sequence[float], share: int = 99) -> float:
    """Return the smallest of the values that so many of 100 do not exceed; of none, 0."""
    return sorted(seconds)[-(-share * len(seconds) // 100) - 1] if seconds else 0.0


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 1)


class Witnesses:
    """Processes that wait for a deadline beside a round, on sockets that stay silent."""

    def __init__(self, told: Sequence[Connection]) -> None:
        """Made by :func:`witnesses`."""
        self._told = told

    def begin(self, began: float) -> None:
        """Let them wait, from this moment of ``perf_counter`` on."""
        for each in self._told:
            each.send(began)

    def end(self) -> float:
        """Return the seconds that the longest of their waits took."""
        return max([float(each.recv()) for each in self._told])


@contextmanager
def witnesses() -> Iterator[Witnesses]:
    """Keep some."""
    with ExitStack() as held:
        told = []
        for _ in range(WITNESSES):
            ours, theirs = processes.FORK.Pipe()
            held.callback(ours.close)
            held.callback(processes.kill, processes.start(_bear_witness, theirs))
            theirs.close()
            told.append(ours)
        yield Witnesses(told)


def _bear_witness(told: Connection) -> None:
    one, other = socket.socketpair()
    with one, other:
        while True:
            began = told.recv()
            one.settimeout(max(began + DEADLINE - time.perf_counter(), 1e-6))
            with suppress(TimeoutError):
                one.recv(1)
            until = time.thread_time() + WORK
            while time.thread_time() < until:
                pass
            told.send(time.perf_counter() - began)


@dataclass
class Slow(ToyDrafter):
    """Takes PASS seconds for a pass: a round lasts long enough to be hit, and not to be late."""

    def forward(self, batch: Sequence[tuple[ToyContext, Sequence[int]]]) -> NDArray[np.float32]:
        """Return logits, after a while."""
        time.sleep(PASS)
        return super().forward(batch)


def measure(how: str, rounds: int) -> Stalls:
    """Hit so many rounds, and more where the machine spoils some; how: ``killed``, ``stopped``."""
    hit: Callable[[BaseProcess], None] = _kill if how == "killed" else processes.pause
    stalls = Stalls(how, rounds)
    address = free_address()
    with witnesses() as beside:
        while not stalls.enough:
            child = processes.start(processes.run_drafter, _slow(), DrafterConfig(), address)
            try:
                stalls.trials.append(_trial(address, child, hit, beside))
            finally:
                processes.kill(child)
    return stalls


def _trial(
    address: Address, child: BaseProcess, hit: Callable[[BaseProcess], None], beside: Witnesses
) -> Trial:
    with RemoteDrafter(address, models.target(), deadline=DEADLINE) as drafter:
        _connect(drafter)
        request = drafter.open((1, 2, 3), 7)
        free = _round(request, beside)
        if free.lost:
            return Trial(free)
        request.commit(Outcome.CORRECTION, 0, [5])
        timer = threading.Timer(HIT_AFTER, hit, [child])
        timer.start()
        struck = _round(request, beside)
        timer.join()
        return Trial(free, struck)


def _round(request: ClientRequest, beside: Witnesses) -> Round:
    began = time.perf_counter()
    beside.begin(began)
    ended = request.propose(_POLICY)
    seconds = time.perf_counter() - began
    return Round(seconds, isinstance(ended, Miss), beside.end())


def _kill(child: BaseProcess) -> None:
    child.kill()


def _connect(drafter: RemoteDrafter) -> None:
    until = time.monotonic() + _START_SECONDS
    while drafter.ensure_connected() is not None:
        if time.monotonic() > until:
            raise TimeoutError("the drafter did not start")
        time.sleep(0.005)


def _slow() -> Slow:
    made = models.drafter()
    return Slow(made.table, made.vocab_size)
