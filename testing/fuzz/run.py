"""``make fuzz``: mutated frames and conversations through every reader, counted by outcome.

    python -m testing.fuzz.run [--frames N] [--transcripts N] [--seed S] [--processes P]
    python -m testing.fuzz.run --case frames:SEED:INDEX

A case is decided by its kind, seed and index alone. Exit code 1 when a case is a finding: two
readings differ, something else than one protocol error is raised, nothing comes back within the
limit of a case, or memory grows.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from random import Random
from types import FrameType

os.environ.setdefault("OMP_NUM_THREADS", "1")

from testing.fuzz import frames, transcripts

CASE_SECONDS = 20.0  # of the processor; a case takes milliseconds, and a first one compiles
GROWTH_BYTES = 32 << 20  # of a process, after its first block; half-free pages are kept
GROWTH_BLOCKS = 50_000  # likewise, of Python's own allocations: caches with a bound fill up slowly
BLOCK = {"frames": 5000, "transcripts": 500}
MOST_FINDINGS = 20  # shown; more are counted


class Hung(AssertionError):
    """A case has not come back in time."""


@dataclass
class Block:
    """What became of the cases of one block."""

    cases: int
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    process: int = 0
    resident: int = 0  # bytes, at its end
    allocated: int = 0  # blocks of Python's allocator, at its end


# Cases -------------------------------------------------------------------------------------------


@cache
def runner(kind: str) -> Callable[[Random], str]:
    """What makes and checks one case of a kind; the material is made once a process."""
    if kind == "frames":
        places = frames.contexts()
        return lambda random: frames.run_case(random, places)
    talks = transcripts.materials()
    foreign = transcripts.foreign_of(talks)
    return lambda random: transcripts.run_case(random, talks, foreign)


def random_of(kind: str, seed: int, index: int) -> Random:
    """Everything that a case does not know of itself."""
    return Random(f"{kind}/{seed}/{index}")


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise Hung where the timer runs out; of the processor's time, since nothing here may wait."""

    def hang(number: int, frame: FrameType | None) -> None:
        raise Hung(f"nothing came back within {seconds} s of the processor")

    before = signal.signal(signal.SIGVTALRM, hang)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def run_block(job: tuple[str, int, int, int]) -> Block:
    """Run the cases ``begin`` to ``end`` of a kind and seed."""
    kind, seed, begin, end = job
    block = Block(end - begin)
    run = runner(kind)
    with limited(CASE_SECONDS):
        for index in range(begin, end):
            signal.setitimer(signal.ITIMER_VIRTUAL, CASE_SECONDS)
            try:
                block.outcomes[run(random_of(kind, seed, index))] += 1
            except Exception:
                block.outcomes["FINDING"] += 1
                block.findings.append(f"{kind}:{seed}:{index}\n{traceback.format_exc(limit=-4)}")
    gc.collect()
    block.process, block.resident = os.getpid(), resident()
    block.allocated = sys.getallocatedblocks()
    return block


def resident() -> int:
    """Bytes of this process in memory, freed ones given back; 0 where the system does not say."""
    with suppress(OSError, AttributeError):  # glibc's alone
        ctypes.CDLL(None).malloc_trim(0)
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


# A campaign --------------------------------------------------------------------------------------


@dataclass
class Campaign:
    """All blocks of one kind."""

    kind: str
    seed: int
    total: int
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    memory: dict[int, list[int]] = field(default_factory=dict)
    allocated: dict[int, list[int]] = field(default_factory=dict)
    seconds: float = 0.0

    def run(self, processes: int, show: Callable[[str], None]) -> None:
        """Run every block, in this process or in several."""
        size = BLOCK[self.kind]
        jobs = [
            (self.kind, self.seed, begin, min(begin + size, self.total))
            for begin in range(0, self.total, size)
        ]
        began = time.monotonic()
        done = 0
        for block in blocks(jobs, processes):
            done += block.cases
            self.outcomes += block.outcomes
            self.findings += block.findings
            for finding in block.findings:  # at once: a campaign takes long
                print(f"\nFINDING {finding}", file=sys.stderr, flush=True)
            self.memory.setdefault(block.process, []).append(block.resident)
            self.allocated.setdefault(block.process, []).append(block.allocated)
            self.seconds = time.monotonic() - began
            found = self.outcomes["FINDING"]
            rate = done / self.seconds if self.seconds else 0.0
            show(f"{self.kind}: {done:,} of {self.total:,}, {rate:,.0f}/s, {found} findings")

    @property
    def growth(self) -> int:
        """Bytes by which the process that grew most has grown since its first block."""
        return max((max(sizes) - sizes[0] for sizes in self.memory.values()), default=0)

    @property
    def leaked(self) -> int:
        """Blocks of Python's allocator that the process that grew most has more in the end."""
        return max((sizes[-1] - sizes[0] for sizes in self.allocated.values()), default=0)

    @property
    def good(self) -> bool:
        """Whether there is no finding, and memory stayed where it was."""
        grown = self.growth > GROWTH_BYTES or self.leaked > GROWTH_BLOCKS
        return not self.findings and not grown

    def report(self) -> str:
        """Counts by outcome, and the rate."""
        lines = [
            f"{self.kind}: {self.total:,} cases, seed {self.seed}, {self.seconds:.0f} s,"
            f" {self.total / max(self.seconds, 1e-9):,.0f}/s,"
            f" memory grew by {self.growth / (1 << 20):.1f} MiB and {self.leaked:,} Python blocks"
        ]
        lines += [f"  {count:>10,}  {name}" for name, count in self.outcomes.most_common()]
        lines += [f"\nFINDING {each}" for each in self.findings[:MOST_FINDINGS]]
        return "\n".join(lines)


def blocks(jobs: Sequence[tuple[str, int, int, int]], processes: int) -> Iterator[Block]:
    """The results of jobs as they come."""
    if processes == 1:
        yield from map(run_block, jobs)
        return
    with get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(run_block, jobs)


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for and return the exit code."""
    options = _parse(arguments)
    if options.case:
        kind, seed, index = options.case.split(":")
        print(runner(kind)(random_of(kind, int(seed), int(index))))
        return 0
    seed = int.from_bytes(os.urandom(4), "little") if options.seed is None else options.seed
    live = sys.stderr.isatty()
    good = True
    for kind, total in (("frames", options.frames), ("transcripts", options.transcripts)):
        shown_at = 0.0

        def show(line: str) -> None:
            nonlocal shown_at
            if live or time.monotonic() - shown_at > 30:
                shown_at = time.monotonic()
                text, end = (f"\r{line}\033[K", "") if live else (line, "\n")
                print(text, end=end, file=sys.stderr, flush=True)

        campaign = Campaign(kind, seed, total)
        campaign.run(options.processes, show)
        if live:
            print(file=sys.stderr)
        print(campaign.report(), flush=True)
        good &= campaign.good
    print("no findings" if good else "there are findings")
    return 0 if good else 1


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m testing.fuzz.run", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--transcripts", type=int, default=100_000)
    parser.add_argument("--seed", type=int, help="another seed gives other cases")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--case", help="run one case again, as KIND:SEED:INDEX")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
