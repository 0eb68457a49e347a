"""What runs on the verifier's host: every link in turn, two pairs, all ways; JSON and tables.

Started by ``python -m benchmarks.twohosts.run`` inside the verifier's namespace, never by hand.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.pair import PROMPTS
from benchmarks.twohosts.longrun import least_cost, long_run
from benchmarks.twohosts.namespaces import ADDRESSES, Hosts
from benchmarks.twohosts.results import (
    DENSE,
    LIMIT,
    SPARSE,
    BreakerFound,
    LinkFound,
    PairFound,
    WayFound,
    WideTimes,
    document,
    missed,
    verdict,
)
from benchmarks.twohosts.table import link_table, summary
from benchmarks.twohosts.ways import (
    TARGET_ONLY,
    Pair,
    Spread,
    Watched,
    Way,
    costs,
    pauses,
    settle,
    take_turns,
)
from benchmarks.twohosts.wide import DEPTH, POLICIES, SUPPORT, WideTarget
from draftwire.cli.drafters import local_drafter
from draftwire.cli.models import Target
from draftwire.cli.process import listening_process
from draftwire.transport.keys import PresharedKey, write_new_key
from draftwire.transport.tcp import Address
from draftwire.verifier.breaker import Breaker
from draftwire.verifier.engine import TargetEngine
from draftwire.verifier.examine import proposal_seconds, round_trip
from draftwire.verifier.remote import RemoteDrafter
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout

TEMPERATURE: Final = 0.8
EMBEDDED_TOKENS: Final = 32  # of a turn
# Seconds of a pass of the wide target, as of a large model and of a small one: tokens of a turn.
PASSES: Final = {0.025: 24, 0.004: 100}
EMBEDDED_POLICIES: Final = {
    Layout.SPARSE: ProposalPolicy(Layout.SPARSE, DEPTH, TEMPERATURE, support=SUPPORT),
    Layout.DENSE: ProposalPolicy(Layout.DENSE, DEPTH, TEMPERATURE),
}
NAMES: Final = {Layout.SPARSE: SPARSE, Layout.DENSE: DENSE}
CONNECT_SECONDS: Final = 10.0
LONG_RUN_SECONDS: Final = 3600.0
COLOCATED: Final = "colocated"


class Bench:
    """Both drafters on the other host, the targets here, and the key that both sides have."""

    def __init__(self, hosts: Hosts, key: Path, stack: ExitStack) -> None:
        """Start the drafters and load the targets; the stack ends them."""
        self.hosts = hosts
        self.key = PresharedKey.read(key)
        where = ["--host", ADDRESSES["drafter"], "--psk-file", str(key)]
        serve = ["-m", "draftwire", "serve", "--port", "0", "--until-stdin-closes"]
        limits = ["--max-depth", str(DEPTH), "--max-support", str(SUPPORT), "--threads", "1"]
        quiet = ["--log-level", "warning"]
        self.embedded = self._start([*serve, *where, *limits, *quiet], stack)
        self.wide = self._start(["-m", "benchmarks.twohosts.wide", *where], stack)
        self.target = Target(None, device="cpu", threads=1)
        prompts = [self.target.encode(prompt) for prompt in PROMPTS]
        self.prompts = prompts
        self.wide_targets = [WideTarget(seconds) for seconds in PASSES]
        local = local_drafter(None, self.target, EMBEDDED_POLICIES[Layout.SPARSE])
        self.local = stack.enter_context(local)

    def _start(self, arguments: Sequence[str], stack: ExitStack) -> Address:
        command = self.hosts.command("drafter", [sys.executable, *arguments])
        return stack.enter_context(listening_process(command))

    def pairs(self) -> Iterator[tuple[Pair, Address, dict[Layout, ProposalPolicy]]]:
        """Yield each pair with the address of its drafter and the policies it is asked under."""
        embedded = self.target.engine
        name = f"embedded pair, V = {embedded.vocab_size:,}"
        pair = Pair(name, embedded, self.prompts, TEMPERATURE, EMBEDDED_TOKENS)
        yield pair, self.embedded, EMBEDDED_POLICIES
        for target, (seconds, tokens) in zip(self.wide_targets, PASSES.items(), strict=True):
            name = f"prepared rows, V = {target.vocab_size:,}, a pass takes {seconds * 1e3:g} ms"
            yield Pair(name, target, [[1, 2, 3]], 1.0, tokens), self.wide, POLICIES


@contextmanager
def longer(address: Address, delay: float) -> Iterator[Address]:
    """Yield an address here from which everything reaches ``address`` half of ``delay`` later."""
    each_way = f"{delay / 2 * 1e3:g}"
    arguments = ["--to", str(address), "--delay-ms", each_way]
    with listening_process([sys.executable, "-m", "benchmarks.twohosts.relay", *arguments]) as near:
        yield near


class OverLink:
    """Connections of one pair over one link: a client for each way, none shared."""

    def __init__(self, near: Address, key: PresharedKey, stack: ExitStack) -> None:
        """near: where the link begins on this host."""
        self._near, self._key, self._stack = near, key, stack

    def client(
        self, target: TargetEngine[Any], breaker: Breaker | None, deadline: float | None = None
    ) -> RemoteDrafter:
        """Return a connected client; its rounds' deadlines are derived unless one is given."""
        client = RemoteDrafter(
            self._near,
            target,
            deadline=deadline,
            connect_timeout=CONNECT_SECONDS,
            max_depth=DEPTH,
            max_support=SUPPORT,
            security=self._key,
            breaker=breaker,
        )
        self._stack.enter_context(client)
        client.connect()
        return client

    def ways(self, target: TargetEngine[Any], policies: dict[Layout, ProposalPolicy]) -> list[Way]:
        """Return target-only, each layout drafted always, and each with a breaker."""
        found = [Way(TARGET_ONLY)]
        for layout, policy in policies.items():
            found.append(Way(NAMES[layout], self.client(target, Watched()), policy))
        for layout, policy in policies.items():
            name = f"{NAMES[layout]}, breaker"
            found.append(Way(name, self.client(target, Breaker()), policy))
        return found


def measure_link(
    bench: Bench, megabits: int, delay: float, options: argparse.Namespace
) -> LinkFound:
    """Measure every pair over one link."""
    bench.hosts.limit(megabits)
    pairs = []
    with ExitStack() as stack:
        begins = {
            address: OverLink(stack.enter_context(longer(address, delay)), bench.key, stack)
            for address in (bench.embedded, bench.wide)
        }
        timing = begins[bench.wide].client(bench.wide_targets[0], None, CONNECT_SECONDS)
        trip = round_trip(timing)
        sparse, dense = proposal_seconds(
            timing, [1, 2, 3], [POLICIES[Layout.SPARSE], POLICIES[Layout.DENSE]], options.proposals
        )
        for pair, address, policies in bench.pairs():
            ways = begins[address].ways(pair.target, policies)
            if address is bench.embedded:
                ways.append(Way(COLOCATED, bench.local, policies[Layout.SPARSE]))
            settle(pair, ways, options.settle)
            seconds = options.seconds * (0.4 if address is bench.embedded else 0.3)
            take_turns(pair, ways, seconds)
            pairs.append(found(pair, ways))
    return LinkFound(megabits, delay, trip, WideTimes(sparse, dense), pairs)


def found(pair: Pair, ways: Sequence[Way]) -> PairFound:
    """Return what the ways of a pair have come to."""
    alone = ways[0].rounds
    drafted = {
        way.name: way.client.breaker.rounds
        for way in ways
        if way.client is not None and isinstance(way.client.breaker, Watched)
    }
    results = []
    for way in ways:
        breaker = None
        if way.breaker is not None:
            asked = drafted[way.name.split(",")[0]]
            played = long_run(alone, asked, LONG_RUN_SECONDS)
            if played.cost > LIMIT:  # is that so, or did a few rounds decide?
                bound = least_cost(alone, asked, LONG_RUN_SECONDS)
                played = replace(played, least=bound)
            breaker = BreakerFound(
                "open" if pauses(way.breaker) else "closed",
                sum(way.breaker.pauses_by_scope.values()),
                played,
            )
        spread = Spread.of(list(way.rates.values()))
        cost = costs(ways[0].rates, way.rates)
        results.append(WayFound(way.name, spread, cost, way.report, breaker))
    return PairFound(pair.name, len(ways[0].rates), results)


def main(arguments: Sequence[str]) -> int:
    """Measure, print and write; returns the exit code."""
    options = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return measure(options)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def measure(options: argparse.Namespace) -> int:
    """Measure every link, print as it goes, and write the whole."""
    began = time.monotonic()
    links: list[LinkFound] = []
    with ExitStack() as stack:
        key = Path(stack.enter_context(TemporaryDirectory())) / "draftwire.key"
        write_new_key(key)
        bench = Bench(Hosts(options.hosts), key, stack)
        for megabits in options.rates:
            for delay in options.delays:
                links.append(measure_link(bench, megabits, delay / 1e3, options))
                print(link_table(links[-1]), flush=True)
    print(summary(links), flush=True)
    written = document(options.command, links, time.monotonic() - began)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "two-hosts.json"
    path.write_text(json.dumps(written, indent=2, allow_nan=False) + "\n")
    print(f"written: {path}, after {written['seconds']:.0f} s")
    print(verdict(links))
    return 1 if missed(links) else 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read what ``python -m benchmarks.twohosts.run`` passes on."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.twohosts.measure", description=__doc__
    )
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument("--command", default="")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rates", type=int, nargs="+", required=True)
    parser.add_argument("--delays", type=float, nargs="+", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--settle", type=float, required=True)
    parser.add_argument("--proposals", type=int, required=True)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
