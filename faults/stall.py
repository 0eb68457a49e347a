"""How long a round takes when its drafter dies in it: at most its deadline and a tenth of that.

Many rounds, each hit: the drafter, a process of its own, is killed (-9) or stopped (SIGSTOP) while
it works on the proposal. Measured is the round, from the question to its end without a proposal.
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
HIT_AFTER: Final = 0.02  # seconds from the question
_POLICY: Final = ProposalPolicy(Layout.SPARSE, 4, 1.0, support=8)
_START_SECONDS: Final = 20.0


@dataclass
class Stalls:
    """The seconds of every round that was hit."""

    how: str
    seconds: list[float] = field(default_factory=list)
    wrong: int = 0  # rounds that ended otherwise than by a miss
    bare: list[float] = field(default_factory=list)  # of a bare wait of the same length

    @property
    def p99(self) -> float:
        """The 99th percentile, in seconds."""
        return percentile(self.seconds)

    @property
    def met(self) -> bool:
        """Whether the promise holds."""
        return not self.wrong and self.p99 <= MOST * DEADLINE

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, in milliseconds."""
        return {
            "drafter": self.how,
            "rounds": len(self.seconds),
            "deadline": DEADLINE * 1e3,
            "p99": round(self.p99 * 1e3, 2),
            "longest": round(max(self.seconds) * 1e3, 2),
            "held": self.met,
        }

    def line(self) -> str:
        """What is printed."""
        return (
            f"drafter {self.how} in {len(self.seconds)} rounds, deadline {DEADLINE * 1e3:.0f} ms:"
            f" p50 {np.median(self.seconds) * 1e3:.1f} ms, p99 {self.p99 * 1e3:.1f} ms,"
            f" longest {max(self.seconds) * 1e3:.1f} ms (a bare wait: p99"
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
    """Takes longer for a pass than any deadline, from the second on: what hits it hits it there."""

    def extend(self, batch: Sequence[tuple[ToyContext, Sequence[int]]]) -> NDArray[np.float32]:
        """Return logits, late."""
        time.sleep(4 * DEADLINE)
        return super().extend(batch)


def measure(how: str, rounds: int) -> Stalls:
    """Hit so many rounds; how: ``killed`` or ``stopped``."""
    hit: Callable[[BaseProcess], None] = _kill if how == "killed" else processes.pause
    stalls = Stalls(how)
    address = processes.free_address()
    for _ in range(rounds):
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
        timer = threading.Timer(HIT_AFTER, hit, [child])
        timer.start()
        began = time.perf_counter()
        ended: Any = request.propose(_POLICY)
        stalls.seconds.append(time.perf_counter() - began)
        timer.join()
        stalls.wrong += not isinstance(ended, Miss)
        request.commit(Outcome.TARGET_ONLY, 0, [5])


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
