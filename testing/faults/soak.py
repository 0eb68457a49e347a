"""The soak: a drafter that is killed every few seconds, and verifiers that must not notice.

Eight verifiers, processes of their own, keep eight sessions each going over one connection; their
drafter is killed (-9) every five seconds and started again. Beside them a drafter that is never
killed serves one verifier that is. Everything is told by numbers at the end: every request whole
and, where it is greedy, equal to the target's own text; resident memory flat; no descriptor more.

    python -m testing.faults.soak [--seconds 600] [--every 5]
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from draftwire.drafter.program import DrafterConfig
from draftwire.rows.prepare import prepare
from draftwire.transport.tcp import Address, free_address
from draftwire.verifier.generate import Generation, generate
from draftwire.verifier.remote import RemoteDrafter
from draftwire.verifier.report import Report
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from testing.faults import models, processes
from testing.toys.models import ToyRequest, ToyTarget

VERIFIERS: Final = 8
SESSIONS: Final = 8  # of each verifier
TOKENS: Final = 96  # of each request
TURN: Final = 0.3  # seconds of a round's forward pass of the target, slept
AWAY: Final = 1.0  # seconds from a kill to the start of the next drafter
DEADLINE: Final = 0.5
HANG: Final = 10.0  # seconds of a round, ten times what it may wait for: no busy machine does that
SAMPLE: Final = 0.5  # seconds between two looks at memory and descriptors
GROWTH: Final = 0.02  # resident memory, last third against the middle third
POLICY: Final = ProposalPolicy(Layout.SPARSE, 4, 1.0, support=8)
GREEDY: Final = ProposalPolicy(Layout.SPARSE, 4, 0.0, support=8)
OUT: Final = Path(".out/soak.json")


@dataclass
class Account:
    """What one verifier has done."""

    begun: int = 0
    completed: int = 0
    wrong: int = 0
    tokens: int = 0
    rounds: int = 0
    drafted_rounds: int = 0
    connections: int = 0
    longest: float = 0.0  # seconds of its longest round
    misses: Counter[str] = field(default_factory=Counter)

    def add(self, other: Account) -> None:
        """Add another's."""
        for name in ("begun", "completed", "wrong", "tokens", "rounds", "drafted_rounds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.connections += other.connections
        self.longest = max(self.longest, other.longest)
        self.misses.update(other.misses)


class Session:
    """One place of a verifier: a request after the other."""

    def __init__(self, drafter: RemoteDrafter, engine: ToyTarget, number: int) -> None:
        self._drafter = drafter
        self._engine = engine
        self._number = number
        self._requests = 0
        self.run: Generation[ToyRequest] | None = None
        self._prompt: tuple[int, ...] = ()
        self._indices: list[int] = []

    def begin(self) -> None:
        """Begin the next request; every other session is greedy."""
        self._requests += 1
        self._prompt = (self._number % models.WIDTH, self._requests % models.WIDTH, 5)
        self._indices = []
        self.run = self._generation(self._drafter)

    def round(self) -> bool:
        """Go on by one round at least; returns whether the text has ended."""
        assert self.run is not None
        rounds = self.run.report.rounds
        while self.run.report.rounds == rounds:
            emission = next(self.run, None)
            if emission is None:
                return True
            self._indices.append(emission.index)
        return False

    def right(self) -> bool:
        """Whether the text that has ended is whole, without gaps, and the target's if greedy."""
        assert self.run is not None
        text = list(self.run.tokens)
        if self._indices != list(range(TOKENS)) or len(text) != TOKENS:
            return False
        return not self._greedy or text == [e.token for e in self._generation(None)]

    @property
    def _greedy(self) -> bool:
        return self._number % 2 == 0

    def _generation(self, drafter: RemoteDrafter | None) -> Generation[ToyRequest]:
        sampling = Sampling(
            temperature=0.0 if self._greedy else 1.0, seed=self._requests, max_tokens=TOKENS
        )
        policy = GREEDY if self._greedy else POLICY
        return generate(self._engine, drafter, self._prompt, sampling, policy)


def run_verifier(number: int, address: Address, until: float, told: Connection | None) -> None:
    """Keep the sessions going until the time is over, then let each finish; tell the account."""
    engine, account = models.target(), Account()
    with RemoteDrafter(address, engine, deadline=DEADLINE, connect_timeout=DEADLINE) as drafter:
        sessions = [Session(drafter, engine, SESSIONS * number + i) for i in range(SESSIONS)]
        for session in sessions:
            session.begin()
            account.begun += 1
        while sessions:
            time.sleep(TURN)
            for session in list(sessions):
                began = time.monotonic()
                ended = session.round()
                account.longest = max(account.longest, time.monotonic() - began)
                if not ended:
                    continue
                _settle(account, session)
                if time.monotonic() < until:
                    session.begin()
                    account.begun += 1
                else:
                    sessions.remove(session)
        account.connections = drafter.counters.connections
    if told is not None:
        told.send(account)


def _settle(account: Account, session: Session) -> None:
    assert session.run is not None
    report: Report = session.run.report
    account.completed += report.tokens == TOKENS
    account.wrong += not session.right()
    account.tokens += report.tokens
    account.rounds += report.rounds
    account.drafted_rounds += report.drafted_rounds
    account.misses.update({reason.value: n for reason, n in report.misses.items()})


@dataclass
class Watched:
    """A process that lives as long as the soak: what was seen of it at each look."""

    name: str
    pid: int
    resident: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def look(self) -> None:
        """Note memory and descriptors."""
        self.resident.append(processes.resident(self.pid))
        self.descriptors.append(processes.descriptors(self.pid))

    def _thirds(self, seen: list[int]) -> tuple[list[int], list[int]]:
        third = len(seen) // 3
        return seen[third : 2 * third], seen[2 * third :]

    @property
    def growth(self) -> float:
        """Mean resident memory of the last third against the middle third, as a share."""
        middle, last = self._thirds(self.resident)
        return fmean(last) / fmean(middle) - 1.0

    @property
    def more_descriptors(self) -> int:
        """Most descriptors of the last third less the most of the middle third."""
        middle, last = self._thirds(self.descriptors)
        return max(last) - max(middle)


@dataclass
class Outcome:
    """What the soak has come to."""

    seconds: float
    kills: int
    verifiers_killed: int
    account: Account
    watched: list[Watched]
    cpu_seconds: float

    def faults(self) -> Iterator[str]:
        """What must not be, in words."""
        account = self.account
        if account.completed != account.begun:
            yield f"{account.begun - account.completed} requests did not complete"
        if account.wrong:
            yield f"{account.wrong} texts are wrong"
        if account.longest > HANG:
            yield f"a round took {account.longest:.1f} s"
        if not account.drafted_rounds or account.connections < VERIFIERS * (1 + self.kills // 2):
            yield "drafting did not resume after a kill"
        for each in self.watched:
            if abs(each.growth) > GROWTH:
                yield f"{each.name}: resident memory changed by {each.growth:+.2%}"
            if each.more_descriptors > 0:
                yield f"{each.name}: {each.more_descriptors} more descriptors"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "seconds": round(self.seconds, 1),
            "drafter killed": self.kills,
            "verifiers killed": self.verifiers_killed,
            "cpu": round(self.cpu_seconds / self.seconds, 2),
            "account": {
                **{each.name: getattr(self.account, each.name) for each in fields(Account)},
                "misses": dict(self.account.misses),
            },
            "processes": [
                {
                    "name": each.name,
                    "resident bytes": each.resident[-1],
                    "growth": round(each.growth, 5),
                    "descriptors": each.descriptors[-1],
                    "more descriptors": each.more_descriptors,
                }
                for each in self.watched
            ],
            "faults": list(self.faults()),
        }


def soak(seconds: float, every: float) -> Outcome:
    """Run it; ``every``: seconds between two kills."""
    logging.getLogger("draftwire").addHandler(logging.NullHandler())
    logging.getLogger("draftwire").propagate = False  # hundreds of kills are hundreds of lines
    prepare()
    began = time.monotonic()
    until = began + seconds
    config = DrafterConfig(max_sessions=SESSIONS, max_slots=SESSIONS)
    mortal, steady = free_address(), free_address()

    def drafter(address: Address) -> BaseProcess:
        return processes.start(processes.run_drafter, models.drafter(), config, address)

    def victim(number: int) -> BaseProcess:
        # Its requests begin with other tokens each time: nothing of it may stay in the drafter.
        return processes.start(run_verifier, number, steady, until + seconds, None)

    doomed, survivor = drafter(mortal), drafter(steady)
    pipes = [processes.FORK.Pipe(duplex=False) for _ in range(VERIFIERS)]
    verifiers = [
        processes.start(run_verifier, number, mortal, until, pipe[1])
        for number, pipe in enumerate(pipes)
    ]
    passing = victim(VERIFIERS)
    watched = [Watched(f"verifier {i}", _pid(each)) for i, each in enumerate(verifiers)]
    watched.append(Watched("drafter that is not killed", _pid(survivor)))
    kills, due, back = 0, began + every, math.inf
    while (now := time.monotonic()) < until:
        time.sleep(SAMPLE)
        for each in watched:
            each.look()
        if now >= back:  # first: on a busy machine the next kill may be due by now as well
            back = math.inf
            doomed = drafter(mortal)
        elif now >= due and back == math.inf:
            due, back = due + every, now + AWAY
            kills += 1
            processes.kill(doomed)
            processes.kill(passing)
            passing = victim(VERIFIERS + kills)
    if back < math.inf:
        doomed = drafter(mortal)
    account = _accounts([pipe[0] for pipe in pipes], until + 4 * TOKENS * TURN)
    for child in (*verifiers, doomed, survivor, passing):
        processes.kill(child)
    return Outcome(time.monotonic() - began, kills, kills, account, watched, _cpu_seconds())


def _accounts(pipes: list[Connection], until: float) -> Account:
    """Gather what the verifiers tell; one that tells nothing in time has begun and not ended."""
    total = Account()
    for pipe in pipes:
        told = pipe.poll(max(0.0, until - time.monotonic()))
        total.add(pipe.recv() if told else Account(begun=SESSIONS))
    return total


def _pid(child: BaseProcess) -> int:
    assert child.pid is not None
    return child.pid


def _cpu_seconds() -> float:
    uses = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in uses)


def lines(outcome: Outcome) -> Iterator[str]:
    """What is printed."""
    account = outcome.account
    yield (
        f"{outcome.seconds:.0f} s, {VERIFIERS} verifiers with {SESSIONS} sessions each: drafter"
        f" killed {outcome.kills} times, {outcome.cpu_seconds / outcome.seconds:.2f} CPUs in use"
    )
    yield (
        f"{account.completed} of {account.begun} requests completed, {account.wrong} wrong;"
        f" {account.tokens} tokens in {account.rounds} rounds, {account.drafted_rounds} of them"
        f" with drafts; longest round {account.longest:.2f} s"
    )
    misses = ", ".join(f"{name} {n}" for name, n in sorted(account.misses.items()))
    yield f"rounds without drafts: {misses}"
    yield f"{'process':28}{'resident MB':>12}{'growth':>10}{'descriptors':>13}{'more':>6}"
    for each in outcome.watched:
        yield (
            f"{each.name:28}{each.resident[-1] / 1e6:12.1f}{each.growth:+10.2%}"
            f"{each.descriptors[-1]:13}{each.more_descriptors:+6}"
        )


def main() -> int:
    """Soak, print, write the JSON; returns the exit code."""
    parser = argparse.ArgumentParser(prog="testing.faults.soak", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two kills")
    arguments = parser.parse_args()
    outcome = soak(arguments.seconds, arguments.every)
    print("\n".join(lines(outcome)))
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(outcome.as_dict(), indent=2) + "\n")
    found = list(outcome.faults())
    for fault in found:
        print(f"FAULT: {fault}")
    print("nothing hangs, nothing is lost, nothing grows" if not found else "the soak has failed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
