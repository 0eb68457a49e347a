"""How long a round takes when its drafter dies in it: at most its deadline and a tenth of that.

Many rounds, each hit: the drafter, a process of its own with rounds of a quarter of the deadline,
is killed (-9) or stopped (SIGSTOP) in the middle of one. Measured is that round, from the question
to its end without a proposal; a round before it that nothing hits shows what it would have taken. A
round that was through before the blow came has not been hit: it is counted, and another one is hit.
These are seconds of a real clock: on a machine that is busy with something else they say how busy
it is. (In virtual time the bound is exact, in every cell of the matrix.) Beside it, in turns: a
socket that nobody writes to, with the same timeout, which is what the machine makes of any wait.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from draftwire.drafter.program import DrafterConfig
from draftwire.transport.tcp import Address
from draftwire.verifier.drafting import Miss
from draftwire.verifier.remote import RemoteDrafter
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout, Outcome
from faults import models, processes
from toys.models import ToyContext, ToyDrafter

DEADLINE: Final = 0.25
MOST: Final = 1.1
"""Of the deadline, at the 99th percentile."""
PASS: Final = 0.0125  # seconds of a pass of the drafter; a round has four
HIT_AFTER: Final = 0.02  # seconds from the question
_POLICY: Final = ProposalPolicy(Layout.SPARSE, 4, 1.0, support=8)
_START_SECONDS: Final = 20.0


@dataclass
class Stalls:
    """The seconds of every round that was hit."""

    how: str
    seconds: list[float] = field(default_factory=list)
    free: list[float] = field(default_factory=list)  # of rounds that nothing hit
    escaped: int = 0  # rounds that were through before they were hit
    wrong: int = 0  # rounds without a proposal that nothing hit
    bare: list[float] = field(default_factory=list)  # of a bare wait of the same length

    @property
    def p99(self) -> float:
        """The 99th percentile, in seconds."""
        return percentile(self.seconds)

    @property
    def met(self) -> bool:
        """Whether the promise holds."""
        hit = len(self.seconds) > self.escaped and percentile(self.free, 50) < DEADLINE / 2
        return hit and not self.wrong and self.p99 <= MOST * DEADLINE

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, in milliseconds."""
        return {
            "drafter": self.how,
            "rounds": len(self.seconds),
            "deadline": DEADLINE * 1e3,
            "p99": round(self.p99 * 1e3, 2),
            "longest": round(max(self.seconds) * 1e3, 2),
            "not hit, p50": round(percentile(self.free, 50) * 1e3, 2),
            "through before": self.escaped,
            "held": self.met,
        }

    def line(self) -> str:
        """What is printed."""
        return (
            f"drafter {self.how} in {len(self.seconds)} rounds, deadline {DEADLINE * 1e3:.0f} ms:"
            f" p50 {np.median(self.seconds) * 1e3:.1f} ms, p99 {self.p99 * 1e3:.1f} ms,"
            f" longest {max(self.seconds) * 1e3:.1f} ms (not hit: p50"
            f" {percentile(self.free, 50) * 1e3:.1f} ms; a bare wait: p99"
            f" {percentile(self.bare) * 1e3:.1f} ms): {'held' if self.met else 'FAIL'}"
        )


def percentile(seconds: Sequence[float], share: int = 99) -> float:
    """Return the smallest of the values that so many of 100 do not exceed."""
    return sorted(seconds)[-(-share * len(seconds) // 100) - 1]


def bare_wait() -> float:
    """Return the seconds that a wait of the deadline takes on a socket that stays silent."""
    one, other = socket.socketpair()
    with one, other:
        one.settimeout(DEADLINE)
        began = time.perf_counter()
        with suppress(TimeoutError):
            one.recv(1)
        return time.perf_counter() - began


@dataclass
class Slow(ToyDrafter):
    """Takes PASS seconds for a pass: a round lasts long enough to be hit, and not to be late."""

    def extend(self, batch: Sequence[tuple[ToyContext, Sequence[int]]]) -> NDArray[np.float32]:
        """Return logits, after a while."""
        time.sleep(PASS)
        return super().extend(batch)


def measure(how: str, rounds: int) -> Stalls:
    """Hit so many rounds; how: ``killed`` or ``stopped``."""
    hit: Callable[[BaseProcess], None] = _kill if how == "killed" else processes.pause
    stalls = Stalls(how)
    address = processes.free_address()
    while len(stalls.seconds) < rounds and stalls.escaped + stalls.wrong <= rounds:
        child = processes.start(processes.run_drafter, _slow(), DrafterConfig(), address)
        try:
            _one(address, child, hit, stalls)
        finally:
            processes.kill(child)
        stalls.bare.append(bare_wait())
    return stalls


def _one(
    address: Address, child: BaseProcess, hit: Callable[[BaseProcess], None], stalls: Stalls
) -> None:
    with RemoteDrafter(address, models.target(), deadline=DEADLINE) as drafter:
        _connect(drafter)
        request = drafter.open((1, 2, 3), 7)
        began = time.perf_counter()
        free = request.propose(_POLICY)
        stalls.free.append(time.perf_counter() - began)
        if isinstance(free, Miss):
            stalls.wrong += 1
            return
        request.commit(Outcome.CORRECTION, 0, [5])
        timer = threading.Timer(HIT_AFTER, hit, [child])
        timer.start()
        began = time.perf_counter()
        ended = request.propose(_POLICY)
        seconds = time.perf_counter() - began
        timer.join()
        if isinstance(ended, Miss):
            stalls.seconds.append(seconds)
        else:
            stalls.escaped += 1


def _kill(child: BaseProcess) -> None:
    child.kill()


def _connect(drafter: RemoteDrafter) -> None:
    until = time.monotonic() + _START_SECONDS
    while drafter.reach() is not None:
        if time.monotonic() > until:
            raise TimeoutError("the drafter did not start")
        time.sleep(0.005)


def _slow() -> Slow:
    made = models.drafter()
    return Slow(made.table, made.vocab_size)
